"""The report file of a rollout pod: its phase and its outcome, replaced whole; the supervisor pushes it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal

from halo_api.report import Outcome, Report
from halo_api.run_file import RunFile


class ReportFile:
    """Writes every change of the report."""

    def __init__(self, path: Path, run: RunFile) -> None:
        self._path = path
        self._report = Report(run_uid=run.run.uid, attempt=run.run.attempt)
        self._write()

    @property
    def working(self) -> bool:
        """Whether it has said that the server can sample."""
        return self._report.phase == "Working"

    def phase(self, phase: Literal["Starting", "Loading", "Working"]) -> None:
        """Say what the server is about."""
        self._report = self._report.model_copy(update={"phase": phase})
        self._write()

    def finish(self, outcome: Outcome) -> None:
        """Say how it ended."""
        self._report = self._report.model_copy(update={"phase": "Done", "outcome": outcome})
        self._write()

    def _write(self) -> None:
        new = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(self._report.model_dump_json(by_alias=True, exclude_none=True), encoding="utf-8")
            new.replace(self._path)
        except OSError as error:
            # Nobody hears of it, but the server itself is not harmed.
            print(f"the report can't be written: {error}", file=sys.stderr)
