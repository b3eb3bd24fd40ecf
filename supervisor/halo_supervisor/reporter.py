"""The reporter: watches the file that the role writes and pushes what it says, in a thread of its own.

A push may hang for seconds, and neither the deadline nor a dead role may wait for it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from halo_api.report import Answer, Report
from halo_api.run_file import RunFile
from halo_supervisor.paths import Paths
from halo_supervisor.push import PushFailure, push

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
STANDBY_RETRY_SECONDS = 0.2
FIRST_RETRY_SECONDS = 0.5


class Reporter:
    """Pushes the report until told to finish; what the operator answers goes to `answered`."""

    def __init__(self, run: RunFile, paths: Paths, answered: Callable[[Answer], None]) -> None:
        self._run = run
        self._paths = paths
        self._answered = answered
        self._sequence = 0
        self._retries = 0
        self._pause = FIRST_RETRY_SECONDS
        self._failure: PushFailure | None = None
        self._kept: dict[Path, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Begin to watch and push."""
        self._thread.start()

    def current(self) -> Report:
        """Return what the role last wrote, or the report of a role that has not written yet."""
        identity = self._run.run
        return read_report(self._paths.report, self._run) or Report(run_uid=identity.uid, attempt=identity.attempt)

    def finish(self, final: Report, at_most: float) -> bool:
        """Push the final report until it is acknowledged or the time for it is over; return whether it was."""
        self._stop.set()
        reporting = self._run.reporting
        if reporting is None:
            return False
        end = time.monotonic() + min(reporting.final_push_seconds, at_most)
        # A role that could not be started was never watched.
        if self._thread.ident is not None:
            self._thread.join(max(0.0, end - time.monotonic()))
        self._retries = 0
        while True:
            answer = self._push(final)
            if answer is not None and answer.acknowledged:
                return True
            if answer is None and self._failure is not None and self._failure.final:
                return False
            # Taken but not yet in the run's status: the operator was between its writes, so ask again soon.
            pause = FIRST_RETRY_SECONDS if answer is not None else self._pause
            if time.monotonic() + pause >= end:
                log.warning("the operator has not acknowledged the outcome; it stays in the termination message")
                return False
            time.sleep(pause)

    def _watch(self) -> None:
        reporting = self._run.reporting
        if reporting is None:
            return
        pushed_checkpoints: tuple[int, ...] | None = None
        due = 0.0
        while not self._stop.wait(LOOK_SECONDS):
            report = self.current()
            # The outcome is the supervisor's to settle (a stopped role calls itself interrupted), so it goes last.
            # A checkpoint that is held back is told by it too: until then the role may delete it.
            report = report.model_copy(update={"outcome": None, "held": None})
            checkpoints = tuple(checkpoint.step for checkpoint in report.checkpoints)
            news = checkpoints != pushed_checkpoints and self._retries == 0
            if time.monotonic() < due and not news:
                continue
            answer = self._push(report)
            if answer is None:
                due = time.monotonic() + self._pause
            else:
                due = time.monotonic() + reporting.interval_seconds
                pushed_checkpoints = checkpoints

    def _push(self, report: Report) -> Answer | None:
        assert self._run.reporting is not None
        self._sequence += 1
        answer = push(report.model_copy(update={"sequence": self._sequence}), self._run.reporting.url, self._paths)
        if isinstance(answer, PushFailure):
            backoff = min(FIRST_RETRY_SECONDS * 2**self._retries, self._longest_pause)
            self._pause = STANDBY_RETRY_SECONDS if answer.standby else backoff
            self._retries += 1
            # A standby is an everyday answer; a failure is said when it is a new one, and then only as it lasts.
            if not answer.standby and (answer != self._failure or self._retries & (self._retries - 1) == 0):
                log.warning("push %d not taken, trying again: %s", self._sequence, answer.message)
            self._failure = answer
            return None
        self._retries = 0
        self._keep(answer)
        self._answered(answer)
        return answer

    def _keep(self, answer: Answer) -> None:
        """Tell the role what the operator answered: which of its checkpoints the run's status names, so that it may delete those
        that it has left out, and where the run's rollout servers are now."""
        if answer.checkpoints is not None:
            self._write(self._paths.named_steps, json.dumps(answer.checkpoints))
        if answer.servers is not None:
            self._write(self._paths.servers, answer.servers.model_dump_json(by_alias=True))

    def _write(self, path: Path, text: str) -> None:
        """Write what is new; who reads it meanwhile finds all of the old or all of the new."""
        if self._kept.get(path) == text:
            return
        new = path.with_name(f".{path.name}")
        try:
            new.write_text(text)
            new.replace(path)
            self._kept[path] = text
        except OSError as error:
            log.warning("%s can't be written: %s", path, error)

    @property
    def _longest_pause(self) -> float:
        assert self._run.reporting is not None
        return max(FIRST_RETRY_SECONDS, self._run.reporting.interval_seconds)


def read_report(path: Path, run: RunFile) -> Report | None:
    """Return the role's report; None before the first one, and for one that is not this attempt's."""
    try:
        report = Report.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return report if (report.run_uid, report.attempt) == (run.run.uid, run.run.attempt) else None
