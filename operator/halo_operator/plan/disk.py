"""Tells that the claim of a run's checkpoints is filling up, while there is still time to do something about it."""

from __future__ import annotations

from halo_api.conditions import ConditionType, Reason, condition_of, is_true
from halo_api.report import DiskReport
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan.conditions import Fact, Facts
from halo_operator.plan.world import RunWorld

T = ConditionType

# Room for fewer more checkpoints than these is told. The trainer measures at each save, so that this is news as often as one.
ROOM_FOR = 3


def with_pressure(world: RunWorld, status: TrainingJobStatus, facts: Facts) -> Facts:
    """Return the facts with what the last save found of the volume; what is known stays until a later one finds room."""
    others: dict[ConditionType, Fact] = {type_: fact for type_, fact in facts.items() if type_ != T.DISK_PRESSURE}
    ends = (T.COMPLETE, T.FAILED)
    if status.trained or any(others.get(end, ("",))[0] == "True" or is_true(status.conditions, end) for end in ends):
        # No checkpoint follows.
        return others
    report = world.report
    if report is not None and report.attempt == status.attempt and report.disk is not None:
        fact = pressure(report.disk, status.frozen.artifacts_claim if status.frozen else "")
    else:
        before = condition_of(status.conditions, T.DISK_PRESSURE)
        fact = (before.status, before.reason, before.message) if before else None
    return others if fact is None else {**others, T.DISK_PRESSURE: fact}


def pressure(disk: DiskReport, claim: str) -> Fact | None:
    """Return why the condition holds, if it does."""
    needed = ROOM_FOR * disk.checkpoint_bytes
    if disk.free_bytes >= needed:
        return None
    words = (
        f"claim {claim}: found {sized(disk.free_bytes)} free, and {ROOM_FOR} more checkpoints need {sized(needed)}; "
        f"enlarge it, or delete the folders of runs that are over: without room the run ends as {Reason.DISK_FULL}"
    )
    return "True", Reason.DISK_ALMOST_FULL, words


def sized(count: int) -> str:
    """Return a number of bytes for a person."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
