"""Folds what pods said (pushed reports, termination messages) into a run's status."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any, get_args

from halo_api.conditions import ConditionType
from halo_api.estimate import PhaseName
from halo_api.report import CheckpointReport, Report, RolloutProgress
from halo_api.retention import kept_steps
from halo_api.run_file import ResumeFrom
from halo_api.run_status import AttemptRecord, Checkpoint, MeasuredPhase, Progress, RolloutsSeen, Usage
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan.attempts import Attempt
from halo_operator.plan.conditions import stamp
from halo_operator.plan.pod_view import parse_time
from halo_operator.plan.world import PodView

KEPT = 10
MOST_IMAGES = 8
MOST_REASONS = 16
# Progress alone is written no more often than this; what people act on is written at once.
PROGRESS_SECONDS = 10.0
COUNTED = ConditionType.ROLLOUT_DEGRADED


def with_report(status: TrainingJobStatus, report: Report | None, now: datetime) -> TrainingJobStatus:
    """Return the status with the report's progress and checkpoints; a report of another attempt changes nothing."""
    if report is None or report.attempt != status.attempt:
        return status
    status = with_checkpoints(status, report.checkpoints)
    found = report.progress
    if found is None or _same_step(status.progress, found.step):
        return status
    progress = Progress(
        step=found.step,
        steps=found.steps,
        percent=100 * found.step // max(found.steps, 1),
        loss=rounded(found.loss),
        reward=rounded(found.rollouts.reward) if found.rollouts else None,
        learning_rate=rounded(found.learning_rate),
        grad_norm=rounded(found.grad_norm),
        tokens_per_second=rounded(found.tokens_per_second),
        rollouts=seen(found.rollouts) if found.rollouts else None,
        mfu=rounded(found.mfu),
        memory_bytes=found.memory_bytes,
        remaining_seconds=found.remaining_seconds,
        updated_at=stamp(now),
    )
    return status.model_copy(update={"progress": progress})


def seen(found: RolloutProgress) -> RolloutsSeen:
    """Return what people look at of a step's episodes; the rest is in the run's metrics."""
    return RolloutsSeen(
        pass_rate=rounded(found.pass_rate),
        scored=found.scored,
        unscored=found.unscored,
        unscored_reasons=dict(sorted(found.unscored_reasons.items())[:MOST_REASONS]),
        kl=rounded(found.kl),
        mismatch=rounded(found.mismatch),
        staleness=found.staleness,
        policy=found.policy,
        tokens_per_second=rounded(found.tokens_per_second),
        servers=found.servers,
    )


