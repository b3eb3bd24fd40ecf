"""Plans how an attempt ends that left no adapter: go on as the next attempt, give its GPUs back, or end the run."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from halo_api.conditions import ConditionType, Reason
from halo_api.report import Outcome
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan import conditions, progress, stopping
from halo_operator.plan.attempts import AT_BUDGET, Attempt, attempt_of
from halo_operator.plan.metering import metered
from halo_operator.plan.money_moves import charged_words, concluded
from halo_operator.plan.moves import RECHECK_SECONDS, RunPlan, clear, merged, released, state
from halo_operator.plan.pod_view import parse_time
from halo_operator.plan.world import Note, RunWorld

T = ConditionType

FIRST_RELAUNCH_DELAY = 10.0
LONGEST_RELAUNCH_DELAY = 300.0
GAVE_BACK = "GaveBack"


def wind_up(world: RunWorld, status: TrainingJobStatus, attempt: Attempt, outcome: Outcome, now: datetime) -> RunPlan:
    """End an attempt of which a pod failed: stop the others first, then decide."""
    status = progress.with_checkpoints(status, (p.outcome.checkpoint for p in attempt.pods if p.outcome))
    if not attempt.ended:
        return replace(
            state(world, status, conditions.abnormal(status.conditions), now),
            delete=tuple(p.ref for p in attempt.pods if not p.ended and p.deleting_since is None),
        )
    if world.spec.suspend and outcome.reason == Reason.INTERRUPTED:
        status = recorded(world, status, attempt, Reason.SUSPENDED, "suspended", now)
        status = status.model_copy(update={"attempt": attempt.number + 1})
        plan = pause(world, status, attempt_of(attempt.number + 1, attempt.nodes, (), attempt.servers), now)
        return replace(
            plan, release=released(attempt), delete=tuple(p.ref for p in attempt.pods if p.deleting_since is None)
        )
    if attempt.bound_at is None and outcome.reason in AT_BUDGET:
        # Its own clock ran out while it waited for the last pod: nothing of the budget is used.
        return give_back(world, status, attempt, now)
    return relaunch_or_fail(world, status, attempt, outcome, now)


def pause(world: RunWorld, status: TrainingJobStatus, attempt: Attempt, now: datetime) -> RunPlan:
    """Stop the pods; once they ended, the next attempt waits for spec.suspend to be false."""
    if any(not p.ended for p in attempt.pods):
        words = "stopping at the next step, with a checkpoint"
        return merged(state(world, status, conditions.working(Reason.RUNNING, words, {}), now), clear(attempt.pods))
    resume = progress.resume_from(status)
    words = f"suspended after step {resume.step}" if resume else "suspended before its first checkpoint"
    return state(
        world,
        status.model_copy(update={"waiting": None}),
        conditions.suspended(words),
        now,
        Note("Normal", Reason.SUSPENDED, words),
    )


def relaunch_or_fail(
    world: RunWorld, status: TrainingJobStatus, attempt: Attempt, outcome: Outcome, now: datetime
) -> RunPlan:
    """Go on as the next attempt after an infrastructure failure; end the run on the user's own."""
    if outcome.reason == Reason.BUDGET_REACHED:
        return out_of_budget(world, status, attempt, outcome.message, now)
    corrupt = outcome.reason == Reason.CHECKPOINT_CORRUPT and bool(status.checkpoints)
    if not outcome.retriable and not corrupt:
        return over(world, status, attempt, outcome.reason, outcome.message, now)
    if not stopping.can_go_on(world.spec, recorded(world, status, attempt, outcome.reason, outcome.message, now)):
        status = progress.without_last_checkpoint(status) if corrupt else status
        return out_of_budget(world, status, attempt, outcome.message, now)
    failures = (status.failures or 0) + 1
    if failures > world.spec.backoff_limit:
        words = f"{failures} attempts failed, spec.backoffLimit allows {world.spec.backoff_limit} relaunches; the last: {outcome.reason}: {outcome.message}"
        return over(world, status, attempt, Reason.BACKOFF_LIMIT_EXCEEDED, words, now)
    status = progress.without_last_checkpoint(status) if corrupt else status
    status = recorded(world, status, attempt, outcome.reason, outcome.message, now)
    status = status.model_copy(update={"attempt": attempt.number + 1, "failures": failures, "waiting": None})
    resume = progress.resume_from(status)
    words = (
        f"attempt {attempt.number} ended: {outcome.reason}: {outcome.message}; going on as attempt {attempt.number + 1}"
    )
    words += f" from step {resume.step}" if resume else " from the start"
    facts = conditions.working(
        Reason.STARTING,
        words,
        {T.RUNNING: ("False", Reason.RESTARTING, words), T.SCHEDULED: ("Unknown", Reason.RESTARTING, "")},
    )
    plan = state(world, status, facts, now, Note("Warning", "Relaunching", words))
    gone = tuple(p.ref for p in attempt.pods if p.deleting_since is None)
    return replace(
        plan, release=released(attempt), delete=gone, requeue_after=max(seconds_to_relaunch(status, now), 0.0)
    )


