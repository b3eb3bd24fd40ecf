"""The history of a run's metrics: a line of JSON a step, in a file of each attempt; a reader joins them by step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field, ValidationError

from halo_api.base import ApiModel
from halo_api.report import RolloutProgress

METRICS_NAME = "metrics.jsonl"
# Of a longer run a reader is given every second step, or third, and so on.
MOST_STEPS = 20_000


# What a chart can have on its axis: whoever mounts the claim can write lines.
Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e39, le=1e39)]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class StepMetrics(ApiModel):
    """One finished step."""

    attempt: Count
    step: Annotated[Count, Field(ge=1, description="Counts from 1.")]
    at: Annotated[Number, Field(description="When it ended, in seconds since 1970.")]
    seconds: Annotated[Number, Field(description="From its beginning to its end; a save is in none.")]
    loss: Number
    learning_rate: Number
    grad_norm: Annotated[Number, Field(description="Before it was clipped.")]
    reward_margin: Number | None = None
    reward_accuracy: Number | None = None
    rollouts: Annotated[
        RolloutProgress | None, Field(description="Of online RL: what the step's episodes were like.")
    ] = None
    tokens: Annotated[Count, Field(description="Tokens of this step that went through the model, over all processes.")]
    tokens_per_second: Number
    mfu: Annotated[
        Number | None, Field(description="Of the GPUs' peak; unset where that is not known, as on a CPU.")
    ] = None
    memory_bytes: Annotated[
        Count | None,
        Field(description="Of the first process: the most it has held of its GPU; on a CPU what it holds then."),
    ] = None


def parsed(line: str | bytes) -> StepMetrics | None:
    """Read a line; None of what is none, such as one that a full disk or a lost node cut."""
    try:
        return StepMetrics.model_validate_json(line)
    except ValidationError:
        return None


def joined(found: Iterable[StepMetrics]) -> list[StepMetrics]:
    """Return one of each step, in order: that of the latest attempt, and within an attempt the last."""
    latest: dict[int, StepMetrics] = {}
    for one in found:
        before = latest.get(one.step)
        if before is None or one.attempt >= before.attempt:
            latest[one.step] = one
    return [latest[step] for step in sorted(latest)]


def stride(last: int, most: int = MOST_STEPS) -> int:
    """Return of how many steps one is kept, so that a run of `last` steps has at most `most`, and the last one."""
    return max(1, -(-last // most))


def is_kept(step: int, last: int, every: int) -> bool:
    """Whether a step is one of those; by its number, so that all attempts keep the same."""
    return step % every == 0 or step == last
