"""kubectl halo: what it says of a run, which pod's log it picks, and the one sentence when it can't."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from halo_api.training_job import TrainingJobStatus
from halo_cli.__main__ import main, parser
from halo_cli.kubectl import CliError, Kubectl, NotThere, failure_of
from halo_cli.logs import Wait, chosen, selector
from halo_cli.watch import duration, exit_code, line, status_of
from halo_operator.plan import names

ROOT = Path(__file__).resolve().parents[2]
AT = "2026-11-29T12:00:00Z"
DIGEST = "sha256:" + "a" * 64
STEP_20 = {"step": 20, "attempt": 1, "uri": "pvc://artifacts/u/a1/checkpoints/step-20", "digest": DIGEST, "at": AT}


def condition(type_: str, reason: str, message: str = "", value: str = "True") -> dict[str, str]:
    return {"type": type_, "status": value, "reason": reason, "message": message, "lastTransitionTime": AT}


def ready(reason: str, message: str = "") -> dict[str, str]:
    return condition("Ready", reason, message, "True" if reason == "Succeeded" else "False")


def status(*conditions: dict[str, str], **rest: Any) -> TrainingJobStatus:
    return TrainingJobStatus.model_validate({"conditions": conditions, "observedGeneration": 1, **rest})


def progress(**changes: Any) -> dict[str, Any]:
    return {"step": 24, "steps": 60, "percent": 40, "updatedAt": AT} | changes


TRAINING = progress(loss=0.43217, tokensPerSecond=811.6, remainingSeconds=642)
EPISODES = {
    "passRate": 0.234, "scored": 60, "unscored": 4, "unscoredReasons": {"TimedOut": 1, "ServerFailed": 3}, "kl": 0.0021,
    "mismatch": 0.00031, "staleness": 1, "policy": 23, "tokensPerSecond": 5230.4, "servers": 1,
}  # fmt: skip
ADAPTER = {"name": "t", "uri": "pvc://artifacts/u/a1/adapter", "digest": DIGEST}

LINES = (
    (status(), "New         the operator has not looked at it yet"),
    (
        status(ready("Waiting", "long"), waiting="Dataset t is being inspected"),
        "Waiting     Dataset t is being inspected",
    ),
    (status(ready("Starting", "attempt 1: 1 trainer pod")), "Starting    attempt 1: 1 trainer pod"),
    (status(ready("Running", "attempt 1 is training"), attempt=1), "Running     attempt 1 is training"),
    (
        status(ready("Running", "training"), progress=TRAINING, attempt=1),
        "Running     step 24/60  loss 0.4322  812 tok/s  10m42s left",
    ),
    (
        status(ready("Running", "training"), progress=TRAINING, attempt=2, checkpoints=[STEP_20]),
        "Running     attempt 2  step 24/60  loss 0.4322  812 tok/s  checkpoint 20  10m42s left",
    ),
    (
        status(
            ready("Running", "training"),
            condition("RolloutDegraded", "EpisodesUnscored", "4 of 64 episodes of step 24 were not scored"),
            progress=TRAINING | {"reward": 0.41237, "rollouts": EPISODES},
            topology={"nodes": 1, "gpusPerNode": 1, "rollout": [{"server": 0, "gpus": 1}, {"server": 1, "gpus": 1}]},
            attempt=1,
        ),
        "Running     step 24/60  reward 0.412  pass 23.4%  KL 0.0021  mismatch 3.1e-04  1 behind  "
        "unscored 4 (ServerFailed 3, TimedOut 1)  servers 1/2  rollout 5230 tok/s  loss 0.4322  train 812 tok/s  "
        "10m42s left  degraded: 4 of 64 episodes of step 24 were not scored",
    ),
    (
        status(ready("Running", "training"), progress=progress(reward=0.5, rollouts={"scored": 64}), attempt=1),
        "Running     step 24/60  reward 0.5",
    ),
    (
        status(ready("Suspended", "suspended after step 24"), progress=progress(), checkpoints=[STEP_20]),
        "Suspended   step 24/60  checkpoint 20  suspended after step 24",
    ),
    (
        status(ready("Starting", "going on from step 20"), progress=TRAINING, attempt=2),
        "Starting    attempt 2  going on from step 20",
    ),
    (
        status(ready("Failed"), condition("Failed", "BadRow", "line 3 is blank; remove the line"), progress=TRAINING),
        "Failed      BadRow: line 3 is blank; remove the line",
    ),
    (
        status(ready("Refused"), condition("Failed", "UnknownBaseModel", "spec.baseModel: found 'x'")),
        "Refused     UnknownBaseModel: spec.baseModel: found 'x'",
    ),
    (
        status(
            ready("Succeeded"),
            condition("Complete", "Succeeded"),
            progress=progress(step=60, loss=0.1),
            adapter=ADAPTER,
        ),
        "Succeeded   step 60/60  loss 0.1  adapter t: pvc://artifacts/u/a1/adapter",
    ),
)


@pytest.mark.parametrize(("found", "said"), LINES)
def test_a_run_is_one_line(found: TrainingJobStatus, said: str) -> None:
    assert line(found) == said


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (status(), None),
        (status(ready("Running")), None),
        (status(ready("Suspended"), condition("Suspended", "Suspended")), None),
        (status(condition("Complete", "Succeeded")), 0),
        (status(condition("Failed", "BadRow")), 1),
        (status(condition("Failed", "Running", value="False")), None),
    ],
)
def test_the_end_decides_the_exit_code(found: TrainingJobStatus, code: int | None) -> None:
    assert exit_code(found) == code


@pytest.mark.parametrize(
    ("seconds", "said"), [(5, "5s"), (60, "1m0s"), (3599, "59m59s"), (7260, "2h1m"), (90000, "1d1h")]
)
def test_durations_have_two_units(seconds: int, said: str) -> None:
    assert duration(seconds) == said


def test_a_status_of_another_version_is_one_sentence() -> None:
    with pytest.raises(CliError, match=r"^status\.attempt: .* differ in version$"):
        status_of({"status": {"attempt": "first"}})


def pod(rank: int, state: str | None = "running") -> dict[str, Any]:
    states = [{"state": {state: {}}}] if state else []
    return {
        "metadata": {"name": f"t-{rank}", "labels": {names.RANK_LABEL: str(rank)}},
        "status": {"containerStatuses": states},
    }


RUNNING = status(ready("Running", "m"), attempt=2, topology={"nodes": 2, "gpusPerNode": 8})
OVER = status(ready("Failed"), condition("Failed", "BadRow", "line 3"), attempt=2)


@pytest.mark.parametrize(
    ("found", "pods", "attempt", "rank", "name"),
    [
        (RUNNING, [pod(0), pod(1)], 2, 1, "t-1"),
        (RUNNING, [pod(0, "terminated")], 1, 0, "t-0"),
        (OVER, [pod(0, "terminated")], 2, 0, "t-0"),
        (RUNNING, [pod(0, "waiting")], 2, 0, Wait("pod t-0 has not started yet: Running: m")),
        (RUNNING, [pod(0, None)], 2, 0, Wait("pod t-0 has not started yet: Running: m")),
        (RUNNING, [], 2, 0, Wait("attempt 2 of t has no pod now: Running: m")),
        (status(ready("Waiting", "m"), waiting="w"), [], None, 0, Wait("t has no pod yet: w")),
    ],
)
def test_the_pod_of_attempt_and_rank_is_chosen(
    found: TrainingJobStatus, pods: list[dict[str, Any]], attempt: int | None, rank: int, name: str | Wait
) -> None:
    assert chosen("t", found, pods, attempt, rank) == name


@pytest.mark.parametrize(
    ("found", "pods", "attempt", "rank", "sentence"),
    [
        (RUNNING, [], 3, 0, "--attempt: found 3, but t is at attempt 2"),
        (RUNNING, [], 2, 2, "--rank: found 2, but t has 2 trainer pods, from 0"),
        (RUNNING, [], 1, 0, "the pod of attempt 1 is gone, and its log with it; t is at attempt 2"),
        (OVER, [], 2, 0, "the pod of attempt 2 is gone, and its log with it; t is at attempt 2"),
        (OVER, [pod(0, "waiting")], 2, 0, "pod t-0 never started: Failed: "),
        (status(ready("Refused", "no"), condition("Failed", "Unfit")), [], None, 0, "t never had a pod: Refused: no"),
    ],
)
def test_a_log_that_will_never_be_is_one_sentence(
    found: TrainingJobStatus, pods: list[dict[str, Any]], attempt: int | None, rank: int, sentence: str
) -> None:
    with pytest.raises(CliError) as caught:
        chosen("t", found, pods, attempt, rank)
    assert str(caught.value) == sentence


def test_pods_are_found_by_the_operators_labels() -> None:
    wanted = f"{names.RUN_LABEL}=u,{names.ROLE_LABEL}=trainer,{names.ATTEMPT_LABEL}=2"
    assert selector({"metadata": {"uid": "u"}}, 2) == wanted


def test_kubectls_complaint_is_its_last_line() -> None:
    missing = failure_of('W1129 odd\nError from server (NotFound): trainingjobs "x" not found\n')
    assert isinstance(missing, NotThere)
    refused = failure_of("The connection to the server 127.0.0.1:1 was refused\n")
    assert str(refused) == "The connection to the server 127.0.0.1:1 was refused"
    assert not isinstance(refused, NotThere)


def test_only_what_was_chosen_is_passed_on() -> None:
    assert Kubectl().command("get", "pods") == ["kubectl", "get", "pods"]
    assert Kubectl("ns", "prod").command("get") == ["kubectl", "--namespace", "ns", "--context", "prod", "get"]


def test_there_are_eleven_verbs() -> None:
    actions = [action for action in parser()._actions if action.dest == "verb"]
    verbs = {
        "watch",
        "logs",
        "estimate",
        "explain-refusal",
        "import",
        "ledger",
        "receipt",
        "lineage",
        "adapter",
        "plot",
        "episodes",
    }
    assert set(actions[0].choices or ()) == verbs


@pytest.mark.parametrize("bad", [["--attempt", "0"], ["--rank", "-1"], ["--rank", "x"]])
def test_bad_numbers_are_refused(bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["logs", "t", *bad])
    assert "error: argument" in capsys.readouterr().err


def test_no_kubectl_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for arguments in (["watch", "t"], ["logs", "t"]):
        assert main(arguments) == 1
        assert capsys.readouterr().err.startswith("kubectl halo: kubectl is not on PATH; ")


def test_no_cluster_is_one_sentence(tmp_path: Path) -> None:
    """The process as kubectl starts it, against a kubectl that can't reach its server."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho 'The connection to the server 127.0.0.1:1 was refused' >&2\nexit 1\n")
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "operator")}
    for verb in ("watch", "logs"):
        done = subprocess.run(
            [sys.executable, "-m", "halo_cli", verb, "t"], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 1
        assert done.stderr == "kubectl halo: The connection to the server 127.0.0.1:1 was refused\n"


def test_an_interrupt_while_it_loads_leaves_no_traceback() -> None:
    script = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "halo_cli.__main__":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from halo_cli.start import main
main()
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "operator")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
