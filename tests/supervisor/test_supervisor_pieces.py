"""The supervisor's pure pieces."""

from __future__ import annotations

from pathlib import Path

import pytest

from halo_api.conditions import Reason
from halo_api.report import Deadline, Outcome, Report
from halo_supervisor.cgroup import oom_kills
from halo_supervisor.deadline import Countdown
from halo_supervisor.outcome import DEADLINE, INTERRUPTED, RoleEnd, StopCause, outcome_of


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_higher_sequence_wins_and_counts_from_its_arrival() -> None:
    clock = Clock()
    countdown = Countdown(Deadline(sequence=2, remaining_seconds=60), clock)
    clock.now += 50
    assert countdown.remaining() == 10
    assert not countdown.update(Deadline(sequence=2, remaining_seconds=999))
    assert not countdown.update(Deadline(sequence=1, remaining_seconds=999))
    assert countdown.update(Deadline(sequence=3, remaining_seconds=30))
    assert countdown.remaining() == 30
    assert countdown.update(Deadline(sequence=4))
    assert countdown.remaining() is None


def report(outcome: Outcome | None) -> Report:
    return Report(run_uid="uid-1", attempt=1, outcome=outcome)


def said(reason: Reason, result: str = "Failed") -> Outcome:
    return Outcome.model_validate({"result": result, "reason": reason})


KILLED = RoleEnd(exit_code=-9, last_error_line="", oom_kills=0)
KILLED_FOR_MEMORY = RoleEnd(exit_code=-9, last_error_line="", oom_kills=1)
FAILED = RoleEnd(exit_code=1, last_error_line="boom", oom_kills=0)
FAILED_FOR_MEMORY = RoleEnd(exit_code=1, last_error_line="boom", oom_kills=1)
ENDED = RoleEnd(exit_code=0, last_error_line="", oom_kills=0)


@pytest.mark.parametrize(
    ("role", "end", "cause", "reason"),
    [
        (said(Reason.SUCCEEDED, "Succeeded"), ENDED, DEADLINE, Reason.SUCCEEDED),
        (said(Reason.DISK_FULL), FAILED, DEADLINE, Reason.DISK_FULL),
        (said(Reason.INTERRUPTED), FAILED, DEADLINE, Reason.DEADLINE_REACHED),
        (said(Reason.INTERRUPTED), FAILED, INTERRUPTED, Reason.INTERRUPTED),
        (said(Reason.CRASHED), FAILED, DEADLINE, Reason.DEADLINE_REACHED),
        (None, KILLED, DEADLINE, Reason.DEADLINE_REACHED),
        (None, KILLED, INTERRUPTED, Reason.INTERRUPTED),
        (None, KILLED, None, Reason.CRASHED),
        (None, KILLED_FOR_MEMORY, None, Reason.OUT_OF_MEMORY),
        # A rank was killed for memory, and the launcher saw only that it was lost.
        (said(Reason.CRASHED), FAILED_FOR_MEMORY, None, Reason.OUT_OF_MEMORY),
        (said(Reason.CRASHED), FAILED, None, Reason.CRASHED),
        (None, ENDED, None, Reason.CRASHED),
    ],
)
def test_the_outcome_follows_from_word_end_and_cause(
    role: Outcome | None, end: RoleEnd, cause: StopCause | None, reason: Reason
) -> None:
    assert outcome_of(report(role), end, cause).reason == reason


@pytest.mark.parametrize(
    ("membership", "file", "text"),
    [
        ("0::/\n", "memory.events", "low 0\noom 2\noom_kill 2\n"),
        ("0::/pod/x\n", "pod/x/memory.events", "oom_kill 2\n"),
        ("9:cpu:/\n4:memory:/pod/x\n", "memory/pod/x/memory.oom_control", "oom_kill_disable 0\noom_kill 2\n"),
        ("4:memory:/pod/x\n", "memory/memory.oom_control", "under_oom 0\noom_kill 2\n"),
    ],
)
def test_both_versions_of_cgroups_count_kills(membership: str, file: str, text: str, tmp_path: Path) -> None:
    own = tmp_path / "self"
    own.write_text(membership)
    counter = tmp_path / "cgroup" / file
    counter.parent.mkdir(parents=True)
    counter.write_text(text)
    assert oom_kills(tmp_path / "cgroup", own) == 2
    counter.unlink()
    assert oom_kills(tmp_path / "cgroup", own) == 0
