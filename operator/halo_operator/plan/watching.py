"""Plans for an attempt that neither failed nor finished: say what it is doing or waits for, and keep its deadline up to date."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from halo_api.conditions import ConditionType, Reason
from halo_api.report import Outcome
from halo_api.run_status import AttemptRecord
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan import conditions, progress, stopping
from halo_operator.plan.attempts import Attempt
from halo_operator.plan.conditions import Facts
from halo_operator.plan.endings import give_back, over, relaunch_or_fail
from halo_operator.plan.moves import RECHECK_SECONDS, RunPlan, merged, state
from halo_operator.plan.world import CaUpdate, DeadlineUpdate, Note, Plan, PodView, RunWorld

T = ConditionType

# A pod that is bound but not running for this long is worth a status of its own.
SLOW_START_SECONDS = 5.0


def watch(world: RunWorld, status: TrainingJobStatus, attempt: Attempt, now: datetime) -> RunPlan:
    """Follow an attempt that neither failed nor finished, and keep its pods' deadline and authorities up to date."""
    plan = replace(doing(world, status, attempt, now), update=updates(world, status, attempt))
    limit, bound_at = stopping.limit_of(world.spec, status), attempt.bound_at
    if limit is None or bound_at is None:
        return plan
    overdue = (limit.overdue_at(bound_at) - now).total_seconds()
    if overdue <= 0:
        late = tuple(p.ref for p in attempt.pods if not p.ended)
        return replace(plan, expel=late, requeue_after=RECHECK_SECONDS)
    stop = (limit.stop_at(bound_at) - now).total_seconds()
    return merged(plan, Plan(requeue_after=stop if stop > 0 else overdue))


def updates(world: RunWorld, status: TrainingJobStatus, attempt: Attempt) -> tuple[CaUpdate | DeadlineUpdate, ...]:
    """Return what the attempt's pods must learn: another CA, or a deadline that moved."""
    found: list[CaUpdate | DeadlineUpdate] = []
    for pod in attempt.pods:
        if pod.ended:
            continue
        if pod.ca != world.environment.ca_bundle:
            found.append(CaUpdate(pod.ref, world.environment.ca_bundle))
        deadline = stopping.deadline_of(world.spec, status, attempt, pod)
        if deadline.remaining_seconds is None:
            continue
        if pod.deadline is None or deadline.sequence > pod.deadline.sequence:
            found.append(DeadlineUpdate(pod.ref, deadline))
    return tuple(found)


def doing(world: RunWorld, status: TrainingJobStatus, attempt: Attempt, now: datetime) -> RunPlan:
    """Say what the attempt is doing."""
    blocked = attempt.blocked
    if blocked and blocked.blocked:
        return held_up(world, status, attempt, blocked, now)
    status = status.model_copy(update={"waiting": None})
    placed: Facts = {T.SCHEDULED: ("True", Reason.PODS_BOUND, f"attempt {attempt.number} is on its nodes")}
    running: Facts = {**placed, T.RUNNING: ("True", Reason.TRAINING, f"attempt {attempt.number} is training")}
    record = progress.record_of(status, attempt.number)
    if record and not record.reason and (loads := still_load(status, attempt, record)):
        status = status.model_copy(update={"waiting": loads})
    if record and record.reason:
        done = record.reason in (Reason.SUCCEEDED, Reason.BUDGET_REACHED)
        how = {Reason.SUCCEEDED: "trained to the end", Reason.BUDGET_REACHED: "trained until its budget was reached"}
        words = f"attempt {attempt.number} has {how.get(Reason(record.reason), f'ended ({record.reason})')}; waiting for its pods to end"
        facts = conditions.working(Reason.PUBLISHING if done else Reason.RUNNING, words, running)
        return state(world, status, facts, now)
    if is_stopping(world, status, attempt, now):
        resume = progress.resume_from(status)
        words = "its budget is reached; " + (
            f"it publishes the checkpoint of step {resume.step}" if resume else "it stops"
        )
        facts = conditions.working(Reason.PUBLISHING, words, running)
        return state(world, status, facts, now, Note("Normal", Reason.BUDGET_REACHED, words))
    if attempt.running:
        words = f"attempt {attempt.number} is training"
        return state(world, status, conditions.working(Reason.RUNNING, words, running), now)
    # The wait for a node is not a slow start.
    age = (now - attempt.bound_at).total_seconds() if attempt.bound_at else 0.0
    limit = world.environment.start_timeout_seconds
    if age < SLOW_START_SECONDS:
        return Plan(requeue_after=SLOW_START_SECONDS)
    if age > limit:
        slowest = next((pod for pod in attempt.pods if not (pod.running or pod.ended)), attempt.pods[0])
        words = (
            f"its pods were on their nodes but did not run within {limit} s (kubectl describe pod {slowest.ref.name})"
        )
        late = Outcome(result="Failed", reason=Reason.NOT_STARTED, message=words)
        return relaunch_or_fail(world, status, attempt, late, now)
    facts = conditions.working(Reason.STARTING, f"attempt {attempt.number} is starting on its nodes", placed)
    return replace(state(world, status, facts, now), requeue_after=limit - age + 1)


def still_load(status: TrainingJobStatus, attempt: Attempt, record: AttemptRecord) -> str | None:
    """Say which rollout servers are not ready yet, until the attempt's first step; later that is no news."""
    started = record.started_at
    if not attempt.running or (status.progress and (started is None or status.progress.updated_at > started)):
        return None
    late = [pod for pod in attempt.rollouts if pod.running and not pod.ready]
    if not late:
        return None
    return f"{len(late)} of {attempt.servers} rollout servers are not ready yet (pod {late[0].ref.name})"


def is_stopping(world: RunWorld, status: TrainingJobStatus, attempt: Attempt, now: datetime) -> bool:
    """Whether the attempt's time to train is over."""
    limit = stopping.limit_of(world.spec, status)
    return limit is not None and attempt.bound_at is not None and now >= limit.stop_at(attempt.bound_at)


def held_up(world: RunWorld, status: TrainingJobStatus, attempt: Attempt, pod: PodView, now: datetime) -> RunPlan:
    """Say why a pod can't start; give up, or give GPUs back, when it takes too long."""
    words = f"pod {pod.ref.name}: {pod.blocked}"
    limit = world.environment.start_timeout_seconds
    # Pods may wait for their nodes as long as they like; what is limited is how long GPUs are held and do nothing.
    placed = [p.bound_at for p in attempt.pods if p.bound_at]
    age = (now - min(placed, default=pod.created_at)).total_seconds()
    queued = pod.blocked_reason == "Unschedulable"
    half_placed = queued and bool(placed)
    if age > limit and not queued:
        return over(
            world,
            status,
            attempt,
            Reason(pod.blocked_reason or Reason.POD_REJECTED),
            f"{words}; gave up after {limit} s",
            now,
        )
    if age > limit and half_placed:
        return give_back(world, status, attempt, now)
    reason = Reason.UNSCHEDULABLE if queued else Reason(pod.blocked_reason or Reason.POD_REJECTED)
    status = status.model_copy(update={"waiting": words})
    facts = conditions.working(
        Reason.QUEUED if queued else Reason.STARTING,
        words,
        {T.SCHEDULED: ("False" if queued else "True", reason, words)},
    )
    plan = state(world, status, facts, now, Note("Warning", reason, words))
    return replace(plan, requeue_after=max(limit - age, 1.0) if not queued or half_placed else RECHECK_SECONDS)
