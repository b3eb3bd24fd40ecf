"""The supervisor as a process over real roles, pushing to a real HTTPS server."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from supervisor_support import (
    STUBBORN,
    SUCCEEDS,
    WORKS,
    Pod,
    has_checkpoint,
    is_gone,
)

from halo_api.conditions import Reason
from halo_api.report import Answer, Report
from halo_api.retention import NAMED_STEPS_NAME
from halo_api.rollouts import SERVERS_NAME, ServerAddress, Servers
from halo_api.run_file import DIGEST_VARIABLE


def test_a_success_is_pushed_and_left_as_termination_message(pod: Pod) -> None:
    pod.start(SUCCEEDS)
    code, outcome, _ = pod.end()
    assert (code, outcome.result, outcome.reason) == (0, "Succeeded", Reason.SUCCEEDED)
    final = pod.operator.reports[-1]
    assert final.outcome == outcome
    assert final.phase == "Done"
    sequences = [report.sequence for report in pod.operator.reports]
    assert sequences == sorted(set(sequences))
    assert set(pod.operator.tokens) == {"Bearer first-token"}


def test_a_new_checkpoint_is_pushed_at_once(pod: Pod) -> None:
    """The interval is far longer than the test may take."""
    reporting = {"url": f"https://127.0.0.1:{pod.operator.port}/reports", "intervalSeconds": 3600}
    pod.start(
        'say(checkpoints=[checkpoint(1)])\nuntil("on")\nsay(checkpoints=[checkpoint(1), checkpoint(2)])\nuntil("off")\n'
        + SUCCEEDS,
        reporting=reporting,
    )
    pod.operator.wait_for(has_checkpoint(1))  # type: ignore[arg-type]
    pod.touch("on")
    pod.operator.wait_for(has_checkpoint(2))  # type: ignore[arg-type]
    pod.touch("off")
    assert pod.end()[0] == 0


@pytest.mark.parametrize(
    ("answers", "named"),
    [
        ([Answer(acknowledged=False)], None),
        ([Answer(acknowledged=True, checkpoints=())], []),
        ([Answer(acknowledged=True, checkpoints=(8, 9))], [8, 9]),
        ([Answer(acknowledged=True, checkpoints=(8,)), Answer(acknowledged=True), 500], [8]),
        # Its status may name more, which must stay.
        ([Answer(acknowledged=True, saved_step=8)], None),
        ([503, 401], None),
    ],
    ids=["not known", "none", "written", "not known any more", "an older operator", "not taken"],
)
def test_the_role_can_read_which_checkpoints_the_status_names(
    answers: list[Answer | int], named: list[int] | None, pod: Pod
) -> None:
    given = iter(answers)
    # What an earlier role was told says nothing of what this one makes.
    (pod.folder / NAMED_STEPS_NAME).write_text("[5]")
    pod.operator.answer = lambda report: next(given, 503)
    pod.start(f'say(checkpoints=[checkpoint(8), checkpoint(9)], held=checkpoint(10))\nuntil("off")\n{SUCCEEDS}')
    # A push follows once the answer before it is dealt with.
    reports = pod.operator.wait_for(lambda reports: len(reports) > len(answers) + 1)
    path = pod.folder / NAMED_STEPS_NAME
    assert (json.loads(path.read_text()) if path.exists() else None) == named
    # The role may still delete it.
    assert all(report.held is None for report in reports)
    pod.operator.answer = lambda report: Answer(acknowledged=True)
    pod.touch("off")
    assert pod.end()[0] == 0


def test_the_role_can_read_where_the_rollout_servers_are_now(pod: Pod) -> None:
    """An answer that says nothing of them, or none at all, takes nothing away."""
    was, is_ = (
        Servers(attempt=1, servers=(ServerAddress(server=0, incarnation=n, host=f"a1-s0-i{n}.run"),)) for n in (1, 2)
    )
    given = iter([Answer(acknowledged=True, servers=was), Answer(acknowledged=True, servers=is_), 503])
    (pod.folder / SERVERS_NAME).write_text("what an earlier role was told")
    pod.operator.answer = lambda report: next(given, Answer(acknowledged=True))
    pod.start(f'say(phase="Working")\nuntil("off")\n{SUCCEEDS}')
    pod.operator.wait_for(lambda reports: len(reports) > 4)
    assert Servers.model_validate_json((pod.folder / SERVERS_NAME).read_bytes()) == is_
    pod.touch("off")
    assert pod.end()[0] == 0


def test_a_server_that_is_out_of_time_is_not_waited_for_as_one_that_publishes(pod: Pod) -> None:
    """Its GPUs are paid for; that it hangs is found after its grace."""
    plan = {"server": 0, "gpus": 1, "contextLength": 64, "rank": 8, "serving": "folded"}
    pod.start(STUBBORN, role="rollout", rollout=plan, data=None, graceSeconds=0.5, publishSeconds=10000)
    pod.wait_for("child")
    pod.set_deadline(1, 0.0)
    code, outcome, _ = pod.end()
    assert (code, outcome.reason) == (1, Reason.BUDGET_REACHED)


def test_a_role_that_cannot_be_started_is_told_as_a_crash(pod: Pod) -> None:
    pod.start(SUCCEEDS, executable=str(pod.folder / "gone"))
    code, outcome, errors = pod.end()
    assert (code, outcome.reason) == (1, Reason.CRASHED)
    assert "could not be started" in outcome.message
    assert "Traceback" not in errors
    assert pod.operator.reports[-1].outcome == outcome


def test_the_outcome_is_pushed_only_once_the_role_is_gone(pod: Pod) -> None:
    pod.start(f'{SUCCEEDS}until("off")\n')
    pod.operator.wait_for(lambda reports: len(reports) > 3)
    assert all(report.outcome is None for report in pod.operator.reports)
    pod.touch("off")
    assert pod.end()[0] == 0
    assert pod.operator.reports[-1].outcome


def test_standbys_and_failures_only_delay(pod: Pod) -> None:
    answers = iter([503, 503, 500, 401])
    pod.operator.answer = lambda report: next(answers, Answer(acknowledged=report.outcome is not None))
    pod.start(f'say(phase="Working")\nuntil("off")\n{SUCCEEDS}')
    pod.operator.wait_for(lambda reports: len(reports) > 5)
    pod.touch("off")
    code, _, errors = pod.end()
    assert code == 0
    assert "HTTP 500" in errors
    assert "HTTP 503" not in errors


def test_a_run_that_is_gone_is_not_waited_for(pod: Pod) -> None:
    pod.operator.answer = lambda report: 410
    url = f"https://127.0.0.1:{pod.operator.port}/reports"
    reporting = {"url": url, "intervalSeconds": 0.2, "finalPushSeconds": 600}
    pod.start(SUCCEEDS, reporting=reporting)
    code, outcome, _ = pod.end()
    assert (code, outcome.result) == (0, "Succeeded")


def test_an_operator_that_never_answers_fails_no_run(pod: Pod) -> None:
    pod.operator.close()
    reporting = {
        "url": f"https://127.0.0.1:{pod.operator.port}/reports",
        "intervalSeconds": 0.2,
        "finalPushSeconds": 1,
    }
    pod.start(SUCCEEDS, reporting=reporting)
    code, outcome, errors = pod.end()
    assert (code, outcome.result) == (0, "Succeeded")
    assert "it stays in the termination message" in errors


def test_the_final_push_is_repeated_until_it_is_acknowledged(pod: Pod) -> None:
    taken: list[Report] = []

    def third_time(report: Report) -> Answer:
        taken.extend([report] if report.outcome else [])
        return Answer(acknowledged=len(taken) >= 3)

    pod.operator.answer = third_time
    pod.start(SUCCEEDS)
    assert pod.end()[0] == 0
    assert len(taken) == 3


def test_token_and_authority_may_change(pod: Pod) -> None:
    pod.start(f'say(phase="Working")\nuntil("off")\n{SUCCEEDS}')
    pod.operator.wait_for(lambda reports: len(reports) > 1)
    (pod.folder / "token").write_text("second-token")
    pod.operator.new_certificate()
    pod.operator.wait_for(lambda _: "Bearer second-token" in pod.operator.tokens)
    pod.touch("off")
    assert pod.end()[0] == 0


def test_a_server_of_another_authority_gets_no_token(pod: Pod) -> None:
    reporting = {
        "url": f"https://127.0.0.1:{pod.operator.port}/reports",
        "intervalSeconds": 0.2,
        "finalPushSeconds": 1,
    }
    authority = (pod.folder / "ca.crt").read_bytes()
    pod.operator.new_certificate()
    (pod.folder / "ca.crt").write_bytes(authority)
    pod.start(SUCCEEDS, reporting=reporting)
    code, _, errors = pod.end()
    assert code == 0
    assert "CERTIFICATE_VERIFY_FAILED" in errors
    assert pod.operator.tokens == []


def test_a_role_that_does_not_heed_is_killed_with_all_it_started(pod: Pod) -> None:
    process = pod.start(STUBBORN, graceSeconds=0.5)
    pod.operator.wait_for(has_checkpoint(2))  # type: ignore[arg-type]
    child = int((pod.folder / "child").read_text())
    process.send_signal(signal.SIGTERM)
    code, outcome, errors = pod.end()
    assert (code, outcome.reason) == (1, Reason.INTERRUPTED)
    assert outcome.checkpoint
    assert (pod.folder / "told").exists()
    assert "is killed" in errors
    assert is_gone(child)


def test_a_role_that_hangs_after_its_outcome_is_killed(pod: Pod) -> None:
    pod.start(SUCCEEDS + "while True: time.sleep(60)\n", graceSeconds=0.5)
    code, outcome, _ = pod.end()
    assert (code, outcome.result) == (0, "Succeeded")


def test_a_pod_that_is_told_to_end_is_interrupted(pod: Pod) -> None:
    process = pod.start(WORKS)
    pod.operator.wait_for(has_checkpoint(2))  # type: ignore[arg-type]
    process.send_signal(signal.SIGTERM)
    code, outcome, _ = pod.end()
    assert (code, outcome.reason, outcome.retriable) == (1, Reason.INTERRUPTED, True)
    assert outcome.checkpoint
    assert outcome.checkpoint.step == 3


def test_a_role_that_finishes_while_told_to_end_has_succeeded(pod: Pod) -> None:
    role = f"""