def give_back(world: RunWorld, status: TrainingJobStatus, attempt: Attempt, now: datetime) -> RunPlan:
    """Free the GPUs of an attempt that only some of its pods found: all or none."""
    limit = stopping.limit_of(world.spec, status)
    patience: float = world.environment.start_timeout_seconds
    patience = patience if limit is None else min(patience, limit.role_seconds)
    words = f"attempt {attempt.number} got only part of its GPUs within {patience:.0f} s and gives them back"
    status = recorded(world, status, attempt, GAVE_BACK, words, now)
    status = status.model_copy(update={"attempt": attempt.number + 1, "waiting": words})
    plan = state(world, status, conditions.working(Reason.QUEUED, words), now, Note("Warning", GAVE_BACK, words))
    return merged(replace(plan, requeue_after=RECHECK_SECONDS), clear(attempt.pods))


def over(
    world: RunWorld, status: TrainingJobStatus, attempt: Attempt, reason: Reason, message: str, now: datetime
) -> RunPlan:
    """End the run, and its attempt, without an adapter."""
    status = recorded(world, status, attempt, reason, message, now)
    return merged(failed(world, status, reason, message, now), clear(attempt.pods))


def failed(world: RunWorld, status: TrainingJobStatus, reason: Reason, message: str, now: datetime) -> RunPlan:
    """End a run whose attempts are closed without an adapter."""
    status = concluded(status).model_copy(update={"waiting": None})
    charged = charged_words(status)
    notes = [Note("Warning", reason, message), *([Note("Normal", "Charged", charged)] if charged else [])]
    return state(world, status, conditions.failed(reason, message) | conditions.settled(charged), now, *notes)


def recorded(
    world: RunWorld, status: TrainingJobStatus, attempt: Attempt, reason: str, message: str, now: datetime
) -> TrainingJobStatus:
    """Return the status with how the attempt ended, and with what it used counted for good."""
    status = progress.with_record(status, attempt, reason, message, given_up=now)
    return metered(status, attempt, world.spec.gpu.count)


def out_of_budget(world: RunWorld, status: TrainingJobStatus, attempt: Attempt, message: str, now: datetime) -> RunPlan:
    """End the attempt at the budget: it did not publish its checkpoint itself, so that a pod without GPUs does."""
    status = recorded(world, status, attempt, Reason.BUDGET_REACHED, message, now)
    if not status.checkpoints:
        return before_first_checkpoint(world, status, attempt, now)
    words = f"its budget is reached; the checkpoint of step {status.checkpoints[-1].step} is published"
    plan = state(
        world, status, conditions.working(Reason.PUBLISHING, words), now, Note("Normal", Reason.BUDGET_REACHED, words)
    )
    return merged(plan, clear(attempt.pods))


def before_first_checkpoint(world: RunWorld, status: TrainingJobStatus, attempt: Attempt, now: datetime) -> RunPlan:
    """End a run that its budget stopped before it had anything to keep."""
    words = (
        f"its budget is reached before the first checkpoint, due at step {min(world.spec.save_steps, world.spec.steps)}; "
        "apply it again under another name with a higher spec.budget.h100Hours or a lower spec.saveSteps"
    )
    return over(world, status, attempt, Reason.BUDGET_BEFORE_FIRST_CHECKPOINT, words, now)


def seconds_to_relaunch(status: TrainingJobStatus, now: datetime) -> float:
    """Return how long the next attempt still waits; none after a suspend."""
    last = progress.record_of(status, (status.attempt or 1) - 1)
    finished = parse_time(last.finished_at) if last else None
    if last is None or finished is None or last.reason == Reason.SUSPENDED:
        return 0.0
    delay = RECHECK_SECONDS if last.reason == GAVE_BACK else delay_after(status.failures or 0)
    return delay - (now - finished).total_seconds()


def delay_after(failures: int) -> float:
    """Return how long to wait after so many failures: not at all the first time, then 10 s, 20 s … up to five minutes."""
    return 0.0 if failures <= 1 else min(FIRST_RELAUNCH_DELAY * 2.0 ** (failures - 2), LONGEST_RELAUNCH_DELAY)
