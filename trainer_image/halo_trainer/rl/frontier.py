"""How far a run's sampling has been trained, and what was sampled beyond: what a checkpoint of online RL keeps beside the rest.

No generator state is in it: tasks, draws and dropout are functions of the seed, the place in the stream, the step and the rank.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halo_trainer.environments.base import Task
from halo_trainer.rollouts.engine import Group, Wanted
from halo_trainer.rollouts.episode import Episode, Turn

FRONTIER, GROUPS = "rollouts.json", "groups.json"


@dataclass(frozen=True)
class Frontier:
    """`cursor`: the place in the stream of the first task that no trained step took; `policy`: the version that sampled last.

    `episodes` and `sampled_tokens` count what was sampled for trained steps, dropped groups too.
    """

    cursor: int = 0
    policy: int = 0
    episodes: int = 0
    sampled_tokens: int = 0


def frontier_files(frontier: Frontier, groups: Sequence[Group]) -> Mapping[str, bytes]:
    """Return the files of a checkpoint. `groups` are the replay buffer: sampled with that policy, and not trained yet."""
    told = json.dumps(dataclasses.asdict(frontier), sort_keys=True).encode()
    kept = sorted(groups, key=lambda group: group.wanted.place)
    return {FRONTIER: told, GROUPS: json.dumps([dataclasses.asdict(each) for each in kept], default=_plain).encode()}


def frontier_of(frontier: bytes, groups: bytes) -> tuple[Frontier, list[Group]]:
    """Return what those files say."""
    return Frontier(**json.loads(frontier)), [_group(each) for each in json.loads(groups)]


def _plain(value: Any) -> Any:
    if isinstance(value, array):
        return value.tolist()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(type(value).__name__)


def _group(told: dict[str, Any]) -> Group:
    wanted = told["wanted"]
    task = Task(**(wanted["task"] | {"tags": tuple(wanted["task"]["tags"])}))
    scored, unscored = (tuple(map(_episode, told[name])) for name in ("episodes", "unscored"))
    return Group(Wanted(task, wanted["round"], wanted["place"]), scored, unscored)


def _episode(told: dict[str, Any]) -> Episode:
    turns = tuple(map(_turn, told["turns"]))
    return Episode(**(told | {"turns": turns, "messages": tuple(told["messages"])}))


def _turn(told: dict[str, Any]) -> Turn:
    routes = told["routes"]
    return Turn(
        **(
            told
            | {"prompt": array("i", told["prompt"]), "answer": array("i", told["answer"])}
            | {"log_probs": array("d", told["log_probs"])}
            | {"routes": None if routes is None else base64.b64decode(routes)}
        )
    )
