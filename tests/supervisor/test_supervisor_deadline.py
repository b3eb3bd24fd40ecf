"""The supervisor at its deadline: the role is told, has its time to publish, and is killed if it does not heed."""

from __future__ import annotations

import os
import signal

import pytest
from supervisor_support import (
    PUBLISHES,
    SUCCEEDS,
    TRAIN,
    Pod,
    has_checkpoint,
)

from halo_api.conditions import Reason
from halo_api.report import Answer, Deadline


@pytest.mark.parametrize("how", ["run file", "deadline file", "answer", "stop"])
def test_at_the_deadline_the_role_publishes(how: str, pod: Pod) -> None:
    pod.touch("published")
    pod.set_clock(100)
    pod.start(PUBLISHES, deadline={"sequence": 1, "remainingSeconds": 3600})
    pod.operator.wait_for(has_checkpoint(2))  # type: ignore[arg-type]
    if how == "run file":
        pod.set_clock(3700)
    elif how == "deadline file":
        pod.set_deadline(2, 0)
    elif how == "answer":
        soon = Deadline(sequence=2, remaining_seconds=0.0)
        pod.operator.answer = lambda report: Answer(acknowledged=True, deadline=soon)
    elif how == "stop":
        pod.operator.answer = lambda report: Answer(acknowledged=True, command="stop")
    code, outcome, _ = pod.end()
    assert (code, outcome.result, outcome.reason) == (0, "Succeeded", Reason.BUDGET_REACHED)
    assert pod.operator.reports[-1].outcome == outcome


def test_a_deadline_that_is_read_late_counts_from_the_birth(pod: Pod) -> None:
    pod.touch("published")
    pod.set_clock(10_000)
    pod.touch("born")
    os.utime(pod.folder / "born", (9_000, 9_000))
    pod.start(PUBLISHES)
    pod.operator.wait_for(has_checkpoint(2))  # type: ignore[arg-type]
    pod.set_clock(10_090)
    # A thousand seconds from its birth are over by then.
    pod.set_deadline(1, 1_090)
    assert pod.end()[1].reason == Reason.BUDGET_REACHED


def test_a_raise_arrives_while_no_push_does(pod: Pod) -> None:
    pod.touch("published")
    pod.operator.answer = lambda report: 500
    pod.set_clock(100)
    url = f"https://127.0.0.1:{pod.operator.port}/reports"
    reporting = {"url": url, "intervalSeconds": 0.2, "finalPushSeconds": 1}
    pod.start(PUBLISHES, deadline={"sequence": 0, "remainingSeconds": 50}, reporting=reporting)
    pod.operator.wait_for(has_checkpoint(2))  # type: ignore[arg-type]
    pod.set_deadline(1, 500)
    pod.set_clock(101, heeded=True)
    pod.set_clock(400, heeded=True)
    assert not (pod.folder / "publishing").exists()
    pod.set_clock(600)
    assert pod.end()[1].reason == Reason.BUDGET_REACHED


def test_a_pod_that_goes_while_it_publishes_loses_nothing(pod: Pod) -> None:
    process = pod.start(PUBLISHES)
    pod.operator.wait_for(has_checkpoint(2))  # type: ignore[arg-type]
    pod.set_deadline(1, 0)
    pod.wait_for("publishing")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    pod.touch("published")
    code, outcome, _ = pod.end()
    assert (code, outcome.result, outcome.reason) == (0, "Succeeded", Reason.BUDGET_REACHED)
    assert not (pod.folder / "told to leave").exists()


def test_a_role_that_spins_at_its_deadline_is_killed_and_its_checkpoint_told(pod: Pod) -> None:
    pod.set_clock(100)
    spins = "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\nsay(checkpoints=[checkpoint(2)], held=checkpoint(3))\n"
    spins += "while True: pass\n"
    process = pod.start(spins, publishSeconds=10, deadline={"sequence": 0, "remainingSeconds": 50})
    pod.operator.wait_for(has_checkpoint(2))  # type: ignore[arg-type]
    pod.set_clock(151, heeded=True)
    pod.set_clock(151 + 24, heeded=True)
    assert process.poll() is None
    pod.set_clock(151 + 26)
    code, outcome, errors = pod.end()
    assert (code, outcome.result, outcome.reason) == (1, "Failed", Reason.BUDGET_REACHED)
    assert outcome.checkpoint
    assert outcome.checkpoint.step == 3
    assert "is killed" in errors


def test_a_role_that_dies_of_the_signal_while_it_starts_had_no_checkpoint(pod: Pod) -> None:
    pod.start("time.sleep(600)\n", deadline={"sequence": 0, "remainingSeconds": 0}, train=TRAIN)
    code, outcome, _ = pod.end()
    assert (code, outcome.reason) == (1, Reason.BUDGET_BEFORE_FIRST_CHECKPOINT)
    assert outcome.checkpoint is None


def test_an_older_deadline_changes_nothing(pod: Pod) -> None:
    pod.operator.answer = lambda report: Answer(acknowledged=True, deadline=Deadline(sequence=4, remaining_seconds=0.0))
    pod.start(f'say(phase="Working")\nuntil("off")\n{SUCCEEDS}', deadline={"sequence": 4, "remainingSeconds": 3600})
    pod.operator.wait_for(lambda reports: len(reports) > 3)
    pod.touch("off")
    assert pod.end()[0] == 0