def told(*_):
    {SUCCEEDS.strip()}
    sys.exit(0)
signal.signal(signal.SIGTERM, told)
say(phase="Working", checkpoints=[checkpoint(1)])
while True:
    time.sleep(60)
"""
    process = pod.start(role)
    pod.operator.wait_for(has_checkpoint(1))  # type: ignore[arg-type]
    process.send_signal(signal.SIGTERM)
    code, outcome, _ = pod.end()
    assert (code, outcome.result) == (0, "Succeeded")


@pytest.mark.parametrize(
    ("role", "message"),
    [
        (
            'print("one\\nlast words", file=sys.stderr)\nsys.exit(3)',
            "the process ended with exit code 3 and reported no outcome; its last words: last words",
        ),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the process was killed by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the process was killed by SIGKILL"),
    ],
)
def test_a_crash_is_told_by_its_end(role: str, message: str, pod: Pod) -> None:
    pod.start(role)
    code, outcome, _ = pod.end()
    assert (code, outcome.reason, outcome.message, outcome.retriable) == (1, Reason.CRASHED, message, True)


def test_standard_error_goes_through(pod: Pod) -> None:
    pod.start('print("hello from the role", file=sys.stderr)\n' + SUCCEEDS)
    assert "hello from the role\n" in pod.end()[2]


def test_the_roles_own_failure_is_its_word(pod: Pod) -> None:
    pod.start('say(phase="Done", outcome=outcome("Failed", "DiskFull"))\nsys.exit(1)')
    code, outcome, _ = pod.end()
    assert (code, outcome.reason, outcome.message) == (1, Reason.DISK_FULL, "the role's own word")


def test_orphans_are_collected(pod: Pod) -> None:
    """The role starts a child that starts a grandchild and ends: process 1 inherits the grandchild."""
    role = """
