"""Reads one attempt of a run off its pods: still coming, running, or ended, and how."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from halo_api.conditions import Reason
from halo_api.report import Outcome
from halo_api.run_status import Topology
from halo_operator.plan.world import PodView

# Only the first pod has checkpoints, and knows what its budget leaves.
AT_BUDGET = (Reason.BUDGET_REACHED, Reason.BUDGET_BEFORE_FIRST_CHECKPOINT)


@dataclass(frozen=True)
class Attempt:
    """The pods of one attempt, and what they say together: those that train, and those that were its rollout servers."""

    number: int
    nodes: int
    trainers: tuple[PodView, ...]
    servers: int = 0
    # In the order of server and incarnation; those that were replaced too, which stay until the attempt is closed.
    rollouts: tuple[PodView, ...] = ()

    @property
    def pods(self) -> tuple[PodView, ...]:
        """Every pod of it: all of them have GPUs."""
        return self.trainers + self.rollouts

    @property
    def first(self) -> tuple[PodView, ...]:
        """The pods that it began with: of each server the earliest that found a node, else the earliest."""
        found: dict[int, PodView] = {}
        for pod in self.rollouts:
            if pod.rank not in found or (found[pod.rank].bound_at is None and pod.bound_at):
                found[pod.rank] = pod
        return self.trainers + tuple(found.values())

    @property
    def complete(self) -> bool:
        """Whether every pod was made."""
        trainers, servers = {pod.rank for pod in self.trainers}, {pod.rank for pod in self.rollouts}
        return trainers >= set(range(self.nodes)) and servers >= set(range(self.servers))

    @property
    def bound_at(self) -> datetime | None:
        """When the last pod was bound: metering starts here. Who replaces another comes later, and moves nothing."""
        if not self.complete or any(pod.bound_at is None for pod in self.first):
            return None
        return max(pod.bound_at for pod in self.first if pod.bound_at)

    @property
    def finished_at(self) -> datetime | None:
        """When the last container ended, never before the start."""
        times = [pod.finished_at for pod in self.pods if pod.finished_at]
        if not self.ended or not times:
            return None
        return max([*times, *([self.bound_at] if self.bound_at else [])])

    @property
    def running(self) -> bool:
        """Whether every pod's container runs, or did: one may end before its peers, which is no failure to start."""
        servers = {pod.rank for pod in self.rollouts if pod.running or pod.ended}
        trains = all(pod.running or pod.ended for pod in self.trainers)
        return self.complete and trains and servers >= set(range(self.servers))

    @property
    def ended(self) -> bool:
        """Whether no pod of it can run any more."""
        return bool(self.pods) and all(pod.ended for pod in self.pods)

    @property
    def trained(self) -> bool:
        """Whether a pod that trains has ended: none is left that would sample."""
        return any(pod.ended for pod in self.trainers)

    @property
    def blocked(self) -> PodView | None:
        """The first pod that can't start, if any; who replaces another holds up nobody."""
        return next((pod for pod in self.pods if pod.blocked and pod.incarnation == 1), None)

    @property
    def failure(self) -> Outcome | None:
        """How it failed: the user's own error before infrastructure's, and what comes of a peer's end behind its cause.

        The end of a rollout server is no failure of the attempt: it is replaced, and when that is over, the attempt is told so.
        """
        failures = [
            pod.outcome
            for pod in self.trainers
            if pod.outcome and pod.outcome.result == "Failed" and (pod.rank == 0 or pod.outcome.reason not in AT_BUDGET)
        ]
        return min(
            failures,
            key=lambda outcome: (
                outcome.retriable,
                outcome.reason == Reason.INTERRUPTED,
                outcome.reason == Reason.RANK_LOST,
            ),
            default=None,
        )

    @property
    def success(self) -> Outcome | None:
        """The first pod's outcome, when every pod that trains succeeded and nothing runs any more."""
        if not self.ended or not self.complete or self.failure:
            return None
        return self.trainers[0].outcome


def attempt_of(number: int, nodes: int, pods: tuple[PodView, ...], servers: int = 0) -> Attempt:
    """Return the attempt of that number."""
    mine = [p for p in pods if p.attempt == number]
    trainers = sorted((p for p in mine if p.role == "trainer"), key=lambda p: p.rank)
    rollouts = sorted((p for p in mine if p.role == "rollout"), key=lambda p: (p.rank, p.incarnation))
    return Attempt(number, nodes, tuple(trainers), servers, tuple(rollouts))


def attempt_in(layout: Topology | None, number: int, pods: tuple[PodView, ...]) -> Attempt:
    """Return the attempt of that number of a run that is laid out so."""
    if layout is None:
        return attempt_of(number, 1, pods)
    return attempt_of(number, layout.nodes, pods, len(layout.rollout))