def arrived(status: TrainingJobStatus, step: int, steps: int, now: datetime) -> TrainingJobStatus:
    """Return the status of a run that goes no further than this step."""
    if status.progress is None:
        return status
    facts = {"step": step, "percent": 100 * step // steps, "remaining_seconds": 0, "updated_at": stamp(now)}
    return status.model_copy(update={"progress": status.progress.model_copy(update=facts)})


def _same_step(progress: Progress | None, step: int) -> bool:
    return progress is not None and progress.step == step


def rounded(value: float | None) -> float | None:
    """Return four significant digits: status is for people, the report keeps the rest. JSON has no NaN."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def with_checkpoints(status: TrainingJobStatus, found: Iterable[CheckpointReport | None]) -> TrainingJobStatus:
    """Return the status with those of these checkpoints of the current attempt, and of its own, that are kept.

    One that is known already changes nothing. Trainers delete what a status has left out: nothing else may add one.
    """
    attempt = status.attempt or 1
    by_step = {checkpoint.step: checkpoint for checkpoint in status.checkpoints}
    for new in found:
        if new is None or (new.step in by_step and by_step[new.step].attempt >= attempt):
            continue
        by_step[new.step] = Checkpoint(
            step=new.step,
            attempt=attempt,
            uri=new.uri,
            digest=new.digest,
            loss=rounded(new.loss),
            reward=rounded(new.reward),
            at=new.at,
        )
    steps = kept_steps({checkpoint.step: checkpoint.loss for checkpoint in by_step.values()})
    kept = [by_step[step] for step in sorted(steps)]
    return status if kept == status.checkpoints else status.model_copy(update={"checkpoints": kept})


def without_last_checkpoint(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status without its last checkpoint, whose bytes turned out to be damaged."""
    return status.model_copy(update={"checkpoints": status.checkpoints[:-1]})


def resume_from(status: TrainingJobStatus) -> ResumeFrom | None:
    """Return the checkpoint that the next attempt goes on from."""
    if not status.checkpoints:
        return None
    last = status.checkpoints[-1]
    return ResumeFrom(step=last.step, uri=last.uri, digest=last.digest)


def with_record(
    status: TrainingJobStatus,
    attempt: Attempt,
    reason: str | None = None,
    message: str | None = None,
    given_up: datetime | None = None,
) -> TrainingJobStatus:
    """Return the status with what is known of an attempt: its times and, once it said so or ended, how it ended.

    One that is given up before the end of its pods is known ends now: the wait for the next attempt counts from there. What is
    written of its times stays: pods that are gone, or made again, can't tell them any more, and what is metered is metered.
    """
    old = record_of(status, attempt.number) or AttemptRecord(attempt=attempt.number)
    started = old.started_at or (stamp(attempt.bound_at) if attempt.bound_at else None)
    reason = reason or old.reason
    record = AttemptRecord(
        attempt=attempt.number,
        started_at=started,
        finished_at=old.finished_at or (_finished(status, attempt, started, given_up) if reason else None),
        reason=reason,
        message=(message[:1000] or None) if message is not None else old.message,
        gpu_seconds=old.gpu_seconds,
        phases=measured(attempt) or old.phases,
        images=with_images(old.images, attempt.trainers) if reason else old.images,
        rollout_images=with_images(old.rollout_images, attempt.rollouts) if reason else old.rollout_images,
        replaced=old.replaced,
    )
    others = [r for r in status.attempts if r.attempt != attempt.number]
    records = sorted([*others, record], key=lambda r: r.attempt)[-KEPT:]
    return status if records == status.attempts else status.model_copy(update={"attempts": records})


def with_images(known: Iterable[str], pods: Iterable[PodView]) -> list[str]:
    """Return the images that are known of an attempt, and those that its pods show."""
    return sorted({*known, *(pod.image_id for pod in pods if pod.image_id)})[:MOST_IMAGES]


def _finished(
    status: TrainingJobStatus, attempt: Attempt, started: str | None, given_up: datetime | None
) -> str | None:
    start, end = parse_time(started), attempt.finished_at or given_up
    if start and not attempt.pods:
        # Somebody took its pods away before their end was seen: its last report is the last that is known of it.
        end = parse_time(status.progress.updated_at) if status.progress else start
    return stamp(max([end, *([start] if start else [])])) if end else None


def measured(attempt: Attempt) -> list[MeasuredPhase]:
    """Return how long each phase took: as the first pod counted them, and the rest of the attempt's time as its start."""
    spoke = next((p.outcome for p in attempt.trainers if p.outcome and p.outcome.seconds), None)
    if spoke is None or attempt.finished_at is None or attempt.bound_at is None:
        return []
    rest = (attempt.finished_at - attempt.bound_at).total_seconds() - sum(spoke.seconds.values())
    found = {"start": max(rest, 0.0)} | dict(spoke.seconds)
    return [MeasuredPhase(name=name, seconds=f"{found[name]:.1f}") for name in get_args(PhaseName) if name in found]


def record_of(status: TrainingJobStatus, number: int) -> AttemptRecord | None:
    """Return what the status keeps of an attempt."""
    return next((r for r in status.attempts if r.attempt == number), None)


def seconds_until_due(old: TrainingJobStatus, new: TrainingJobStatus, now: datetime) -> float:
    """Return 0 when the change must be written now, else how long progress alone can still wait."""
    if _loud(old) != _loud(new) or old.progress is None:
        return 0.0
    last = parse_time(old.progress.updated_at)
    waited = (now - last).total_seconds() if last else PROGRESS_SECONDS
    # A clock that was set back must not silence a run for as long.
    return PROGRESS_SECONDS - waited if 0.0 <= waited < PROGRESS_SECONDS else 0.0


def _loud(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return what people act on: neither progress and what it costs nor an attempt's times, but how attempts ended."""
    untimed = {"started_at": None, "finished_at": None}
    records = [r.model_copy(update=untimed) for r in status.attempts if r.reason or r.replaced]
    # Its counts are another step's each time.
    words = [c.model_copy(update={"message": ""}) if c.type == COUNTED else c for c in status.conditions]
    quiet: dict[str, Any] = {
        "conditions": words,
        "progress": None,
        "attempts": records,
        "observed_generation": None,
        "usage": _counted_for_good(status.usage),
    }
    return status.model_copy(update=quiet)


def _counted_for_good(usage: Usage | None) -> Usage | None:
    """Pods go once their attempt is closed, so that this is written before; what still runs is counted again at any time."""
    if usage is None or (usage.through == 0 and usage.settlement is None):
        return None
    return usage.model_copy(update={"h100_hours": "0", "usd": None, "gpu_seconds": {}, "since": None})
