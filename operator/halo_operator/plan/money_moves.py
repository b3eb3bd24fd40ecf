"""The moves of a run's money: have its budget held, have more held, be charged at the end, and be let go of."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from halo_api.conditions import ConditionType, Reason, condition_of, is_true
from halo_api.run_status import Usage
from halo_api.training_job import TrainingJobStatus
from halo_api.workspace import WorkspaceHold
from halo_operator.plan import claim, conditions, money, progress
from halo_operator.plan.attempts import Attempt, attempt_in
from halo_operator.plan.conditions import Fact
from halo_operator.plan.metering import gpus_of, metered
from halo_operator.plan.moves import RECHECK_SECONDS, RunPlan, clear, merged, state
from halo_operator.plan.names import HOLD_FINALIZER
from halo_operator.plan.wishes import Wanted
from halo_operator.plan.world import Meta, Note, Plan, PodView, RunWorld, WorkspaceEntry

T = ConditionType
# A hold is decided within moments; one that takes longer is worth a status of its own.
SLOW_HOLD_SECONDS = 5.0


def reserve(world: RunWorld, wanted: Wanted, now: datetime) -> RunPlan:
    """Ask the Workspace for the run's hold; its finalizer is there before anything is held."""
    asking: RunPlan = Plan(finalizer=claim.mark(world.meta), ask=wanted, requeue_after=SLOW_HOLD_SECONDS)
    if world.asked_seconds < SLOW_HOLD_SECONDS:
        return asking
    words = claim.pending_words(wanted, world.catalog.workspace)
    status = world.status.model_copy(update={"waiting": words})
    plan = state(world, status, conditions.hold_pending(words), now, Note("Normal", Reason.HOLD_PENDING, words))
    return replace(plan, finalizer=asking.finalizer, ask=wanted, requeue_after=RECHECK_SECONDS)


def kept(world: RunWorld, status: TrainingJobStatus) -> RunPlan:
    """Put the finalizer back on a run that holds something: an uninstall took it off, and this is the operator after it."""
    lost = status.hold is not None and HOLD_FINALIZER not in world.meta.finalizers
    return Plan(finalizer="add") if lost else Plan()


def raised(world: RunWorld, status: TrainingJobStatus) -> tuple[TrainingJobStatus, RunPlan]:
    """Return the status with the higher hold of a raised budget once it is placed; until then what to ask, and to say.

    The deadline moves with the status: never before the difference is held.
    """
    wanted, book = claim.raise_of(world), claim.held_for(world)
    if wanted is None or book is None or status.hold is None:
        return status, Plan()
    _, has = claim.amount_of(status.hold)
    if money.micro(book.amount) > has:
        hold = claim.as_held(world.meta.uid, book, status.hold)
        words = f"{claim.words_of(hold)} are held, {money.usd(has)} before; the run stops there"
        status = status.model_copy(update={"hold": hold})
        return told(status, ("True", Reason.BUDGET_HELD, f"{claim.words_of(hold)} are held")), Plan(
            notes=(Note("Normal", "BudgetRaised", words),)
        )
    short = shortfall(world.catalog.workspace, wanted, wanted.amount - has)
    if short is None:
        return status, Plan(ask=wanted, requeue_after=RECHECK_SECONDS)
    # What is not free is not asked for: the Workspace would answer at once, and wake the run to ask again at once.
    waits: RunPlan = Plan(requeue_after=RECHECK_SECONDS)
    words = (
        f"spec.budget.h100Hours: found {money.plain(money.decimal_of(world.spec.budget.h100_hours if world.spec.budget else 0))}, "
        f"for which {money.usd(wanted.amount - has)} {claim.UNIT_WORDS[wanted.unit]} more must be held, but {short}; "
        f"the run goes on with the {money.usd(has)} that it has, and asks again"
    )
    before = condition_of(status.conditions, T.RESERVED)
    status = told(status, ("True", Reason.BUDGET_HELD, words))
    if before is None or before.message != words:
        waits = replace(waits, notes=(Note("Warning", Reason.INSUFFICIENT_FUNDS, words),))
    return status, waits