grandchild = "import time; time.sleep(0.2)"
child = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {grandchild!r}]).pid)"
Path("orphan").write_text(subprocess.run([sys.executable, "-c", child], stdout=subprocess.PIPE).stdout.decode())
say(phase="Working", checkpoints=[checkpoint(1)])
until("off")
"""
    pod.start(role + SUCCEEDS)
    pod.operator.wait_for(has_checkpoint(1))  # type: ignore[arg-type]
    # While the supervisor lives, a zombie would keep its entry.
    assert is_gone(int((pod.folder / "orphan").read_text()))
    pod.touch("off")
    assert pod.end()[0] == 0


def test_a_run_file_that_was_changed_is_not_used(pod: Pod) -> None:
    pod.environment[DIGEST_VARIABLE] = "sha256:" + "0" * 64
    pod.start('Path("started").touch()\n' + SUCCEEDS)
    code, outcome, _ = pod.end()
    assert (code, outcome.reason) == (1, Reason.CRASHED)
    assert "it was changed" in outcome.message
    assert not (pod.folder / "started").exists()
    assert pod.operator.reports == []


def test_a_report_of_another_attempt_is_not_pushed(pod: Pod) -> None:
    pod.start('say(attempt=2, checkpoints=[checkpoint(9)])\nuntil("off")\n')
    pod.operator.wait_for(lambda reports: len(reports) > 2)
    pod.touch("off")
    _, outcome, _ = pod.end()
    assert outcome.reason == Reason.CRASHED
    assert all(report.attempt == 1 and not report.checkpoints for report in pod.operator.reports)


def memory_cgroup() -> Path | None:
    """Return a folder in which a memory cgroup (version 1) can be made."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        folder = Path("/sys/fs/cgroup/memory") / path.lstrip("/")
        if "memory" in controllers.split(",") and os.access(folder, os.W_OK):
            return folder
    return None


