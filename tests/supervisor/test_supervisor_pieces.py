"""The supervisor's pure pieces."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from halo_api.conditions import Reason
from halo_api.report import CheckpointReport, Deadline, Outcome, Report
from halo_api.run_file import RunFile
from halo_supervisor.__main__ import role_command
from halo_supervisor.cgroup import oom_kills
from halo_supervisor.deadline import Countdown, birth
from halo_supervisor.outcome import RoleEnd, outcome_of
from halo_supervisor.stop import BUDGET, INTERRUPTED, STOPPED, Stop, StopCause
from halo_supervisor.supervise import push_seconds


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_higher_sequence_wins_and_counts_from_the_birth() -> None:
    clock = Clock()
    countdown = Countdown(Deadline(sequence=2, remaining_seconds=60), clock, origin=clock.now)
    clock.now += 50
    assert countdown.remaining() == 10
    assert not countdown.update(Deadline(sequence=2, remaining_seconds=999))
    assert not countdown.update(Deadline(sequence=1, remaining_seconds=999))
    assert countdown.update(Deadline(sequence=3, remaining_seconds=80))
    assert countdown.remaining() == 30
    assert countdown.update(Deadline(sequence=4))
    assert countdown.remaining() is None


def test_the_birth_is_when_the_node_set_up_the_volumes(tmp_path: Path) -> None:
    clock, born = Clock(), tmp_path / "uid"
    assert birth(born, clock, lambda: 5000.0) == 100
    born.touch()
    os.utime(born, (4910, 4910))
    assert birth(born, clock, lambda: 5000.0) == 10
    # The clock was set back meanwhile: no time can be given back for that.
    assert birth(born, clock, lambda: 4000.0) == 100


def run(resume: int | None = None, node_rank: int = 0) -> RunFile:
    last = {"step": resume, "uri": "pvc://a/s", "digest": DIGEST} if resume else None
    return RunFile.model_validate(
        {
            "role": "train",
            "run": {"kind": "TrainingJob", "namespace": "team", "name": "run", "uid": "uid-1", "attempt": 1},
            "base": {"name": "b", "source": "pvc://m/b", "revision": "r", "dtype": "fp32", "contextLength": 512},
            "data": {"name": "chat", "kind": "chat", "source": "pvc://d/chat.jsonl"},
            "train": {
                "steps": 9, "batch": 1, "saveSteps": 4, "seed": 0, "lora": {"dataset": "chat"}, "output": "pvc://a/o",
                "resume": last,
            },
            "layout": {"nodes": 2, "nodeRank": node_rank},
            "graceSeconds": 60, "publishSeconds": 30,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "told", "kill_at"),
    [
        ([(0, BUDGET)], [BUDGET], 45),
        ([(0, STOPPED), (5, BUDGET)], [STOPPED], 45),
        ([(0, INTERRUPTED), (5, INTERRUPTED)], [INTERRUPTED], 60),
        # The pod's own end goes on, and may only come sooner.
        ([(0, INTERRUPTED), (5, BUDGET)], [INTERRUPTED, BUDGET], 50),
        ([(0, INTERRUPTED), (40, BUDGET)], [INTERRUPTED, BUDGET], 60),
        # A pod that goes while it publishes: nothing tells it to leave.
        ([(0, BUDGET), (5, INTERRUPTED), (6, INTERRUPTED)], [BUDGET], 45),
    ],
)
def test_each_cause_is_told_once_and_may_only_bring_the_end_nearer(
    asked: list[tuple[float, StopCause]], told: list[StopCause], kill_at: float
) -> None:
    stop = Stop()
    heeded = []
    for now, cause in asked:
        stop.ask(cause)
        heeded += stop.heed(run(), now)
    assert (heeded, stop.kill_at) == (told, kill_at)
    assert stop.cause == told[-1]
    assert stop.heed(run(), 99) == []


def test_both_at_once_is_the_budget() -> None:
    stop = Stop()
    stop.ask(INTERRUPTED)
    stop.ask(BUDGET)
    assert stop.heed(run(), 0) == [BUDGET]
    assert stop.kill_at == 45


def test_a_deadline_that_is_over_wakes_the_supervisor_once() -> None:
    """It is looked at until the role has ended: a wake-up at each look would take the role's own CPU."""
    stop = Stop()
    stop.ask(BUDGET)
    assert stop.wake.wait(0)
    stop.ask(BUDGET)
    assert not stop.wake.wait(0)
    stop.ask(INTERRUPTED)
    assert stop.wake.wait(0)


