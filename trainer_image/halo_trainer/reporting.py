"""The report file: the whole state of the role, replaced atomically; the supervisor pushes it."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from halo_api.estimate import PhaseName
from halo_api.report import CheckpointReport, DiskReport, Outcome, ProgressReport, Report
from halo_api.retention import NAMED_STEPS_NAME
from halo_api.run_file import RunFile
from halo_trainer.files import replace_file

PROGRESS_SECONDS = 0.5


class Reporting:
    """Holds the report and writes every change; only the progress of very fast steps is thinned."""

    def __init__(self, path: Path, run: RunFile, writes: bool = True) -> None:
        self._path = path
        self._writes = writes
        self._written_at = 0.0
        self._report = Report(run_uid=run.run.uid, attempt=run.run.attempt)
        self._seconds: dict[PhaseName, float] = {}
        self._spending: PhaseName | None = None
        self._since = time.monotonic()
        # The end of the budget is told by a thread of its own.
        self._lock = threading.RLock()
        self._change()

    @property
    def folder(self) -> Path:
        """Where the report is, and what the supervisor leaves beside it."""
        return self._path.parent

    @property
    def last_checkpoint(self) -> CheckpointReport | None:
        """The newest finished checkpoint of this attempt."""
        return self._report.last_checkpoint

    @property
    def step(self) -> int:
        """The last finished step that was told."""
        return self._report.progress.step if self._report.progress else 0

    @property
    def checkpoints(self) -> tuple[CheckpointReport, ...]:
        """The finished checkpoints of this attempt that anybody may have been told of."""
        return self._report.checkpoints

    @property
    def held(self) -> CheckpointReport | None:
        """The newest one, where it is held back."""
        return self._report.held

    def named_steps(self) -> list[int]:
        """Return the steps of this attempt that the run's status names; none where nobody said."""
        try:
            return [int(step) for step in json.loads(self._path.with_name(NAMED_STEPS_NAME).read_bytes())]
        except (OSError, TypeError, ValueError):
            return []

    def phase(self, phase: str) -> None:
        """Say what the role is about."""
        self._change(phase=phase)

    @contextmanager
    def spending(self, phase: PhaseName) -> Iterator[None]:
        """Count the time inside for that phase of the estimate, and not for one around it."""
        around = self._spending
        self._count(phase)
        try:
            yield
        finally:
            self._count(around)

    def progress(self, progress: ProgressReport) -> None:
        """Say how far the role is."""
        with self._lock:
            self._report = self._report.model_copy(update={"progress": progress})
            if time.monotonic() - self._written_at >= PROGRESS_SECONDS:
                self._change()

    def checkpoint(self, checkpoint: CheckpointReport, disk: DiskReport, hold: bool = False) -> bool:
        """Tell, or hold back, a checkpoint that is complete on disk, and say what room is left; return whether that is written.

        At once: it is one thing to write down. One that was held back before is not there any more.
        """
        if hold:
            return self._change(held=checkpoint, disk=disk)
        return self._change(checkpoints=(*self._report.checkpoints, checkpoint), held=None, disk=disk)

    def drop_checkpoints(self, steps: Collection[int]) -> None:
        """Tell of these no more."""
        if steps:
            self._change(checkpoints=tuple(told for told in self._report.checkpoints if told.step not in steps))

    def room(self, disk: DiskReport) -> None:
        """Say what room the checkpoints have."""
        self._change(disk=disk)

    def adopt(self, report: Report) -> None:
        """Go on from the report that the process which did the work has written to the same file."""
        self._report = report

    def finish(self, outcome: Outcome) -> None:
        """Say how the role ended, and how long its phases took; another process that did the work has said so already."""
        seconds = outcome.seconds or {phase: round(spent, 3) for phase, spent in self._seconds.items()}
        self._change(outcome=outcome.model_copy(update={"seconds": seconds}), phase="Done")

    def _count(self, following: PhaseName | None) -> None:
        with self._lock:
            now = time.monotonic()
            if self._spending is not None:
                self._seconds[self._spending] = self._seconds.get(self._spending, 0.0) + now - self._since
            self._spending, self._since = following, now

    def _change(self, **update: Any) -> bool:
        with self._lock:
            self._report = self._report.model_copy(update=update)
            self._written_at = time.monotonic()
            if not self._writes:
                return False
            try:
                replace_file(self._path, self._report.model_dump_json(by_alias=True, exclude_none=True))
            except OSError as error:
                # Nobody hears of the progress, but the training itself is not harmed.
                print(f"the report can't be written: {error}", file=sys.stderr)
                return False
            return True


def now() -> str:
    """Return the time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
