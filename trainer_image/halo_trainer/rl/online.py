"""A run of online RL in memory, and what samples for it."""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor

from halo_api.rollouts import Policy
from halo_api.run_file import RlvrPlan, RunFile
from halo_trainer.environments.base import Task
from halo_trainer.rl.frontier import Frontier, frontier_files
from halo_trainer.rl.scoring import Scorer
from halo_trainer.rl.together import Together
from halo_trainer.rollouts.background import Scored
from halo_trainer.rollouts.engine import Group, Wanted
from halo_trainer.rollouts.fleet import Fleet, Published
from halo_trainer.run import Run


class Sampler(Protocol):
    """What samples for the run: the episode engine. Only the first process has one."""

    @property
    def fleet(self) -> Fleet: ...
    def publish(self, policy: Policy, stop: threading.Event | None = None) -> Published: ...
    def sample(self, wanted: Iterable[Wanted], stop: threading.Event | None = None) -> Iterator[Group]: ...
    def scored(self, prompts: Sequence[array[int]], tokens: int, stop: threading.Event | None = None) -> Scored: ...
    def hold(
        self,
        prompts: Sequence[array[int]],
        tokens: int,
        wrong: Callable[[list[float]], str | None],
        passed: Iterable[int],
        stop: threading.Event | None = None,
    ) -> None: ...
    def openings(self, tasks: Iterable[Task], most: int, stop: threading.Event | None = None) -> list[array[int]]: ...


class Source(NamedTuple):
    """Where episodes come from: the tasks of the data set, and who samples them."""

    tasks: Sequence[Task]
    sampler: contextlib.AbstractContextManager[Sampler]


# Makes it, in the first process alone, before anything large is loaded.
MakeSource = Callable[[RunFile, RlvrPlan, str, Path], Source]


@dataclass
class OnlineRun(Run):
    """A run of online RL."""

    rlvr: RlvrPlan
    scorer: Scorer
    # The LoRA that the run began with, on its device: the reference of KL. Unset: the recipe has none.
    reference: dict[str, Tensor] | None
    together: Together
    tasks: Sequence[Task] = ()
    sampler: Sampler | None = None
    frontier: Frontier = field(default_factory=Frontier)
    # Groups beyond the frontier, by their place in the stream: the replay buffer.
    groups: dict[int, Group] = field(default_factory=dict)
    # What every policy is held to the trainer on.
    prompts: list[array[int]] = field(default_factory=list)

    # Of the scored episodes of the last step.
    mean_reward: float | None = None

    @property
    def reward(self) -> float | None:
        return self.mean_reward

    def kept(self) -> Mapping[str, bytes]:
        return frontier_files(self.frontier, list(self.groups.values()))