@pytest.mark.parametrize(("cause", "seconds"), [(BUDGET, 5), (STOPPED, 5), (INTERRUPTED, math.inf), (None, math.inf)])
def test_at_the_end_of_the_budget_gpus_do_not_wait_for_an_operator_that_is_away(
    cause: StopCause | None, seconds: float
) -> None:
    assert push_seconds(cause) == seconds


def test_signals_at_any_moment_leave_the_supervisor_awake() -> None:
    """A handler that waits for a lock of the thread below it never returns, and nobody is left to kill the role."""
    program = """
import signal, sys
from halo_supervisor.stop import Stop
wake, seen = Stop().wake, 0
signal.signal(signal.SIGALRM, lambda *_: wake.set())
signal.setitimer(signal.ITIMER_REAL, 5e-4, 5e-4)
while seen < 4000:
    seen += wake.wait(0.25)
signal.setitimer(signal.ITIMER_REAL, 0)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], env=environment, timeout=60, check=True)


def report(outcome: Outcome | None, *checkpoints: CheckpointReport) -> Report:
    return Report(run_uid="uid-1", attempt=1, outcome=outcome, checkpoints=checkpoints)


DIGEST = f"sha256:{'0' * 64}"
AT = "2026-01-01T00:00:00Z"
SAVED = CheckpointReport(step=7, uri="pvc://a/s7", digest=DIGEST, at=AT)


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
        (said(Reason.SUCCEEDED, "Succeeded"), ENDED, BUDGET, Reason.SUCCEEDED),
        (said(Reason.BUDGET_REACHED, "Succeeded"), ENDED, BUDGET, Reason.BUDGET_REACHED),
        (said(Reason.DISK_FULL), FAILED, BUDGET, Reason.DISK_FULL),
        (said(Reason.INTERRUPTED), FAILED, BUDGET, Reason.BUDGET_REACHED),
        (said(Reason.RANK_LOST), FAILED, BUDGET, Reason.BUDGET_REACHED),
        (said(Reason.RANK_LOST), FAILED, None, Reason.RANK_LOST),
        (said(Reason.INTERRUPTED), FAILED, INTERRUPTED, Reason.INTERRUPTED),
        (said(Reason.CRASHED), FAILED, BUDGET, Reason.BUDGET_REACHED),
        (None, KILLED, BUDGET, Reason.BUDGET_REACHED),
        (None, KILLED_FOR_MEMORY, BUDGET, Reason.BUDGET_REACHED),
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
    assert outcome_of(report(role, SAVED), end, cause, run(), AT).reason == reason


def test_what_is_left_at_the_end_of_the_budget_is_the_newest_checkpoint() -> None:
    own = outcome_of(report(None, SAVED), KILLED, BUDGET, run(resume=4), AT)
    assert (own.result, own.reason, own.checkpoint) == ("Failed", Reason.BUDGET_REACHED, SAVED)
    earlier = outcome_of(report(None), KILLED, BUDGET, run(resume=4), AT)
    assert earlier.reason == Reason.BUDGET_REACHED
    assert earlier.checkpoint == CheckpointReport(step=4, uri="pvc://a/s", digest=DIGEST, at=AT)
    none = outcome_of(report(None), KILLED, BUDGET, run(), AT)
    assert (none.result, none.reason) == ("Failed", Reason.BUDGET_BEFORE_FIRST_CHECKPOINT)
    assert none.message == (
        "spec.saveSteps: found 4, and the budget was reached before the first checkpoint; "
        "raise spec.budget.h100Hours or lower spec.saveSteps"
    )
    # Another pod than the first never has one.
    assert outcome_of(report(None), KILLED, BUDGET, run(node_rank=1), AT).reason == Reason.BUDGET_REACHED


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


def test_a_rollout_pods_role_is_the_guard_of_its_server_and_any_other_the_trainer() -> None:
    identity = {"kind": "TrainingJob", "namespace": "team", "name": "run", "uid": "uid-1", "attempt": 1}
    commands = {
        role: role_command(RunFile.model_validate({"role": role, "run": identity})) for role in ("rollout", "train")
    }
    assert commands["rollout"][1:5] == ["-m", "halo_rollout", "serve", "--run-file"]
    assert commands["train"][1:] == ["-m", "halo_trainer", "train"]
