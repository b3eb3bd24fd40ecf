"""What a trainer and its environment workers say to each other: a JSON object a line, a request and then its answer.

    -> {"settings": {...}, "limits": {...}}           once, the first line
    -> {"do": "open", "session": 7, "task": {...}}     <- {"value": {"messages": [...], "tools": [...]}}
    -> {"do": "call", "session": 7, "name": "run_sql", "arguments": {...}}    <- {"value": {"content": "..."}}
    -> {"do": "score", "session": 7, "answer": "..."}  <- {"value": {"reward": 1.0, ...}}
    -> {"do": "close", "session": 7}                   <- {"value": null}
An answer is {"failed": "a sentence"} where the environment failed; the session is over then.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from halo_trainer.environments.base import Observation, Opening, Score, Task

# Of one line, in bytes: a task of the longest line that a data set may have, and what its session says.
LONGEST_LINE = 16 << 20


@dataclass(frozen=True)
class WorkerLimits:
    """What a worker process may take; nothing it does raises them again."""

    # Of one request.
    cpu_seconds: int = 60
    memory_bytes: int = 2 << 30
    open_files: int = 64


def task_to_json(task: Task) -> dict[str, Any]:
    """Return a task as it crosses."""
    return {"id": task.id, "environment": task.environment, "payload": task.payload, "tags": list(task.tags)}


def task_of(value: dict[str, Any]) -> Task:
    """Return a task that crossed."""
    return Task(value["id"], value["environment"], value["payload"], tuple(value["tags"]))


def opening_of(value: dict[str, Any]) -> Opening:
    """Return an opening that crossed."""
    return Opening(tuple(value["messages"]), tuple(value["tools"]))


def observation_of(value: dict[str, Any]) -> Observation:
    """Return an observation that crossed."""
    return Observation(str(value["content"]))


def score_of(value: dict[str, Any]) -> Score:
    """Return a score that crossed."""
    return Score(float(value["reward"]), bool(value["passed"]), str(value["reason"]), dict(value["checks"]))


def to_json(value: Opening | Observation | Score | None) -> Any:
    """Return what a session answered as it crosses."""
    return None if value is None else asdict(value)
