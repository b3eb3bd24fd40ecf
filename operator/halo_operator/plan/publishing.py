"""Plans the way from what training left to the published adapter: a pod copies it, a receipt is signed, the run is complete.

Everything follows from the status. Pods may be taken away, the operator may die, the run may be suspended or its budget raised
meanwhile: publishing goes on, and ends with one Adapter. What is there already is taken as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from halo_api.adapter import AdapterSpec
from halo_api.conditions import ConditionType, Reason, condition_of
from halo_api.digests import files_digest
from halo_api.report import AdapterReport, Outcome
from halo_api.run_file import ResumeFrom, adapters_uri, address
from halo_api.run_status import AdapterRef, Frozen, TrainedAdapter
from halo_api.training_job import TrainingJobSpec, TrainingJobStatus
from halo_operator.plan import conditions, progress
from halo_operator.plan import pods as children
from halo_operator.plan.adapter import adapter, adapter_spec
from halo_operator.plan.attempts import Attempt
from halo_operator.plan.conditions import Facts
from halo_operator.plan.endings import before_first_checkpoint, delay_after, failed, recorded
from halo_operator.plan.money_moves import charged_words, concluded
from halo_operator.plan.moves import RECHECK_SECONDS, RunPlan, clear, merged, state
from halo_operator.plan.pod_view import is_superseded
from halo_operator.plan.receipt import Known, images_of, statement_of
from halo_operator.plan.world import Note, Plan, PodView, RunWorld

T = ConditionType

# A pod that has a node and does not run for this long is worth a word.
SLOW_START_SECONDS = 60.0


@dataclass(frozen=True)
class Source:
    """Something that the adapter can be published from."""

    what: str
    where: ResumeFrom
    folder: Literal["", "adapter/"]


def is_over(status: TrainingJobStatus) -> bool:
    """Whether the training is over: nothing is left to do but to publish."""
    return status.trained is not None or _reason(status) == Reason.BUDGET_REACHED


def left_by(attempt: Attempt) -> AdapterReport | None:
    """Return the adapter that an attempt left which ended well."""
    made = attempt.success.adapter if attempt.success else None
    return made if made and files_digest(made.files) == made.digest else None


def closed(
    world: RunWorld, status: TrainingJobStatus, attempt: Attempt, left: AdapterReport, now: datetime
) -> TrainingJobStatus:
    """Return the status that keeps where the attempt left its adapter; its pods are not needed any more."""
    at_budget = attempt.success is not None and attempt.success.reason == Reason.BUDGET_REACHED
    reason = Reason.BUDGET_REACHED if at_budget else Reason.SUCCEEDED
    status = recorded(world, status, attempt, reason, "", now)
    return status.model_copy(update={"trained": TrainedAdapter(uri=left.uri, digest=left.digest, step=left.step)})


def publish(world: RunWorld, status: TrainingJobStatus, frozen: Frozen, attempt: Attempt, now: datetime) -> RunPlan:
    """Go on with publishing, and let go of the pods that trained."""
    status = progress.with_checkpoints(status, (p.outcome.checkpoint for p in attempt.pods if p.outcome))
    return merged(_publish(world, status, frozen, attempt, now), clear(attempt.pods))


def _publish(world: RunWorld, status: TrainingJobStatus, frozen: Frozen, attempt: Attempt, now: datetime) -> RunPlan:
    there = world.catalog.adapter
    if there is not None and there.run_uid != world.meta.uid:
        words = f"an Adapter named {world.meta.name} was made by another run meanwhile{_where(status)}"
        return failed(world, status, Reason.ADAPTER_NAME_TAKEN, words, now)
    if there is not None and there.spec is not None:
        # Made just before a crash: its receipt was signed then, and is the one that counts.
        return _complete(world, status, there.spec, now)
    sources = sources_of(world.spec, status)
    if not sources:
        return before_first_checkpoint(world, status, attempt, now)
    found = sorted((p for p in world.pods if (p.role, p.attempt) == ("publish", attempt.number)), key=lambda p: p.rank)
    last = found[-1] if found else None
    if last and last.ended and (made := _published(last, frozen)):
        return _new(world, status, frozen, made, now)
    outcomes = [_outcome(pod) for pod in found if pod.ended]
    # What is damaged, or was tidied away before the trainer heard that it counts, leaves it to the next.
    damaged = sum(1 for outcome in outcomes if outcome.reason == Reason.CHECKPOINT_CORRUPT)
    failures = [outcome for outcome in outcomes if outcome.reason != Reason.CHECKPOINT_CORRUPT]
    source = sources[min(damaged, len(sources) - 1)]
    if last is None or not last.ended:
        return _on_its_way(world, status, frozen, source, last, now)
    said = outcomes[-1]
    hopeless = said in failures and not said.retriable
    if damaged >= len(sources) or hopeless or len(failures) > world.spec.backoff_limit:
        words = f"{_why(status)}, but {source.what} could not be published: {said.message}{_where(status)}"
        return failed(world, status, said.reason, words, now)
    ended = last.finished_at or now
    wait = delay_after(len(failures) if said in failures else 0) - (now - ended).total_seconds()
    return _on_its_way(world, status, frozen, source, last, now, wait)


def sources_of(spec: TrainingJobSpec, status: TrainingJobStatus) -> list[Source]:
    """Return what can be published, the best first: what training left, then checkpoints, the newest first.

    None stands for a later step than was reached, and of a run that was trained to its end no earlier one either.
    """
    left, found = status.trained, []
    if left:
        where = ResumeFrom(step=left.step, uri=left.uri, digest=left.digest)
        found.append(Source(f"the adapter of step {left.step}", where, ""))
    for saved in reversed(status.checkpoints):
        if left and (saved.step > left.step or (saved.step < left.step == spec.steps)):
            continue
        where = ResumeFrom(step=saved.step, uri=saved.uri, digest=saved.digest)
        found.append(Source(f"the checkpoint of step {saved.step}", where, "adapter/"))
    return found


def _on_its_way(
    world: RunWorld,
    status: TrainingJobStatus,
    frozen: Frozen,
    source: Source,
    last: PodView | None,
    now: datetime,
    wait: float = 0.0,
) -> RunPlan:
    """Say what is published, and have a pod do it."""
    runs = last is not None and not last.ended
    waits = _not_running_for(last, now) if last and runs else 0.0
    blocked = _held_up(last, waits) if last and runs else None
    words = f"{_why(status)}; {source.what} is published"
    status = status.model_copy(update={"waiting": blocked})
    facts = conditions.working(
        Reason.PUBLISHING,
        blocked or words,
        {T.SCHEDULED: ("True", Reason.PODS_BOUND, ""), T.RUNNING: ("False", Reason.FINISHED, "")},
    )
    notes = (Note("Normal", Reason.BUDGET_REACHED, words),) if _reason(status) == Reason.BUDGET_REACHED else ()
    plan = state(world, status, facts, now, *notes)
    if last and runs:
        limit = world.environment.start_timeout_seconds
        # Another node may do, or the image of today.
        over = waits >= limit or is_superseded(last, world.environment)
        late = (last.ref,) if over and last.deleting_since is None else ()
        look = SLOW_START_SECONDS if waits < SLOW_START_SECONDS else limit
        return merged(plan, Plan(delete=late, requeue_after=look - waits if 0.0 < waits < look else None))
    if wait > 0:
        return merged(plan, Plan(requeue_after=wait))
    # Not their number: one of those before may have been deleted.
    number, attempt = last.rank + 1 if last else 0, status.attempt or 1
    made = children.publish_pod(world.meta, frozen, source.where, source.folder, attempt, number, world.environment)
    if is_over(world.status) and conditions.is_rejected(condition_of(world.status.conditions, T.SCHEDULED)):
        # As when an attempt starts: to say otherwise before each try would be two writes a try, and each wakes the next.
        return Plan(create=(made,), requeue_after=RECHECK_SECONDS)
    return replace(plan, create=(made,))


def _not_running_for(pod: PodView, now: datetime) -> float:
    """Return how long a pod has a node and does not run there; 0 of any other."""
    return max((now - pod.bound_at).total_seconds(), 0.001) if pod.bound_at and not pod.running else 0.0


def _held_up(pod: PodView, waits: float) -> str | None:
    """Say what keeps a pod from running, if that is more than that it starts."""
    if pod.blocked:
        return f"pod {pod.ref.name}: {pod.blocked}"
    if waits < SLOW_START_SECONDS:
        return None
    return (
        f"pod {pod.ref.name}: found it on node {pod.node} and not running after a minute, as when its claim can't be mounted "
        f"or its image is large; kubectl describe pod {pod.ref.name} has more"
    )


def _published(pod: PodView, frozen: Frozen) -> AdapterReport | None:
    """Return what a pod has published: what lies where its bytes belong."""
    made = pod.outcome.adapter if pod.outcome and pod.outcome.result == "Succeeded" else None
    if made is None or files_digest(made.files) != made.digest:
        return None
    return made if made.uri == f"{adapters_uri(frozen.artifacts_claim)}/{address(made.digest)}" else None


def _outcome(pod: PodView) -> Outcome:
    """Return how a pod failed that has ended and published nothing."""
    if pod.outcome and pod.outcome.result == "Failed":
        return pod.outcome
    return Outcome(result="Failed", reason=Reason.CRASHED, message="its pod ended well but published no such adapter")


def _new(world: RunWorld, status: TrainingJobStatus, frozen: Frozen, made: AdapterReport, now: datetime) -> RunPlan:
    """Make the Adapter with its receipt, then say that the run is complete."""
    spec = adapter_spec(world.meta, world.spec, frozen, made)
    plan = _complete(world, status, spec, now)
    if plan.status is None:
        return plan
    known = Known(world.environment.operator_version, images_of(plan.status, world.pods))
    said = statement_of(world.meta, world.spec, plan.status, spec, known)
    return replace(plan, first=(adapter(world.meta, spec),), statement=said)


def _complete(world: RunWorld, status: TrainingJobStatus, made: AdapterSpec, now: datetime) -> RunPlan:
    """Say that the run is complete: trained to the end, or as far as its budget went."""
    step = made.trained_by.step if made.trained_by else 0
    reason = Reason.BUDGET_REACHED if _reason(status) == Reason.BUDGET_REACHED else Reason.SUCCEEDED
    status = progress.arrived(concluded(status), step, world.spec.steps, now)
    ref = AdapterRef(name=world.meta.name, uri=made.uri, digest=made.digest)
    status = status.model_copy(update={"adapter": ref, "receipt": made.receipt, "trained": None, "waiting": None})
    words = f"adapter {world.meta.name} published after step {step} of {world.spec.steps}"
    words += ": its budget is reached" if reason == Reason.BUDGET_REACHED else ""
    charged = charged_words(status)
    facts: Facts = {
        T.SCHEDULED: ("True", Reason.PODS_BOUND, ""),
        **conditions.succeeded(words, reason),
        **conditions.settled(charged),
    }
    notes = [Note("Normal", reason, words), *([Note("Normal", "Charged", charged)] if charged else [])]
    return state(world, status, facts, now, *notes)


def _reason(status: TrainingJobStatus) -> str | None:
    """Return why the current attempt ended, once it is closed."""
    record = progress.record_of(status, status.attempt or 1)
    return record.reason if record and record.finished_at else None


def _why(status: TrainingJobStatus) -> str:
    if _reason(status) == Reason.BUDGET_REACHED:
        return "its budget is reached"
    return f"attempt {status.attempt} has trained to the end"


def _where(status: TrainingJobStatus) -> str:
    return f"; what it trained lies at {status.trained.uri}" if status.trained else ""
