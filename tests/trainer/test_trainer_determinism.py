"""Same spec and seed, same bytes: twice, after a kill, and on two processes within rounding."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from trainer_support import adapter_bytes, completed, killed, run_file, start, train_here

from halo_api.conditions import Reason
from halo_api.digests import files_digest
from halo_api.metrics_history import StepMetrics, joined
from halo_api.report import Report
from halo_trainer.checkpoints.digest import folder_files
from halo_trainer.history import written

# Dropout and accumulation are on: both draw or add in an order that a resume must keep.
LORA = {"dropout": 0.1, "microBatch": 2}
# The loss of each step of the first seed, as this code gave it; a change of rounding passes, a change of meaning does not.
GOLDEN = [5.8864, 5.8115, 5.7224, 5.6920, 5.6458, 5.6201]


def losses(root: Path, name: str, capsys: pytest.CaptureFixture[str]) -> list[float]:
    """Train and return the loss of every step, as the log has it."""
    report = train_here(run_file(output=name, lora=LORA), root)
    assert report.outcome
    assert report.outcome.result == "Succeeded"
    return [float(loss) for loss in re.findall(r"^step \d+/\d+ loss (\S+) ", capsys.readouterr().out, re.M)]


def test_two_runs_give_the_same_bytes_and_another_seed_gives_others(root: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        report = train_here(run_file(output=name, lora=LORA, seed=seed), root)
        assert report.outcome
        assert report.outcome.result == "Succeeded", report.outcome.message
    assert adapter_bytes(root, "a") == adapter_bytes(root, "b")
    assert adapter_bytes(root, "a") != adapter_bytes(root, "c")
    straight = root / "artifacts" / "a" / "checkpoints"
    assert files_digest(folder_files(straight)) == files_digest(folder_files(root / "artifacts" / "b" / "checkpoints"))


def test_the_loss_curve_is_the_golden_one(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = losses(root, "a", capsys), losses(root, "b", capsys)
    assert first == second
    assert first == pytest.approx(GOLDEN, rel=1e-3)


def test_a_resumed_run_is_a_straight_run(root: Path) -> None:
    """Every checkpoint of the straight run leads to its adapter, also the last one."""
    straight = train_here(run_file(output="straight", lora=LORA), root)
    assert [checkpoint.step for checkpoint in straight.checkpoints] == [2, 4, 6]
    for checkpoint in straight.checkpoints:
        resume = {"step": checkpoint.step, "uri": checkpoint.uri, "digest": checkpoint.digest}
        report = train_here(run_file(output=f"from-{checkpoint.step}", lora=LORA, resume=resume), root)
        assert report.outcome
        assert report.outcome.result == "Succeeded", report.outcome.message
        assert adapter_bytes(root, f"from-{checkpoint.step}") == adapter_bytes(root, "straight")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"lora": {"rank": 8}}, "weights for base_model.model.model.layers.0"),
        ({"lora": {"targetModules": ["q_proj"]}}, "found a run whose LoRA has no"),
        ({"seed": 5}, "is of seed 0, found a run of seed 5; resume with seed 0"),
    ],
)
def test_a_checkpoint_of_another_lora_or_seed_is_refused(root: Path, changes: dict[str, Any], found: str) -> None:
    kept = train_here(run_file(output="straight", steps=2), root).checkpoints[0]
    resume = {"step": kept.step, "uri": kept.uri, "digest": kept.digest}
    outcome = train_here(run_file(output="again", resume=resume, **changes), root).outcome
    assert outcome
    assert outcome.reason == Reason.INVALID_SPEC
    assert outcome.message.startswith("resume: the checkpoint of step 2 ")
    assert found in outcome.message


def history(root: Path, output: str) -> list[StepMetrics]:
    """Return the metrics of all attempts below a folder, joined."""
    return joined(written(root / "artifacts" / output, Path.is_file))


def test_a_killed_run_goes_on_to_the_same_bytes_and_has_one_history(root: Path) -> None:
    straight = train_here(run_file(output="straight/a1", lora=LORA, steps=40), root)
    assert straight.outcome
    resume = killed(run_file(output="run/a1", lora=LORA, steps=40), root)
    again = run_file(output="run/a2", lora=LORA, steps=40, resume=resume)
    completed(again.model_copy(update={"run": again.run.model_copy(update={"attempt": 2})}), root)
    assert adapter_bytes(root, "run/a2") == adapter_bytes(root, "straight/a1")
    found = history(root, "run")
    assert [(one.step, one.attempt) for one in found] == [(n, 1 if n <= resume["step"] else 2) for n in range(1, 41)]
    for one, same in zip(found, history(root, "straight"), strict=True):
        assert (one.loss, one.grad_norm, one.learning_rate) == (same.loss, same.grad_norm, same.learning_rate)


def test_a_terminated_run_keeps_its_step_and_goes_on(root: Path) -> None:
    process = start("train", run_file(output="a1", lora=LORA, steps=2000, saveSteps=1000), root)
    end = time.monotonic() + 240
    while b'"Working"' not in ((root / "report.json").read_bytes() if (root / "report.json").exists() else b""):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 1, output.decode()
    outcome = Report.model_validate_json((root / "report.json").read_bytes()).outcome
    assert outcome
    assert (outcome.result, outcome.reason, outcome.retriable) == ("Failed", "Interrupted", True)
    if outcome.checkpoint:
        folder = root / "artifacts" / "a1" / "checkpoints" / f"step-{outcome.checkpoint.step}"
        assert files_digest(folder_files(folder)) == outcome.checkpoint.digest


def test_two_processes_train_the_same_adapter(root: Path) -> None:
    lora = {"microBatch": 2}
    train_here(run_file(output="one", lora=lora), root)
    process = start("train", run_file(output="two", lora=lora, layout={"gpusPerNode": 2}), root)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output.decode()
    one, two = (
        safetensors.torch.load_file(root / "artifacts" / name / "adapter" / "adapter_model.safetensors")
        for name in ("one", "two")
    )
    assert one.keys() == two.keys()
    difference = torch.cat([(one[name] - two[name]).reshape(-1) for name in one]).norm()
    assert difference / torch.cat([tensor.reshape(-1) for tensor in one.values()]).norm() < 1e-5
    assert sorted(path.name for path in root.glob("report.json*")) == ["report.json"]
