"""Plans a TrainingJob's next move: admit it, start its attempts, follow them to their end and the adapter to its place."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from halo_api.conditions import ConditionType, Reason, condition_of, is_true
from halo_api.report import Outcome
from halo_api.run_status import Frozen, Topology
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan import claim, conditions, pods, progress, publishing, rollouts, stopping
from halo_operator.plan.admission import first_refusal
from halo_operator.plan.attempts import Attempt, attempt_in
from halo_operator.plan.budget import quote_of
from halo_operator.plan.conditions import Facts
from halo_operator.plan.endings import out_of_budget, pause, relaunch_or_fail, seconds_to_relaunch, wind_up
from halo_operator.plan.freeze import freeze
from halo_operator.plan.metering import metered
from halo_operator.plan.money_moves import kept, leave, raised, reserve, settle
from halo_operator.plan.moves import RECHECK_SECONDS, RunPlan, clear, merged, state
from halo_operator.plan.names import HOLD_FINALIZER
from halo_operator.plan.pod_view import alive, seconds_until_lost
from halo_operator.plan.quote import quote_lines
from halo_operator.plan.refusal import Refusal
from halo_operator.plan.rollout_pods import rollout_pods
from halo_operator.plan.topology import layout_of
from halo_operator.plan.watching import SLOW_START_SECONDS, watch
from halo_operator.plan.world import Note, Plan, PodView, RunWorld

T = ConditionType


def plan_run(world: RunWorld, now: datetime) -> RunPlan:
    """Return what to do next. Planning again on what that leads to changes nothing."""
    mine = tuple(p for p in world.pods if is_ours(p, world.meta.uid))
    strays = tuple(p for p in world.pods if not is_ours(p, world.meta.uid))
    world = replace(world, pods=mine)
    if world.meta.deleting:
        plan = leave(world, now)
    elif is_terminal(world.status):
        # Only suspend can still change; that it was seen tells GitOps tools that there is nothing to wait for.
        seen = state(world, world.status, conditions.abnormal(world.status.conditions), now)
        plan = merged(merged(seen, clear(world.pods)), settle(world))
    elif world.status.frozen is None:
        plan = admit(world, now)
    else:
        plan = follow(world, world.status.frozen, now)
    return merged(merged(plan, clear(strays)), Plan(requeue_after=seconds_until_lost(world.pods, now)))


def is_ours(pod: PodView, uid: str) -> bool:
    """Whether a pod is the run's; an orphaning delete takes the owner away while the run still settles."""
    return pod.owner_uid == uid or (pod.owner_uid is None and pod.run_uid == uid)


def is_terminal(status: TrainingJobStatus) -> bool:
    """Whether the run is over; that is final."""
    return is_true(status.conditions, T.COMPLETE) or is_true(status.conditions, T.FAILED)


def admit(world: RunWorld, now: datetime) -> RunPlan:
    """Check the run, have its budget held, freeze it and start its first attempt, or say why not."""
    if claim.held_for(world) and HOLD_FINALIZER not in world.meta.finalizers:
        # An uninstall took it off between hold and status: without it the run could go, or be refused, and leave the hold.
        return Plan(finalizer="add", requeue_after=SLOW_START_SECONDS)
    world = claim.on_its_terms(world)
    refusal = first_refusal(world)
    if refusal:
        return turned_away(world, refusal, now)
    wanted, held = claim.wanted_of(world), claim.held_for(world)
    if wanted and held is None:
        return reserve(world, wanted, now)
    frozen = freeze(world)
    layout = layout_of(world)
    status = world.status.model_copy(
        update={
            "frozen": frozen,
            "recipe_digest": frozen.recipe.digest if frozen.recipe else None,
            "topology": layout,
            "estimate": quote_of(world),
            "hold": claim.as_held(world.meta.uid, held) if held else None,
            "attempt": 1,
            "failures": 0,
            "waiting": None,
        }
    )
    accepted = {
        T.ACCEPTED: (
            "True",
            Reason.CHECKS_PASSED,
            f"{frozen.dataset.rows if frozen.dataset else 0} rows, {layout.nodes} x {layout.gpus_per_node} {frozen.gpu.type}",
        ),
        **conditions.reserved(claim.words_of(status.hold) if status.hold else None, claim.why_nothing(world)),
    }
    if world.spec.suspend:
        return state(world, status, {**conditions.suspended("suspended before its first checkpoint"), **accepted}, now)
    return launch(world, status, frozen, now, accepted)