def shortfall(workspace: WorkspaceEntry, wanted: Wanted, more: int) -> str | None:
    """Say why the Workspace would not hold so much more; None where it would."""
    if workspace.deleting:
        return "its Workspace is being deleted and holds nothing new"
    free = workspace.free_usd if wanted.unit == "USD" else workspace.free_h100_hours
    if free is None:
        return f"its Workspace has no {'wallet' if wanted.unit == 'USD' else 'allocation'} any more"
    return f"{money.plain(max(free, free * 0))} are free" if more > free * money.MICRO else None


def told(status: TrainingJobStatus, fact: Fact) -> TrainingJobStatus:
    """Return the status with another word about what is reserved."""
    found = [
        c.model_copy(update={"status": fact[0], "reason": fact[1], "message": fact[2]}) if c.type == T.RESERVED else c
        for c in status.conditions
    ]
    return status.model_copy(update={"conditions": found})


def settle(world: RunWorld) -> RunPlan:
    """Have the hold of a run that is over become its charge; once no hold is open, the run may go."""
    return settled(world.meta, world.status, claim.held_for(world), asked=world.asked_seconds > 0)


def settled(meta: Meta, status: TrainingJobStatus, held: WorkspaceHold | None, *, asked: bool) -> RunPlan:
    """The same for a run whose spec can't be read; with or without the finalizer, which an uninstall takes off.

    What was asked and is not decided may be placed at this moment; its end, asked instead, is decided after that.
    """
    if held is None and not asked:
        return Plan(finalizer="remove") if HOLD_FINALIZER in meta.finalizers else Plan()
    return Plan(ask=claim.ended_of(meta, status), requeue_after=RECHECK_SECONDS)


def leave_unread(
    meta: Meta,
    status: TrainingJobStatus,
    pods: tuple[PodView, ...],
    held: WorkspaceHold | None,
    now: datetime,
    *,
    asked: bool,
) -> RunPlan:
    """Let a run go whose spec can't be read: what it used is told by its status and its pods, which stay until it is charged."""
    plan = clear(pods)
    if any(not p.ended for p in pods):
        return replace(plan, release=()) if held else plan
    layout = status.topology
    mine = attempt_in(layout, status.attempt or 1, tuple(p for p in pods if p.run_uid == meta.uid))
    if layout and (mine.pods or progress.record_of(status, mine.number)):
        status = progress.with_record(status, mine, Reason.CANCELLED, "the run was deleted", given_up=now)
        status = metered(status, mine, gpus_of(layout))
    return merged(replace(plan, release=()) if held else plan, settled(meta, status, held, asked=asked))


def charged_words(status: TrainingJobStatus) -> str | None:
    """Say what is charged; None where nothing was held."""
    found = claim.settlement_of(status)
    if found is None:
        return None
    unit = claim.UNIT_WORDS[found.unit]
    over = f"; {found.overrun} used beyond it are not charged" if found.overrun != "0" else ""
    return f"{found.charged} of {found.held} {unit} are charged, {found.released} released{over}"


def concluded(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status of a run that is over with what its hold comes to."""
    found = claim.settlement_of(status)
    if found is None:
        return status
    usage = status.usage or Usage(h100_hours="0")
    return status.model_copy(update={"usage": usage.model_copy(update={"settlement": found})})


def leave(world: RunWorld, now: datetime) -> RunPlan:
    """Let a run go that is deleted: its pods stop, and what they used is in its status before they, and then it, are let go."""
    plan = clear(world.pods)
    if HOLD_FINALIZER not in world.meta.finalizers:
        return plan
    over = is_true(world.status.conditions, T.COMPLETE) or is_true(world.status.conditions, T.FAILED)
    if over or world.status.frozen is None:
        return merged(plan, settle(world))
    if any(not p.ended for p in world.pods):
        # None is let go of before all have ended: their times together are what is charged.
        return replace(plan, release=())
    status, attempt = world.status, current(world)
    if attempt.pods or progress.record_of(status, attempt.number):
        status = progress.with_record(status, attempt, Reason.CANCELLED, "the run was deleted", given_up=now)
        status = metered(status, attempt, world.spec.gpu.count)
    status = concluded(status)
    words = charged_words(status)
    facts = conditions.cancelled("the run was deleted before its end") | conditions.settled(words)
    ended = state(world, status, facts, now, Note("Normal", Reason.CANCELLED, words or "the run was deleted"))
    return replace(ended, release=plan.release)


def current(world: RunWorld) -> Attempt:
    """Return the run's current attempt."""
    return attempt_in(world.status.topology, world.status.attempt or 1, world.pods)
