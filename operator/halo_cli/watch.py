"""`kubectl halo watch RUN`: one line a change, until the run is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from pydantic import ValidationError

from halo_api.conditions import ConditionType, Reason, condition_of, is_true
from halo_api.training_job import TrainingJobStatus
from halo_cli.kubectl import CliError, Kubectl, NotThere, Object

T = ConditionType
# The states in which a step and its loss say more than words.
MOVING = (Reason.RUNNING, Reason.PUBLISHING, Reason.SUSPENDED)
AGAIN_SECONDS = 1.0


def watch(kubectl: Kubectl, name: str, say: Callable[[str], None]) -> int:
    """Say each change of the run; return 0 once it is complete and 1 once it failed, was refused or is gone."""
    said = ""
    seen = False
    while True:
        try:
            for event in kubectl.watch("trainingjobs.halo.training", name):
                status = status_of(event["object"])
                gone = event["type"] == "DELETED"
                words = "deleted" if gone else line(status)
                if words != said:
                    say(f"{datetime.now():%H:%M:%S}  {words}")
                said, seen = words, True
                if gone:
                    return 1
                code = exit_code(status)
                if code is not None:
                    return code
        except NotThere:
            if not seen:
                raise kubectl.absent("TrainingJob", name, "trainingjobs") from None
            say(f"{datetime.now():%H:%M:%S}  deleted")
            return 1
        # The watch timed out: the next one begins with the object as it is now.
        time.sleep(AGAIN_SECONDS)


def status_of(body: Object) -> TrainingJobStatus:
    """Read the run's status."""
    try:
        return TrainingJobStatus.model_validate(body.get("status", {}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CliError(
            f"status.{where}: {first['msg']}; kubectl-halo and the cluster's Halo differ in version"
        ) from None


def exit_code(status: TrainingJobStatus) -> int | None:
    """Return how a run that is over ended, or None while it is not."""
    if is_true(status.conditions, T.COMPLETE):
        return 0
    return 1 if is_true(status.conditions, T.FAILED) else None


def state_words(status: TrainingJobStatus) -> str:
    """Say what a run waits for, or how it is."""
    ready = condition_of(status.conditions, T.READY)
    return status.waiting or (f"{ready.reason}: {ready.message}" if ready else "the operator has not looked at it yet")


def line(status: TrainingJobStatus) -> str:
    """Return the run in one line: its state, then how far it is or what it waits for."""
    ready = condition_of(status.conditions, T.READY)
    if ready is None:
        return f"{'New':<10}  the operator has not looked at it yet"
    parts = [f"{ready.reason:<10}"]
    if (status.attempt or 1) > 1:
        parts.append(f"attempt {status.attempt}")
    moving = ready.reason in MOVING
    if moving or is_true(status.conditions, T.COMPLETE):
        parts += progress(status)
    failed = condition_of(status.conditions, T.FAILED)
    if failed and failed.status == "True":
        parts.append(f"{failed.reason}: {failed.message}")
    elif status.adapter:
        parts.append(f"adapter {status.adapter.name}: {status.adapter.uri}")
    elif not moving or status.progress is None or ready.reason != Reason.RUNNING:
        parts.append(status.waiting or ready.message)
    elif (degraded := condition_of(status.conditions, T.ROLLOUT_DEGRADED)) and degraded.status == "True":
        parts.append(f"degraded: {degraded.message}")
    return "  ".join(parts).rstrip()


def progress(status: TrainingJobStatus) -> list[str]:
    """Return how far the run is, a part a fact."""
    found = status.progress
    if found is None:
        return []
    saved = status.checkpoints[-1].step if status.checkpoints else None
    left = found.remaining_seconds
    role = "train " if found.rollouts else ""
    return [
        f"step {found.step}/{found.steps}",
        *episodes(status),
        *([f"loss {found.loss:.4g}"] if found.loss is not None else []),
        *([f"{role}{found.tokens_per_second:.0f} tok/s"] if found.tokens_per_second is not None else []),
        *([f"checkpoint {saved}"] if saved is not None else []),
        *([f"{duration(left)} left"] if left else []),
    ]


def episodes(status: TrainingJobStatus) -> list[str]:
    """Return what the last step's episodes were like, of a run that samples any."""
    if (found := status.progress) is None or (seen := found.rollouts) is None:
        return []
    wanted = len(status.topology.rollout) if status.topology else 0
    reasons = ", ".join(f"{reason} {many}" for reason, many in sorted(seen.unscored_reasons.items()))
    return [
        *([f"reward {found.reward:.3g}"] if found.reward is not None else []),
        *([f"pass {seen.pass_rate:.1%}"] if seen.pass_rate is not None else []),
        *([f"KL {seen.kl:.2g}"] if seen.kl is not None else []),
        *([f"mismatch {seen.mismatch:.1e}"] if seen.mismatch is not None else []),
        *([f"{seen.staleness} behind"] if seen.staleness else []),
        *([f"unscored {seen.unscored}" + (f" ({reasons})" if reasons else "")] if seen.unscored else []),
        *([f"servers {seen.servers}/{wanted}"] if seen.servers is not None and wanted else []),
        *([f"rollout {seen.tokens_per_second:.0f} tok/s"] if seen.tokens_per_second is not None else []),
    ]


def duration(seconds: int) -> str:
    """Return a duration in its two largest units."""
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // part}{smaller}"
    return f"{seconds}s"
