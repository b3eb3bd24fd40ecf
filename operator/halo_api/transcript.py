"""Sampled episodes as a person reads them: a line of JSON each, in a file of each step below an attempt's folder."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field, ValidationError

from halo_api.base import ApiModel

EPISODES_FOLDER = "episodes"


class EpisodeSeen(ApiModel):
    """One episode, as the trainer tells it; see docs/online-rl.md. What is not there was empty."""

    task: str
    sample: int = 0
    step: int = 0
    reward: Annotated[float | None, Field(description="Unset: not scored, and `failure` says why.")] = None
    passed: bool | None = None
    failure: str | None = None
    detail: str = ""
    truncated: bool = False
    checks: dict[str, bool] = Field(default_factory=dict)
    reason: str = ""
    policies: tuple[int, ...] = ()
    servers: tuple[int, ...] = ()
    turns: int = 0
    tokens: int = 0
    seconds: float = 0.0
    messages: tuple[dict[str, Any], ...] = ()


def step_file(step: int) -> str:
    """Return the name of the file of a step's episodes."""
    return f"step-{step}.jsonl"


def step_of(name: str) -> int | None:
    """Return which step's file has this name, if one has."""
    found = re.fullmatch(r"step-(0|[1-9][0-9]{0,8})\.jsonl", name)
    return int(found[1]) if found else None


def seen(line: str | bytes) -> EpisodeSeen | None:
    """Read a line; None of what is none."""
    try:
        return EpisodeSeen.model_validate_json(line)
    except ValidationError:
        return None


def is_wanted(episode: EpisodeSeen, passed: bool | None, task: str | None) -> bool:
    """Whether a person asked for it: passed, failed (scored and not passed) or either, and of a task or of any."""
    right = passed is None or (episode.reward is not None and bool(episode.passed) == passed)
    return right and task in (None, episode.task)
