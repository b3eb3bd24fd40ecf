"""Plans how an attempt ends: publish its adapter, go on as the next attempt, give its GPUs back, or end the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from halo_api.conditions import ConditionType, Reason, condition_of
from halo_api.digests import files_digest
from halo_api.report import Outcome
from halo_api.run_status import AdapterRef, Frozen
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan import conditions, progress, stopping
from halo_operator.plan import pods as children
from halo_operator.plan.adapter import adapter, adapter_spec
from halo_operator.plan.attempts import AT_BUDGET, Attempt, attempt_of
from halo_operator.plan.conditions import Facts
from halo_operator.plan.metering import metered
from halo_operator.plan.money_moves import charged_words, concluded
from halo_operator.plan.moves import RECHECK_SECONDS, RunPlan, clear, merged, released, state
from halo_operator.plan.pod_view import parse_time
from halo_operator.plan.receipt import Known, statement_of
from halo_operator.plan.world import Note, Plan, PodView, RunWorld

T = ConditionType

FIRST_RELAUNCH_DELAY = 10.0
LONGEST_RELAUNCH_DELAY = 300.0
GAVE_BACK = "GaveBack"


def publish(
    world: RunWorld, status: TrainingJobStatus, frozen: Frozen, attempt: Attempt, outcome: Outcome, now: datetime
) -> RunPlan:
    """Make the Adapter, then say that the run is complete: trained to the end, or as far as its budget went."""
    made = outcome.adapter
    if made is None or files_digest(made.files) != made.digest:
        left = "no adapter" if made is None else f"an adapter whose digest {made.digest} is not that of its files"
        missing = Outcome(result="Failed", reason=Reason.CRASHED, message=f"the trainer ended well but left {left}")
        return relaunch_or_fail(world, status, attempt, missing, now)
    if world.catalog.adapter is not None and world.catalog.adapter.run_uid != world.meta.uid:
        words = (
            f"an Adapter named {world.meta.name} was made by another run meanwhile; this one's files lie at {made.uri}"
        )
        return over(world, status, attempt, Reason.ADAPTER_NAME_TAKEN, words, now)
    status = progress.with_checkpoints(status, (outcome.checkpoint,))
    reason = Reason.BUDGET_REACHED if outcome.reason == Reason.BUDGET_REACHED else Reason.SUCCEEDED
    if attempt.pods or progress.record_of(status, attempt.number):
        status = recorded(world, status, attempt, reason, "", now)
    status = concluded(status)
    words = f"adapter {world.meta.name} published after step {made.step} of {world.spec.steps}"
    words += ": its budget is reached" if reason == Reason.BUDGET_REACHED else ""
    status = status.model_copy(
        update={"adapter": AdapterRef(name=world.meta.name, uri=made.uri, digest=made.digest), "waiting": None}
    )
    if status.progress:
        done = {
            "step": made.step,
            "percent": 100 * made.step // world.spec.steps,
            "remaining_seconds": 0,
            "updated_at": conditions.stamp(now),
        }
        status = status.model_copy(update={"progress": status.progress.model_copy(update=done)})
    charged = charged_words(status)
    facts: Facts = {
        T.SCHEDULED: ("True", Reason.PODS_BOUND, ""),
        **conditions.succeeded(words, reason),
        **conditions.settled(charged),
    }
    notes = [Note("Normal", reason, words), *([Note("Normal", "Charged", charged)] if charged else [])]
    there = world.catalog.adapter
    if there is not None and there.receipt is not None:
        # Made just before a crash: its receipt was signed then, and is the one that counts.
        status = status.model_copy(update={"receipt": there.receipt})
    plan = replace(state(world, status, facts, now, *notes), release=released(attempt))
    if plan.status is None or there is not None:
        return plan
    spec = adapter_spec(world.meta, frozen, made)
    known = Known(world.environment.operator_version, {"trainer": images(world.pods)})
    said = statement_of(world.meta, world.spec, plan.status, spec, known)
    return replace(plan, first=(adapter(world.meta, spec),), statement=said)


def images(found: Iterable[PodView]) -> tuple[str, ...]:
    """Return the images that the run's pods ran, as their nodes resolved them."""
    return tuple(sorted({pod.image_id for pod in found if pod.image_id}))


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
        plan = pause(world, status, attempt_of(attempt.number + 1, attempt.nodes, ()), now)
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
    """End the run without an adapter."""
    status = concluded(recorded(world, status, attempt, reason, message, now))
    status = status.model_copy(update={"waiting": None})
    charged = charged_words(status)
    notes = [Note("Warning", reason, message), *([Note("Normal", "Charged", charged)] if charged else [])]
    plan = state(world, status, conditions.failed(reason, message) | conditions.settled(charged), now, *notes)
    return merged(plan, clear(attempt.pods))


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


