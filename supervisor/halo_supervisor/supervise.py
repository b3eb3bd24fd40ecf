"""The life of a pod of a run, from its run file to its termination message."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

from halo_api.conditions import Reason
from halo_api.report import Answer, Outcome
from halo_api.run_file import DIGEST_VARIABLE, RunFile
from halo_supervisor.cgroup import oom_kills
from halo_supervisor.deadline import Countdown, deadline_in
from halo_supervisor.load import UntrustedRunFile, load_run_file
from halo_supervisor.outcome import DEADLINE, INTERRUPTED, STOPPED, RoleEnd, StopCause, outcome_of
from halo_supervisor.paths import Paths
from halo_supervisor.reporter import Reporter
from halo_supervisor.role import Role

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25


class Stop:
    """The first reason to stop the role wins; told from signal handlers and from the reporter's thread."""

    def __init__(self) -> None:
        self.cause: StopCause | None = None
        self.wake = threading.Event()

    def ask(self, cause: StopCause) -> None:
        """Ask that the role be stopped."""
        self.cause = self.cause or cause
        self.wake.set()


def supervise(
    paths: Paths, role_command: Callable[[RunFile], Sequence[str]], clock: Callable[[], float] = time.monotonic
) -> int:
    """Run the role to its end; return the exit code: 0 when it succeeded."""
    stop = Stop()
    _listen(stop)
    try:
        run = load_run_file(paths.run_file, os.environ.get(DIGEST_VARIABLE))
    except UntrustedRunFile as error:
        log.error("%s", error)
        _leave(Outcome(result="Failed", reason=Reason.CRASHED, message=str(error)), paths)
        return 1
    # A report that lies here already is not of this attempt.
    paths.report.unlink(missing_ok=True)
    countdown = Countdown(run.deadline, clock)
    reporter = Reporter(run, paths, lambda answer: _heed(answer, countdown, stop))
    killed_before = oom_kills(paths.cgroups)
    try:
        role = Role(role_command(run))
    except OSError as error:
        outcome = Outcome(result="Failed", reason=Reason.CRASHED, message=f"the role could not be started: {error}")
    else:
        reporter.start()
        _keep(role, run, countdown, stop, reporter, paths, clock)
        role.finish()
        assert role.exit_code is not None
        end = RoleEnd(role.exit_code, role.last_error_line, oom_kills(paths.cgroups) - killed_before)
        outcome = outcome_of(reporter.current(), end, stop.cause)
    log.info("%s %s: %s", outcome.result, outcome.reason, outcome.message)
    _leave(outcome, paths)
    reporter.finish(reporter.current().model_copy(update={"outcome": outcome, "phase": "Done"}))
    return 0 if outcome.result == "Succeeded" else 1


def _keep(
    role: Role,
    run: RunFile,
    countdown: Countdown,
    stop: Stop,
    reporter: Reporter,
    paths: Paths,
    clock: Callable[[], float],
) -> None:
    """Wait for the role's end; stop it at the deadline or when asked, and kill it when it does not heed that."""
    kill_at: float | None = None
    while not role.reap():
        if (newer := deadline_in(paths.deadline)) is not None:
            countdown.update(newer)
        remaining = countdown.remaining()
        if remaining is not None and remaining <= 0:
            stop.ask(DEADLINE)
        if kill_at is None and stop.cause is not None:
            log.info("stopping the role: %s", stop.cause.message)
            role.signal(signal.SIGTERM)
            kill_at = clock() + run.grace_seconds
        elif kill_at is None and reporter.current().outcome is not None:
            # It has said how it ended; hanging in its own clean-up must not hold the GPUs.
            kill_at = clock() + run.grace_seconds
        if kill_at is not None and clock() >= kill_at:
            log.warning("the role did not end within %.0f s and is killed", run.grace_seconds)
            role.signal(signal.SIGKILL)
            kill_at = clock() + LOOK_SECONDS
        soonest = min(x for x in (LOOK_SECONDS, remaining, kill_at and kill_at - clock()) if x is not None)
        stop.wake.wait(max(0.01, soonest))
        stop.wake.clear()


def _heed(answer: Answer, countdown: Countdown, stop: Stop) -> None:
    if answer.deadline is not None and countdown.update(answer.deadline):
        stop.wake.set()
    if answer.command == "stop":
        stop.ask(STOPPED)


def _listen(stop: Stop) -> None:
    """Take the signals that process 1 gets; without handlers the kernel would drop them."""

    def told_to_end(number: int, frame: FrameType | None) -> None:
        stop.ask(INTERRUPTED)

    def child_ended(number: int, frame: FrameType | None) -> None:
        stop.wake.set()

    signal.signal(signal.SIGTERM, told_to_end)
    signal.signal(signal.SIGINT, told_to_end)
    signal.signal(signal.SIGCHLD, child_ended)


def _leave(outcome: Outcome, paths: Paths) -> None:
    """Write the termination message, before any push: the outcome must not depend on the operator being up."""
    try:
        paths.termination_log.write_text(outcome.termination_message(), encoding="utf-8")
    except OSError as error:
        log.error("the termination message can't be written to %s: %s", paths.termination_log, error)
