"""The moves that every plan of a run is made of: write a state, clear pods away, let go of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from halo_api.conditions import ConditionType, condition_of
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan import conditions, progress
from halo_operator.plan.attempts import Attempt
from halo_operator.plan.conditions import Facts
from halo_operator.plan.degraded import with_degraded
from halo_operator.plan.disk import with_pressure
from halo_operator.plan.world import Note, Plan, PodRef, PodView, RunWorld

RunPlan = Plan[TrainingJobStatus]
T = ConditionType

# A run that waits looks again this often even if no watch wakes it.
RECHECK_SECONDS = 60.0


def state(world: RunWorld, status: TrainingJobStatus, facts: Facts, now: datetime, *notes: Note) -> RunPlan:
    """Return the plan that writes this status: with notes only if what people act on changed, and later if only progress did."""
    generation, facts = world.meta.generation, with_degraded(world, status, with_pressure(world, status, facts), now)
    new = status.model_copy(
        update={
            "conditions": conditions.update(status.conditions, facts, generation, now, conditions.RUN_TYPES),
            "observed_generation": generation,
            "method": world.spec.method,
        }
    )
    old = world.status
    if new == old:
        return Plan()
    wait = progress.seconds_until_due(old, new, now)
    if wait > 0:
        return Plan(requeue_after=wait)
    saved = (
        new.checkpoints[-1:]
        if new.checkpoints[-1:] != old.checkpoints[-1:] and not (new.adapter or new.trained)
        else []
    )
    told = tuple(
        Note("Normal", "CheckpointSaved", f"step {c.step}, attempt {c.attempt}: {c.uri}")
        for c in saved
        if c.attempt == old.attempt
    )
    for type_ in (T.DISK_PRESSURE, T.ROLLOUT_DEGRADED):
        worse = condition_of(new.conditions, type_)
        if worse and condition_of(old.conditions, type_) is None:
            told += (Note("Warning", worse.reason, worse.message),)
    before, after = condition_of(old.conditions, T.READY), condition_of(new.conditions, T.READY)
    moved = before is None or after is None or (before.reason, before.message) != (after.reason, after.message)
    return Plan(status=new, notes=told + (notes if moved else ()))


def clear(found: Iterable[PodView]) -> RunPlan:
    """Stop pods that should not run (any more) and let go of those that ended; ended ones keep their logs."""
    views = tuple(found)
    return Plan(
        delete=tuple(p.ref for p in views if not p.ended and p.deleting_since is None),
        release=tuple(p.ref for p in views if p.ended and p.metered),
        requeue_after=RECHECK_SECONDS if any(not p.ended for p in views) else None,
    )


def merged(plan: RunPlan, other: RunPlan) -> RunPlan:
    """Return one plan that does both; the status is the first one's."""
    waits = [wait for wait in (plan.requeue_after, other.requeue_after) if wait is not None]
    return replace(
        plan,
        create=plan.create + other.create,
        delete=plan.delete + other.delete,
        release=plan.release + other.release,
        notes=plan.notes + other.notes,
        finalizer=plan.finalizer or other.finalizer,
        ask=plan.ask or other.ask,
        requeue_after=min(waits) if waits else None,
    )


def released(attempt: Attempt) -> tuple[PodRef, ...]:
    """Return the pods whose times and outcome the status keeps from now on."""
    return tuple(p.ref for p in attempt.pods if p.metered)