def turned_away(world: RunWorld, refusal: Refusal, now: datetime) -> RunPlan:
    """Say that the run waits for something, or that it can never be right."""
    if refusal.pending:
        status = world.status.model_copy(update={"waiting": refusal.message})
        plan = state(
            world,
            status,
            conditions.waiting(refusal.reason, refusal.message),
            now,
            Note("Normal", refusal.reason, refusal.message),
        )
        return replace(plan, requeue_after=RECHECK_SECONDS)
    status = world.status.model_copy(update={"waiting": None})
    return state(
        world,
        status,
        conditions.refused(refusal.reason, refusal.message),
        now,
        Note("Warning", refusal.reason, refusal.message),
    )


def launch(
    world: RunWorld, status: TrainingJobStatus, frozen: Frozen, now: datetime, extra: Facts | None = None
) -> RunPlan:
    """Make the pods of the current attempt that are missing; its number is in the status before they exist."""
    number, layout = status.attempt or 1, status.topology or Topology(nodes=1, gpus_per_node=world.spec.gpu.count)
    there = {p.ref.name for p in world.pods}
    resume = progress.resume_from(status)
    deadline = stopping.deadline_of(world.spec, status, attempt_in(layout, number, ()), None)
    most = stopping.phase_seconds(status, "publish", stopping.PUBLISH_SECONDS)
    incarnations = rollouts.incarnations_of(status, layout)
    start = pods.Start(number, resume, deadline, most, incarnations)
    # All or none: who trains and who serves is made together.
    wanted = (
        *pods.trainer_pods(world.meta, world.spec, frozen, layout, start, world.environment),
        *rollout_pods(world.meta, frozen, layout, number, incarnations, deadline, world.environment),
    )
    missing = tuple(pod for pod in wanted if pod["metadata"]["name"] not in there)
    words = f"attempt {number}: {layout.nodes} trainer pod{'s' if layout.nodes > 1 else ''}"
    words += (
        f" and {len(layout.rollout)} rollout server{'s' if len(layout.rollout) > 1 else ''}" if layout.rollout else ""
    )
    words += f", from the checkpoint of step {resume.step}" if resume else ""
    status = status.model_copy(update={"waiting": None})
    # The quote is told with the first start: an event of its own would be one more write a run.
    quoted = f"; {quote_lines(status.estimate)[0]}" if extra and status.estimate else ""
    notes = [Note("Normal", "Started", words + quoted)]
    if extra and status.hold:
        notes.insert(
            0, Note("Normal", Reason.BUDGET_HELD, f"{claim.words_of(status.hold)} are held; the run stops there")
        )
    plan = state(world, status, conditions.working(Reason.STARTING, words, extra), now, *notes)
    service = pods.rendezvous_service(world.meta, layout)
    if extra is None and conditions.is_rejected(condition_of(world.status.conditions, T.SCHEDULED)):
        # The status says what refused the pods the last time; it stays true until they are there. Of a run whose Service was
        # refused before its first status it does not say yet what was frozen and held: nothing is made before it does.
        return Plan(first=service, create=missing, requeue_after=RECHECK_SECONDS)
    return replace(plan, first=service, create=missing)


def not_made(world: RunWorld, message: str, now: datetime) -> RunPlan:
    """Say what refused a pod: a quota or a policy, which may change, so that it is tried again."""
    status = world.status.model_copy(update={"waiting": message})
    doing = Reason.PUBLISHING if publishing.is_over(status) else Reason.QUEUED
    facts = conditions.working(doing, message, {T.SCHEDULED: ("False", Reason.POD_REJECTED, message)})
    plan = state(world, status, facts, now, Note("Warning", Reason.POD_REJECTED, message))
    return replace(plan, requeue_after=RECHECK_SECONDS)


def follow(world: RunWorld, frozen: Frozen, now: datetime) -> RunPlan:
    """Follow the current attempt to its end."""
    status = progress.with_report(world.status, world.report, now)
    attempt = attempt_in(status.topology, status.attempt or 1, world.pods)
    old = clear(p for p in world.pods if p.attempt != attempt.number)
    status = progress.with_record(status, attempt, *said(world, status, attempt)) if attempt.pods else status
    status = metered(status, attempt, world.spec.gpu.count)
    # A raise that comes while the adapter is being published comes too late.
    status, asked = (status, Plan()) if publishing.is_over(status) else raised(world, status)
    plan = go_on(world, status, frozen, attempt, now)
    if plan.status is None and (status.hold, status.conditions) != (world.status.hold, world.status.conditions):
        # Nothing else is to be said, but what is held, or why not, is.
        plan = replace(plan, status=state(world, status, conditions.abnormal(status.conditions), now).status)
    return merged(merged(merged(plan, asked), old), kept(world, status))


