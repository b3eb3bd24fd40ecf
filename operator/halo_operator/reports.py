"""The latest report of each run, between its arrival and the status that takes it in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from halo_api.report import Deadline, Report
from halo_api.rollouts import Servers
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan.stopping import Deadlines


@dataclass
class _Entry:
    report: Report
    checkpoints: frozenset[int] = frozenset()
    outcome: bool = False
    # Of the report's attempt; unset until its status was looked at.
    named: tuple[int, ...] | None = None


class Reports:
    """Levels, kept in memory: what is lost with the process is pushed again, since nobody acknowledged it."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._by_run: dict[str, _Entry] = {}
        self._attempts: dict[str, int] = {}
        self._deadlines: dict[str, Deadlines] = {}
        self._heard: dict[tuple[str, int, str], datetime] = {}
        self._servers: dict[str, Servers] = {}

    def put(self, report: Report) -> bool:
        """Take a report and return whether it says anything newer; one of an older attempt or sequence never replaces a newer."""
        self.hear(report)
        old = self._by_run.get(report.run_uid)
        if old and (old.report.attempt, old.report.sequence) >= (report.attempt, report.sequence):
            return False
        if old and old.report.attempt == report.attempt:
            self._by_run[report.run_uid] = _Entry(report, old.checkpoints, old.outcome, old.named)
        else:
            self._by_run[report.run_uid] = _Entry(report)
        return True

    def hear(self, report: Report, server: str = "") -> None:
        """Note that the run gave a sign of life, or the pod of that name that is one of its rollout servers.

        What such a pod reports is no word about the run: nothing of it is kept but that it came.
        """
        self._heard[report.run_uid, report.attempt, server] = self._now()

    def latest(self, run_uid: str) -> Report | None:
        """Return the newest report of a run."""
        entry = self._by_run.get(run_uid)
        return entry.report if entry else None

    def written(self, run_uid: str, status: TrainingJobStatus) -> None:
        """Note what the run's stored status holds, so that it can be acknowledged."""
        self._attempts[run_uid] = status.attempt or 0
        entry = self._by_run.get(run_uid)
        if entry is None:
            return
        attempt = entry.report.attempt
        entry.checkpoints = frozenset(c.step for c in status.checkpoints)
        entry.named = tuple(c.step for c in status.checkpoints if c.attempt == attempt)
        entry.outcome = any(r.attempt == attempt and r.reason for r in status.attempts)

    def close(self, run_uid: str) -> None:
        """Note that the run is being deleted: nothing of it will be written any more."""
        self._by_run.pop(run_uid, None)
        self._attempts[run_uid] = sys.maxsize

    def is_stale(self, report: Report) -> bool:
        """Whether the run is gone, or has gone on to another attempt: what an old pod still says is of no use."""
        return report.attempt < self._attempts.get(report.run_uid, 0)

    def acknowledged(self, report: Report) -> bool:
        """Whether the run's stored status holds every checkpoint and outcome of this report."""
        entry = self._by_run.get(report.run_uid)
        if entry is None or entry.report.attempt != report.attempt:
            return False
        steps = {c.step for c in report.checkpoints}
        # Older checkpoints leave the status; what counts is that the newest is there.
        saved = not steps or max(steps) in entry.checkpoints
        return saved and (report.outcome is None or entry.outcome)

    def limit(self, run_uid: str, deadlines: Deadlines) -> None:
        """Note what the pods of the run's current attempt must know of its end."""
        self._deadlines[run_uid] = deadlines

    def serve(self, run_uid: str, servers: Servers | None) -> None:
        """Note where the rollout servers of the run's current attempt are; of a run that has none there is nothing to note."""
        if servers is not None:
            self._servers[run_uid] = servers

    def servers(self, report: Report) -> Servers | None:
        """Return where the rollout servers of the report's attempt are, as far as it is known."""
        found = self._servers.get(report.run_uid)
        return found if found and found.attempt == report.attempt else None

    def deadline(self, report: Report, pod: str) -> tuple[Deadline | None, bool]:
        """Return the deadline of the pod of that name, and whether the time of its attempt is over."""
        found = self._deadlines.get(report.run_uid)
        if found is None or found.attempt != report.attempt:
            return None, False
        return found.by_pod.get(pod), found.over

    def heard(self, run_uid: str, attempt: int, server: str = "") -> datetime | None:
        """Return when the attempt's last report was taken, or that of its server; unknown to a process that took none."""
        return self._heard.get((run_uid, attempt, server))

    def saved_step(self, run_uid: str) -> int | None:
        """Return the step of the newest checkpoint in the run's stored status, as far as it is known."""
        entry = self._by_run.get(run_uid)
        return max(entry.checkpoints, default=None) if entry else None

    def named_steps(self, report: Report) -> tuple[int, ...] | None:
        """Return the steps of the report's attempt whose checkpoints the run's stored status names, as far as it is known."""
        entry = self._by_run.get(report.run_uid)
        return entry.named if entry and entry.report.attempt == report.attempt else None

    def forget(self, run_uid: str) -> None:
        """Drop a run that is gone."""
        self._by_run.pop(run_uid, None)
        self._deadlines.pop(run_uid, None)
        self._servers.pop(run_uid, None)
        for known in [known for known in self._heard if known[0] == run_uid]:
            del self._heard[known]
        self._attempts.pop(run_uid, None)
