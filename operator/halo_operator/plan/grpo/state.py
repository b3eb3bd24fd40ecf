"""Writes a state of a GrpoRun: its conditions, and events where what people act on changed."""

from __future__ import annotations

from datetime import datetime

from halo_api.conditions import ConditionType, condition_of
from halo_api.grpo_status import GrpoRunStatus
from halo_operator.plan import conditions
from halo_operator.plan.conditions import Facts
from halo_operator.plan.world import Meta, Note, Plan

GrpoPlan = Plan[GrpoRunStatus]
T = ConditionType


def state(meta: Meta, old: GrpoRunStatus, status: GrpoRunStatus, facts: Facts, now: datetime, *notes: Note) -> GrpoPlan:
    """Return the plan that writes this status, unless it stands there already; with notes if what people act on changed."""
    new = status.model_copy(
        update={
            "conditions": conditions.update(status.conditions, facts, meta.generation, now, conditions.RUN_TYPES),
            "observed_generation": meta.generation,
        }
    )
    if new == old:
        return Plan()
    before, after = condition_of(old.conditions, T.READY), condition_of(new.conditions, T.READY)
    moved = before is None or after is None or (before.reason, before.message) != (after.reason, after.message)
    return Plan(status=new, notes=notes if moved else ())