def go_on(world: RunWorld, status: TrainingJobStatus, frozen: Frozen, attempt: Attempt, now: datetime) -> RunPlan:
    """Return the move that the state of the attempt's pods asks for."""
    left = publishing.left_by(attempt)
    if left and status.trained is None:
        status = publishing.closed(world, status, attempt, left, now)
    if publishing.is_over(status):
        return publishing.publish(world, status, frozen, attempt, now)
    if attempt.success:
        words = "the trainer ended well but left no adapter, or one whose digest is not that of its files"
        none = Outcome(result="Failed", reason=Reason.CRASHED, message=words)
        return relaunch_or_fail(world, status, attempt, none, now)
    if lost := _lost(status, attempt):
        return wind_up(world, status, attempt, lost, now)
    if attempt.failure:
        return wind_up(world, status, attempt, attempt.failure, now)
    if world.spec.suspend:
        return pause(world, status, attempt, now)
    if not attempt.trainers and _had_started(status, attempt.number):
        gone = Outcome(result="Failed", reason=Reason.INTERRUPTED, message="the pods of the attempt are gone")
        return relaunch_or_fail(world, status, attempt, gone, now)
    if not attempt.complete:
        wait = seconds_to_relaunch(status, now)
        # Two attempts never run side by side: the older one's pods still hold its GPUs and volumes.
        still_held = any(not p.ended for p in world.pods if p.attempt != attempt.number)
        if wait > 0 or still_held:
            return Plan(requeue_after=wait if wait > 0 else None)
        if not attempt.pods and not stopping.can_go_on(world.spec, status):
            return out_of_budget(world, status, attempt, "it was not started again", now)
        return launch(world, status, frozen, now)
    return serve(world, status, frozen, attempt, now) if attempt.servers else watch(world, status, attempt, now)


def serve(world: RunWorld, status: TrainingJobStatus, frozen: Frozen, attempt: Attempt, now: datetime) -> RunPlan:
    """Follow an attempt that has rollout servers: replace those that ended while they are needed, and stop them after."""
    tended = rollouts.tended(world, status, frozen, attempt, now)
    if tended.lost is not None:
        status = progress.with_record(status, attempt, tended.lost.reason, tended.lost.message)
        return wind_up(world, status, attempt, tended.lost, now)
    if tended.create and conditions.is_rejected(condition_of(world.status.conditions, T.SCHEDULED)):
        # As when an attempt starts: the status says what refused them, until they are there.
        return Plan(create=tended.create, requeue_after=RECHECK_SECONDS)
    plan = watch(world, tended.status, attempt, now)
    if not rollouts.are_needed(world, status, attempt, now):
        return merged(plan, Plan(delete=alive(p for p in attempt.rollouts if not p.ended)))
    if not tended.create or plan.delete or plan.expel:
        return plan
    if plan.status is None:
        # Who is replaced is in the status before the pod is made, whatever else there is to say.
        told = state(world, tended.status, conditions.abnormal(status.conditions), now)
        plan = replace(plan, status=told.status, notes=told.notes)
    return replace(plan, create=tended.create)


def _lost(status: TrainingJobStatus, attempt: Attempt) -> Outcome | None:
    """Return why the attempt was given up for its rollout servers: what comes of it afterwards is no other cause."""
    record = progress.record_of(status, attempt.number)
    if record is None or record.reason != Reason.ROLLOUT_LOST:
        return None
    return Outcome(result="Failed", reason=Reason.ROLLOUT_LOST, message=record.message or "")


def said(world: RunWorld, status: TrainingJobStatus, attempt: Attempt) -> tuple[str, str] | tuple[()]:
    """Return the outcome that the attempt reported: in the status, it can be acknowledged before its pods end."""
    report = world.report
    if _lost(status, attempt):
        return ()
    if attempt.servers and (ended := next((p.outcome for p in attempt.trainers if p.rank == 0 and p.ended), None)):
        # Its servers still end: until then nothing else says that it has.
        return ended.reason, ended.message
    if report is None or report.attempt != attempt.number or report.outcome is None:
        return ()
    return report.outcome.reason, report.outcome.message


def _had_started(status: TrainingJobStatus, number: int) -> bool:
    record = progress.record_of(status, number)
    return record is not None and record.started_at is not None
