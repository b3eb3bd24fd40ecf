"""Reads one attempt of a run off its pods: still coming, running, or ended, and how."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from halo_api.conditions import Reason
from halo_api.report import Outcome
from halo_operator.plan.world import PodView

# Only the first pod has checkpoints, and knows what its budget leaves.
AT_BUDGET = (Reason.BUDGET_REACHED, Reason.BUDGET_BEFORE_FIRST_CHECKPOINT)


@dataclass(frozen=True)
class Attempt:
    """The pods of one attempt, and what they say together."""

    number: int
    nodes: int
    pods: tuple[PodView, ...]

    @property
    def complete(self) -> bool:
        """Whether every pod was made."""
        return {pod.rank for pod in self.pods} >= set(range(self.nodes))

    @property
    def bound_at(self) -> datetime | None:
        """When the last pod was bound: metering starts here."""
        if not self.complete or any(pod.bound_at is None for pod in self.pods):
            return None
        return max(pod.bound_at for pod in self.pods if pod.bound_at)

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
        return self.complete and all(pod.running or pod.ended for pod in self.pods)

    @property
    def ended(self) -> bool:
        """Whether no pod of it can run any more."""
        return bool(self.pods) and all(pod.ended for pod in self.pods)

    @property
    def blocked(self) -> PodView | None:
        """The first pod that can't start, if any."""
        return next((pod for pod in self.pods if pod.blocked), None)

    @property
    def failure(self) -> Outcome | None:
        """How it failed: the user's own error before infrastructure's, and what comes of a peer's end behind its cause."""
        failures = [
            pod.outcome
            for pod in self.pods
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
        """The first pod's outcome, when every pod succeeded."""
        if not self.ended or not self.complete or self.failure:
            return None
        return self.pods[0].outcome


def attempt_of(number: int, nodes: int, pods: tuple[PodView, ...]) -> Attempt:
    """Return the attempt of that number."""
    mine = tuple(sorted((p for p in pods if p.role == "trainer" and p.attempt == number), key=lambda p: p.rank))
    return Attempt(number, nodes, mine)
