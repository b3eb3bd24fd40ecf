"""The token rows of every step, as our trainer makes and orders them, and what each step has to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from halo_api.run_file import RunFile, volume_path
from halo_trainer.data.batches import step_rows
from halo_trainer.data.load import load_template, training_rows
from halo_trainer.data.template import TokenRow

from .figures import causal_flops

# The rows of one conversation: a chat, or the steps of an agent run, of which each begins with the one before.
Talk = list[TokenRow]


def talks_of_steps(file: RunFile, volumes: str, rows: int) -> list[list[Talk]]:
    """Return the conversations of each step in the trainer's own order; each is so many rows of the file."""
    plan, base, data = file.train, file.base, file.data
    template = load_template(base, Path(volume_path(base.source, volumes)))
    found = list(training_rows(data, Path(volume_path(data.source, volumes)), template))
    talks = [found[start : start + rows] for start in range(0, len(found), rows)]
    return [
        [talks[index] for index in step_rows(len(talks), plan.batch, plan.seed, step)] for step in range(plan.steps)
    ]


def counted(step: Sequence[Sequence[TokenRow]], config: dict[str, Any]) -> dict[str, Any]:
    """Return the tokens, trained tokens and FLOPs of a step, where the rows of each group go through the model as one."""
    lengths = [max(map(len, group)) for group in step]
    trained = sum(row.trained_tokens for group in step for row in group)
    return {"tokens": sum(lengths), "trained": trained, "flops": causal_flops(config, lengths)}
