"""The rollout servers of an attempt: one that ends is replaced alone, as long as there is somebody to sample for.

Which server was replaced how often is in the status before the next pod exists, so that no incarnation is ever two pods, and
nothing of it depends on what this process remembers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from halo_api.conditions import Reason
from halo_api.report import Outcome
from halo_api.rollouts import Servers
from halo_api.run_status import AttemptRecord, Frozen, Topology
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan import progress, stopping
from halo_operator.plan.attempts import AT_BUDGET, Attempt
from halo_operator.plan.rollout_pods import addresses, rollout_pods
from halo_operator.plan.world import Meta, Object, PodView, RunWorld

MOST_REPLACED = 3


@dataclass(frozen=True)
class Tended:
    """What the servers of an attempt need: the status that says who is replaced, the pods to make, or why it is hopeless."""

    status: TrainingJobStatus
    create: tuple[Object, ...] = ()
    lost: Outcome | None = None


def incarnations_of(status: TrainingJobStatus, layout: Topology | None) -> tuple[int, ...]:
    """Return of each server which of its pods in the current attempt is the current one."""
    replaced = _replaced(status)
    return tuple(1 + replaced.count(one.server) for one in (layout.rollout if layout else ()))


def servers_of(meta: Meta, status: TrainingJobStatus) -> Servers | None:
    """Return where the servers of the current attempt are; None of a run that has none."""
    if status.topology is None or not status.topology.rollout:
        return None
    number = status.attempt or 1
    return Servers(attempt=number, servers=addresses(meta, number, incarnations_of(status, status.topology)))


def current(attempt: Attempt, incarnations: tuple[int, ...]) -> tuple[PodView | None, ...]:
    """Return the current pod of each server, if it is there."""
    found = {(pod.rank, pod.incarnation): pod for pod in attempt.rollouts}
    return tuple(found.get((server, incarnation)) for server, incarnation in enumerate(incarnations))


def are_needed(world: RunWorld, status: TrainingJobStatus, attempt: Attempt, now: datetime) -> bool:
    """Whether somebody still samples from the servers: the trainers run, and nothing has told them to end."""
    record = progress.record_of(status, attempt.number)
    limit, bound_at = stopping.limit_of(world.spec, status), attempt.bound_at
    stops = limit is not None and bound_at is not None and now >= limit.stop_at(bound_at)
    told = any(pod.deleting_since for pod in attempt.trainers)
    return not (world.spec.suspend or attempt.trained or told or stops or (record and record.reason))


def tended(world: RunWorld, status: TrainingJobStatus, frozen: Frozen, attempt: Attempt, now: datetime) -> Tended:
    """Replace the servers that have ended; say that the attempt is lost once that was done too often, or takes too long."""
    layout = status.topology
    if layout is None or not layout.rollout or not attempt.complete or not are_needed(world, status, attempt, now):
        return Tended(status)
    patience = world.environment.start_timeout_seconds
    for server, pod in enumerate(current(attempt, incarnations_of(status, layout))):
        if pod is not None and pod.ended and not _at_budget(pod):
            if len(_replaced(status)) >= MOST_REPLACED:
                return Tended(status, lost=_lost(f"{MOST_REPLACED} rollout servers were replaced", server, pod))
            status = _with_replaced(status, attempt, server)
        elif (pod is None or not pod.running) and (before := _before(attempt, server)) is not None:
            waited = (now - (before.finished_at or now)).total_seconds()
            if waited > patience:
                words = f"rollout server {server} could not be replaced within {patience} s"
                words += f" ({pod.blocked})" if pod and pod.blocked else ""
                return Tended(status, lost=_lost(words, server, before))
    incarnations = incarnations_of(status, layout)
    there = current(attempt, incarnations)
    if None not in there:
        return Tended(status)
    deadline = stopping.deadline_of(world.spec, status, attempt, None)
    wanted = rollout_pods(world.meta, frozen, layout, attempt.number, incarnations, deadline, world.environment)
    return Tended(status, tuple(child for child, pod in zip(wanted, there, strict=True) if pod is None))


def _before(attempt: Attempt, server: int) -> PodView | None:
    """Return the pod that was the server last, and has ended."""
    ended = [pod for pod in attempt.rollouts if pod.rank == server and pod.ended]
    return ended[-1] if ended else None


def _at_budget(pod: PodView) -> bool:
    return pod.outcome is not None and pod.outcome.reason in AT_BUDGET


def _lost(words: str, server: int, pod: PodView) -> Outcome:
    how = f"{pod.outcome.reason}: {pod.outcome.message}" if pod.outcome else "it is gone"
    return Outcome(
        result="Failed", reason=Reason.ROLLOUT_LOST, message=f"{words}; pod {pod.ref.name}, server {server}: {how}"
    )


def _replaced(status: TrainingJobStatus) -> list[int]:
    record = progress.record_of(status, status.attempt or 1)
    return record.replaced if record else []


def _with_replaced(status: TrainingJobStatus, attempt: Attempt, server: int) -> TrainingJobStatus:
    record = progress.record_of(status, attempt.number) or AttemptRecord(attempt=attempt.number)
    record = record.model_copy(update={"replaced": [*record.replaced, server]})
    others = [r for r in status.attempts if r.attempt != attempt.number]
    return status.model_copy(update={"attempts": sorted([*others, record], key=lambda r: r.attempt)})
