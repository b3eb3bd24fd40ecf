"""The hold of a GrpoRun: its whole commitment on the wallet before anything starts, at the rates of that moment."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from halo_api.conditions import ConditionType, Reason, condition_of
from halo_api.grpo_status import GrpoRunStatus
from halo_api.ledger import Rate
from halo_api.workspace import WorkspaceHold
from halo_operator.plan import conditions
from halo_operator.plan.claim import at_rate, mark, pending_words, quoted_in, rate_terms, run_ref
from halo_operator.plan.grpo.clamp import resolve
from halo_operator.plan.grpo.commitment import committed, rates
from halo_operator.plan.grpo.estimate import grpo_quote
from halo_operator.plan.grpo.state import GrpoPlan, state
from halo_operator.plan.grpo.world import GrpoWorld
from halo_operator.plan.money_moves import SLOW_HOLD_SECONDS
from halo_operator.plan.moves import RECHECK_SECONDS
from halo_operator.plan.names import HOLD_FINALIZER
from halo_operator.plan.wishes import Ended, Wanted
from halo_operator.plan.world import GpuEntry, Meta, Note, Plan

T = ConditionType
# Provisioning, and the user's own compute, are of no class until they are there.
ANY_CLASS = "any"


def held_for(world: GrpoWorld) -> WorkspaceHold | None:
    """Return the hold that the Workspace has open for the run."""
    return world.catalog.workspace.status.holds.get(world.meta.uid)


def on_its_terms(world: GrpoWorld) -> GrpoWorld:
    """Return the world with the price and weight that the run's hold froze: they may have changed since it was placed."""
    hold = held_for(world)
    if hold is None or hold.rate.usd_per_hour is None:
        return world
    found = [
        GpuEntry(gpu.name, at_rate(gpu.spec, hold.rate).model_copy(update={"byo": False}))
        for gpu in world.catalog.gpus
        if gpu.name == hold.rate.gpu_class
    ]
    return replace(world, catalog=replace(world.catalog, gpus=tuple(found))) if found else world


def wanted_of(world: GrpoWorld) -> Wanted | None:
    """Return what is held for the run; None while nothing prices it, or where it costs nothing."""
    found, wallet = committed(world.spec, world.catalog.gpus), world.catalog.workspace.spec.wallet
    if found is None or found.total == 0 or wallet is None:
        return None
    return Wanted(
        run=run_ref(world.meta),
        created_at=world.created_at,
        unit="USD",
        amount=found.total,
        rate=rate_of(world),
        quoted=quoted_in("USD", grpo_quote(world, resolve(world.spec))),
    )


def rate_of(world: GrpoWorld) -> Rate:
    """Return the rate that GPU time is charged at: of the class and region asked for, or the highest one of any."""
    wanted = world.spec.platform_gpu
    if wanted is not None:
        gpu = next(gpu for gpu in world.catalog.gpus if gpu.name == wanted.gpu_type)
        return rate_terms(gpu.name, gpu.spec, wanted.region)
    if not world.spec.auto_provision:
        return Rate(gpu_class=ANY_CLASS, h100_equivalent="1")
    gpu = max(world.catalog.gpus, key=lambda entry: max(rates([entry]), default=0))
    return rate_terms(gpu.name, gpu.spec)


def reserve(world: GrpoWorld, wanted: Wanted, now: datetime) -> GrpoPlan:
    """Ask the Workspace for the hold; the run's finalizer is there before anything is held."""
    asking: GrpoPlan = Plan(finalizer=mark(world.meta), ask=wanted, requeue_after=SLOW_HOLD_SECONDS)
    if world.asked_seconds < SLOW_HOLD_SECONDS:
        return asking
    words = pending_words(wanted, world.catalog.workspace)
    status = world.status.model_copy(update={"waiting": words})
    facts, note = conditions.hold_pending(words), Note("Normal", Reason.HOLD_PENDING, words)
    plan = state(world.meta, world.status, status, facts, now, note)
    return replace(plan, finalizer=asking.finalizer, ask=wanted, requeue_after=RECHECK_SECONDS)


def settle(meta: Meta, status: GrpoRunStatus, held: WorkspaceHold | None, *, asked: bool) -> GrpoPlan:
    """Have the hold of a run that is over, or goes, released, with or without the finalizer; once none is open, the run may go.

    What was asked and is not decided is taken back first: it would be held for a run that lets go of nothing any more.
    """
    if held is None and not asked:
        return Plan(finalizer="remove") if HOLD_FINALIZER in meta.finalizers else Plan()
    failed = condition_of(status.conditions, T.FAILED)
    outcome = failed.reason if failed and failed.status == "True" else Reason.CANCELLED
    # Nothing has run: no version trains GrpoRuns yet.
    return Plan(ask=Ended(run_ref(meta), 0, 0, outcome, judge_micro_usd=0), requeue_after=RECHECK_SECONDS)
