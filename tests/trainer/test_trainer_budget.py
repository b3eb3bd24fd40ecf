"""The end of the budget at exact moments: what is being written is finished, and nothing more is begun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from trainer_support import adapter_bytes, run_file, train_here

from halo_api.conditions import Reason
from halo_api.report import Outcome, Report

# The trainer, which gets the signal as it enters the call of that number of one of its functions.
SIGNALLED = """
import itertools, os, signal, sys, time
from halo_trainer.budget import hold_signal
hold_signal()
from halo_trainer import run, train
from halo_trainer.cli import main
name, number = sys.argv[1], int(sys.argv[2])
where = train if hasattr(train, name) else run
real, calls = getattr(where, name), itertools.count(1)
def entered(*given, **named):
    if next(calls) == number:
        os.kill(os.getpid(), signal.SIGUSR1)
        while signal.SIGUSR1 in signal.sigpending():
            time.sleep(0.001)
    return real(*given, **named)
setattr(where, name, entered)
sys.exit(main(sys.argv[3:]))
"""
# Who ends the process, the main thread or the budget's, is seen in its exit code.
ENDS = """
import os, signal, sys, threading
from halo_api.report import Outcome
from halo_trainer.budget import Budget
budget = Budget()
budget.watch(lambda: Outcome(result="Failed", reason="BudgetReached"), lambda outcome: 7)
def budget_ends():
    os.kill(os.getpid(), signal.SIGUSR1)
    assert budget._over.wait(60)
"""


def signalled(root: Path, function: str, number: int) -> Outcome:
    run, report = root / "run.json", root / "report.json"
    run.write_text(run_file(output="cut").canonical())
    arguments = ["train", "--run-file", str(run), "--volumes", str(root), "--report", str(report)]
    subprocess.run(
        [sys.executable, "-c", SIGNALLED, function, str(number), *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=240,
        check=True,
    )
    outcome = Report.model_validate_json(report.read_bytes()).outcome
    assert outcome
    return outcome


@pytest.mark.parametrize(
    ("function", "number", "step", "reason"),
    [
        ("train_step", 5, 4, Reason.BUDGET_REACHED),
        # A checkpoint that is being written is finished, and is the one that is published.
        ("save_checkpoint", 2, 4, Reason.BUDGET_REACHED),
        # So is the adapter: every step was done.
        ("_write_result", 1, 6, Reason.SUCCEEDED),
    ],
)
def test_what_is_being_written_is_finished(function: str, number: int, step: int, reason: Reason, root: Path) -> None:
    outcome = signalled(root, function, number)
    assert (outcome.result, outcome.reason) == ("Succeeded", reason), outcome.message
    assert outcome.adapter
    assert outcome.checkpoint
    assert (outcome.adapter.step, outcome.checkpoint.step) == (step, step)
    folder = root / "artifacts" / "cut" / "checkpoints" / f"step-{step}" / "adapter"
    assert adapter_bytes(root, "cut") == {path.name: path.read_bytes() for path in folder.iterdir()}
    # And it is what a run of as many steps has at that step: the end of the budget changes no number.
    train_here(run_file(output="straight"), root)
    straight = root / "artifacts" / "straight" / "checkpoints" / f"step-{step}" / "adapter"
    assert adapter_bytes(root, "cut") == {path.name: path.read_bytes() for path in straight.iterdir()}


@pytest.mark.parametrize(
    ("main", "code"),
    [
        # A main thread that hangs, fails after the signal, or would begin something more.
        ("budget_ends()\nthreading.Event().wait()", 7),
        ("budget_ends()\nbudget.settle(Outcome(result='Failed', reason='Crashed'), peers=True)", 7),
        ("budget_ends()\nbudget.pause()", 7),
        ("while True:\n    budget_ends()", 7),
        # A peer that was told first shows as a crash before the own signal.
        (
            "threading.Timer(0.5, budget_ends).start()\n"
            "budget.settle(Outcome(result='Failed', reason='Crashed'), peers=True)",
            7,
        ),
        # A main thread that had come to its own end before.
        (
            "budget.settle(Outcome(result='Succeeded', reason='Succeeded'), peers=True)\nbudget_ends()\nsys.exit(3)",
            3,
        ),
        ("budget.settle(Outcome(result='Failed', reason='DiskFull'), peers=True)\nbudget_ends()\nsys.exit(3)", 3),
    ],
)
def test_either_the_training_ends_the_process_or_the_budget(main: str, code: int) -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", ENDS + main], env=env, timeout=60).returncode == code
