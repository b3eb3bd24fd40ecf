"""The life of a pod of a run, from its run file to its termination message."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import FrameType

from halo_api.conditions import Reason
from halo_api.report import Answer, Outcome
from halo_api.run_file import DIGEST_VARIABLE, RunFile
from halo_supervisor.cgroup import oom_kills
from halo_supervisor.deadline import Countdown, birth, deadline_in
from halo_supervisor.load import UntrustedRunFile, load_run_file
from halo_supervisor.outcome import RoleEnd, outcome_of
from halo_supervisor.paths import Paths
from halo_supervisor.reporter import Reporter
from halo_supervisor.role import Role
from halo_supervisor.stop import BUDGET, INTERRUPTED, STOPPED, Stop, StopCause

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
# At the end of the budget, for the last push: an operator that is away would have the GPUs wait for it, paid for and idle.
LAST_PUSH_SECONDS = 5.0


def supervise(
    paths: Paths,
    role_command: Callable[[RunFile], Sequence[str]],
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> int:
    """Run the role to its end; return the exit code: 0 when it succeeded."""
    origin = birth(paths.born, clock, wall)
    stop = Stop()
    _listen(stop)
    try:
        run = load_run_file(paths.run_file, os.environ.get(DIGEST_VARIABLE))
    except UntrustedRunFile as error:
        log.error("%s", error)
        _leave(Outcome(result="Failed", reason=Reason.CRASHED, message=str(error)), paths)
        return 1
    # What lies here already is not of this role.
    for left in (paths.report, paths.named_steps, paths.servers):
        left.unlink(missing_ok=True)
    countdown = Countdown(run.deadline, clock, origin)
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
        ended_at = datetime.fromtimestamp(wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        outcome = outcome_of(reporter.current(), end, stop.cause, run, ended_at)
    log.info("%s %s: %s", outcome.result, outcome.reason, outcome.message)
    _leave(outcome, paths)
    final = reporter.current().model_copy(update={"outcome": outcome, "phase": "Done"})
    reporter.finish(final, push_seconds(stop.cause))
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
    while not role.reap():
        if (newer := deadline_in(paths.deadline)) is not None:
            countdown.update(newer)
        remaining = countdown.remaining()
        if remaining is not None and remaining <= 0:
            stop.ask(BUDGET)
        for cause in stop.heed(run, clock()):
            log.info("stopping the role: %s", cause.message)
            role.signal(cause.signal)
        if stop.kill_at is None and reporter.current().outcome is not None:
            # It has said how it ended; hanging in its own clean-up must not hold the GPUs.
            stop.kill_by(clock() + run.grace_seconds)
        if stop.kill_at is not None and clock() >= stop.kill_at:
            log.warning("the role did not end in its time and is killed")
            role.signal(signal.SIGKILL)
            stop.kill_at = clock() + LOOK_SECONDS
        coming = (LOOK_SECONDS, remaining, stop.kill_at and stop.kill_at - clock())
        stop.wake.wait(min(seconds for seconds in coming if seconds is not None and seconds > 0))


def push_seconds(cause: StopCause | None) -> float:
    """Return how long the last push may be tried: at the end of the budget it is short, since the termination message says the same."""
    return LAST_PUSH_SECONDS if cause is not None and cause.reason == Reason.BUDGET_REACHED else math.inf


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