def at_budget(world: RunWorld, status: TrainingJobStatus, frozen: Frozen, attempt: Attempt, now: datetime) -> RunPlan:
    """Publish the last checkpoint of a run whose budget is used up, with a pod that needs no GPU and is not billed."""
    if not status.checkpoints:
        return before_first_checkpoint(world, status, attempt, now)
    found = sorted((p for p in world.pods if p.role == "publish"), key=lambda p: p.rank)
    last = found[-1] if found else None
    # One that is damaged, or was tidied away before the trainer heard that it counts, leaves it to the one before.
    damaged = sum(1 for p in found if p.outcome and p.outcome.reason == Reason.CHECKPOINT_CORRUPT)
    left = status.model_copy(update={"checkpoints": status.checkpoints[: max(len(status.checkpoints) - damaged, 0)]})
    resume = progress.resume_from(left)
    step = resume.step if resume else status.checkpoints[0].step
    words = f"its budget is reached; the checkpoint of step {step} is published"
    if last and not last.ended:
        status = status.model_copy(update={"waiting": None})
        return state(world, status, conditions.working(Reason.PUBLISHING, blocked_words(last, words)), now)
    if last and last.outcome and last.outcome.result == "Succeeded":
        reached = last.outcome.model_copy(update={"reason": Reason.BUDGET_REACHED})
        return merged(publish(world, status, frozen, attempt, reached, now), clear(found))
    if resume is None or (last and len(found) - damaged > world.spec.backoff_limit):
        said = (last.outcome if last else None) or Outcome(result="Failed", reason=Reason.CRASHED)
        words = f"its budget is reached, but the checkpoint of step {step} could not be published: {said.message}"
        return merged(over(world, status, attempt, said.reason, words, now), clear(found))
    plan = state(
        world, status, conditions.working(Reason.PUBLISHING, words), now, Note("Normal", Reason.BUDGET_REACHED, words)
    )
    # Not their number: one of those before may have been deleted.
    number = last.rank + 1 if last else 0
    made = children.publish_pod(world.meta, frozen, resume, attempt.number, number, world.environment)
    if conditions.is_rejected(condition_of(world.status.conditions, T.SCHEDULED)):
        # As when an attempt starts: to say otherwise before each try would be two writes a try, and each wakes the next.
        return Plan(create=(made,), requeue_after=RECHECK_SECONDS)
    return replace(plan, create=(made,))


def blocked_words(pod: PodView, otherwise: str) -> str:
    """Say what keeps a pod from starting, if anything does."""
    return f"pod {pod.ref.name}: {pod.blocked}" if pod.blocked else otherwise


def seconds_to_relaunch(status: TrainingJobStatus, now: datetime) -> float:
    """Return how long the next attempt waits: not at all the first time, then 10 s, 20 s … up to five minutes."""
    last = progress.record_of(status, (status.attempt or 1) - 1)
    finished = parse_time(last.finished_at) if last else None
    if last is None or finished is None or last.reason == Reason.SUSPENDED:
        return 0.0
    failures = status.failures or 0
    delay = 0.0 if failures <= 1 else min(FIRST_RELAUNCH_DELAY * 2.0 ** (failures - 2), LONGEST_RELAUNCH_DELAY)
    if last.reason == GAVE_BACK:
        delay = RECHECK_SECONDS
    return delay - (now - finished).total_seconds()