@pytest.mark.skipif(os.geteuid() != 0 or memory_cgroup() is None, reason="needs root and a version 1 memory cgroup")
def test_a_role_killed_for_memory_is_out_of_memory(pod: Pod) -> None:
    """A real cgroup with a real limit; the supervisor is in it, as in a container, and is the smaller process."""
    parent = memory_cgroup()
    assert parent
    group = parent / f"halo-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(256 << 20))
        pod.start('say(phase="Working", checkpoints=[checkpoint(2)])\nuntil("on")\nhoard = b"x" * (1 << 30)\n')
        pod.operator.wait_for(has_checkpoint(2))  # type: ignore[arg-type]
        assert pod.process
        children = Path(f"/proc/{pod.process.pid}/task/{pod.process.pid}/children").read_text().split()
        # The counters are those of the cgroup that the supervisor is in, so both move; it looks them up when needed.
        for pid in (str(pod.process.pid), *children):
            (group / "cgroup.procs").write_text(pid)
        pod.touch("on")
        code, outcome, _ = pod.end()
        assert (code, outcome.reason, outcome.retriable) == (1, Reason.OUT_OF_MEMORY, False)
        assert outcome.checkpoint
        assert json.loads((pod.folder / "termination-log").read_text())["reason"] == "OutOfMemory"
    finally:
        group.rmdir()
