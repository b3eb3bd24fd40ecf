"""Deletes the checkpoints that no status names or can come to name, and says how much room there is for more."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from halo_api.report import CheckpointReport, DiskReport
from halo_api.retention import KnownCheckpoints, kept_steps


class Told(Protocol):
    """What is told of the checkpoints, and what came of it: the report."""

    @property
    def checkpoints(self) -> tuple[CheckpointReport, ...]:
        """Those that the report names."""

    def name_checkpoints(self, checkpoints: tuple[CheckpointReport, ...]) -> bool:
        """Name these and no others; return whether that is written."""

    def known_checkpoints(self) -> KnownCheckpoints | None:
        """Return what the supervisor knows of them; None where that can't be read."""


def prune_checkpoints(report: Told, folder: Callable[[int], Path]) -> None:
    """Delete checkpoints of this attempt, but what the status names, the newest few, and the best.

    They are taken back before the second look at what was told: either the supervisor sees that and never tells them, or it
    came first, and they stay until a status went on from them. While no operator is there, that bounds what is on the disk.
    """
    own, known = report.checkpoints, report.known_checkpoints()
    spare = {c.step for c in own} - kept_steps({c.step: c.loss for c in own})
    gone = {step for step in spare if known is not None and known.is_free(step)}
    if not gone or not report.name_checkpoints(tuple(c for c in own if c.step not in gone)):
        return
    known = report.known_checkpoints()
    stay = {step for step in gone if known is None or not known.is_free(step)}
    if stay:
        report.name_checkpoints(tuple(c for c in own if c.step not in gone - stay))
    for step in sorted(gone - stay):
        shutil.rmtree(folder(step), ignore_errors=True)


def room_for(folder: Path, checkpoint_bytes: int) -> DiskReport:
    """Return how much room the folder's volume has, for checkpoints of that size."""
    return DiskReport(free_bytes=shutil.disk_usage(folder).free, checkpoint_bytes=checkpoint_bytes)


def bytes_in(folder: Path) -> int:
    """Return the size of all files below the folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
