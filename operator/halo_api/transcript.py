"""Sampled episodes as a person reads them: a line of JSON each, in a file of each step below an attempt's folder."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from halo_api.base import ApiModel

EPISODES_FOLDER = "episodes"
# A line that is longer is none: an episode of 262,144 tokens as text is far below it.
LINE_BYTES = 8 << 20


class TurnSeen(ApiModel):
    """One sampled answer, but for its tokens."""

    policy: int | None = None
    server: int | None = None
    tokens: int | None = None
    finish: str | None = None


class EpisodeSeen(ApiModel):
    """One episode. What else a line says is kept for whoever reads the file."""

    model_config = ConfigDict(extra="allow")

    task: str
    sample: int = 0
    step: Annotated[
        int | None, Field(description="The step that it was sampled for; unset: the file's name says it.")
    ] = None
    # None: not scored, and `failure` says why.
    reward: float | None = None
    passed: bool | None = None
    failure: str | None = None
    detail: str = ""
    truncated: bool = False
    checks: dict[str, bool] = Field(default_factory=dict)
    reason: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    turns: tuple[TurnSeen, ...] = ()
    seconds: float = 0.0


def step_file(step: int) -> str:
    """Return the name of the file of a step's episodes."""
    return f"step-{step}.jsonl"


def step_of(name: str) -> int | None:
    """Return which step's file has this name, if one has."""
    found = re.fullmatch(r"step-([1-9][0-9]{0,8})\.jsonl", name)
    return int(found[1]) if found else None


def seen(line: str | bytes) -> EpisodeSeen | None:
    """Read a line; None of what is none, such as one that a lost node cut."""
    try:
        return EpisodeSeen.model_validate_json(line)
    except ValidationError:
        return None


def is_wanted(episode: EpisodeSeen, passed: bool | None, task: str | None) -> bool:
    """Whether a person asked for it: passed, failed (scored and not passed) or either, and of a task or of any."""
    right = passed is None or (episode.reward is not None and bool(episode.passed) == passed)
    return right and task in (None, episode.task)
