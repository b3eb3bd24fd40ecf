"""The interface of every task environment: the tasks it has, and the sessions that episodes run in.

A session lives in an environment worker, a process apart, so that a hanging or dying environment costs one episode and
never the run. Everything that crosses is JSON. A session is deterministic: the same task and the same calls give the same
observations and the same score.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Task:
    """One line of an RLVR data set: what an episode is to solve. `payload` is the environment's own."""

    id: str
    environment: str
    payload: dict[str, Any]
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Opening:
    """How an episode begins: chat messages, and tools as OpenAI function schemas, if it has any."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Observation:
    """What a tool call gives back to the model; an error of the call is text too, for the model to read."""

    content: str


@dataclass(frozen=True)
class Score:
    """What an episode is worth. A wrong, hostile or endless answer is scored: 0 with the reason. Never raise for one."""

    # 0 to 1.
    reward: float
    passed: bool
    reason: str
    checks: dict[str, bool] = field(default_factory=dict)


class EnvironmentFailed(Exception):
    """The environment itself failed, and the answer can't be blamed: the episode stays unscored."""


class Session(Protocol):
    """One episode of one task."""

    def open(self) -> Opening:
        """Return how the episode begins."""

    def call(self, name: str, arguments: dict[str, Any]) -> Observation:
        """Do one tool call of the model's."""

    def score(self, answer: str) -> Score:
        """Score the model's last answer, and with it the episode."""

    def close(self) -> None:
        """Let go of what the session holds."""


class Environment(Protocol):
    """A kind of task, with the recipe's settings of it."""

    def check(self, payload: dict[str, Any]) -> None:
        """Raise ValueError, in one sentence that says the field, what was found and what would do, for a task that is none."""

    def session(self, task: Task) -> Session:
        """Begin an episode."""
