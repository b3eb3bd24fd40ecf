"""Deletes the checkpoints that the run's status has left out, and says how much room there is for more."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from halo_api.report import CheckpointReport, DiskReport
from halo_api.retention import MOST_UNDECIDED, left_out, undecided
from halo_trainer.reporting import Reporting


def prune_checkpoints(report: Reporting, folder: Callable[[int], Path]) -> None:
    """Delete those of this attempt that a written status has left out, and no others."""
    named = report.named_steps()
    gone = [made.step for made in report.checkpoints if left_out(made.step, named)]
    report.drop_checkpoints(gone)
    for step in gone:
        shutil.rmtree(folder(step), ignore_errors=True)


def tell_checkpoint(report: Reporting, made: CheckpointReport, disk: DiskReport, folder: Callable[[int], Path]) -> None:
    """Report a new checkpoint; too many that nobody decided about, and it is held back instead, until there is a newer one."""
    named, before = report.named_steps(), report.held
    hold = sum(undecided(told.step, named) for told in report.checkpoints) >= MOST_UNDECIDED
    # Nobody was told of the one before, once the report is written.
    if report.checkpoint(made, disk, hold) and before:
        shutil.rmtree(folder(before.step), ignore_errors=True)


def room_for(folder: Path, checkpoint_bytes: int) -> DiskReport:
    """Return how much room the folder's volume has, for checkpoints of that size."""
    return DiskReport(free_bytes=shutil.disk_usage(folder).free, checkpoint_bytes=checkpoint_bytes)


def bytes_in(folder: Path) -> int:
    """Return the size of all files below the folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
