"""SFT by TRL: the losses and the adapter of SFTTrainer's own loop, and that it is killed and resumed like every run."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from datasets import Dataset
from peft import PeftModel
from trainer_support import adapter_bytes, run_file, start, train_here, wait_for
from transformers import AutoModelForCausalLM, TrainerCallback
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from halo_api.adapter import CONFIG, WEIGHTS
from halo_api.conditions import Reason
from halo_api.report import Report
from halo_api.run_file import RunFile
from halo_trainer.adapter import adapter_tensors
from halo_trainer.data.batches import micro_batches, rank_share, step_rows
from halo_trainer.data.load import load_template, load_tokenizer, training_rows
from halo_trainer.model import attach_lora, load_base, settle_torch
from halo_trainer.reporting import Reporting
from halo_trainer.trl.sft import labelled


def trl_file(output: str = "run", lora: dict[str, Any] | None = None, **train: Any) -> RunFile:
    return run_file(output=output, lora={"trainer": "TRL"} | (lora or {}), **train)


def trained(run: RunFile, root: Path) -> Report:
    report = train_here(run, root)
    assert report.outcome
    assert report.outcome.result == "Succeeded", report.outcome.message
    return report


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float, float]]:
    """Loss, gradient norm and rate of every step that a run tells, of which its report keeps the last."""
    steps: list[tuple[float, float, float]] = []
    tell = Reporting.progress

    def telling(self: Reporting, progress: Any) -> None:
        steps.append((progress.loss, progress.grad_norm, progress.learning_rate))
        tell(self, progress)

    monkeypatch.setattr(Reporting, "progress", telling)
    return steps


def by_its_own_loop(run: RunFile, root: Path) -> tuple[list[tuple[float, float, float]], dict[str, torch.Tensor]]:
    """Train the rows of a run, in its order and from its adapter, as a user of TRL would; return what it logs, and the adapter."""
    plan, folder = run.train, root / "models" / "tiny"
    assert plan
    assert run.data
    device = settle_torch()
    rows = list(training_rows(run.data, root / "data" / "chat.jsonl", load_template(run.base, folder)))
    lengths = [len(row) for row in rows]
    order = [
        index
        for step in range(plan.steps)
        for part in micro_batches(
            rank_share(step_rows(len(rows), plan.batch, plan.seed, step), lengths, 0, 1), plan.lora.micro_batch or 1
        )
        for index in part
    ]
    arguments = SFTConfig(
        output_dir=str(root / "trl"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        max_steps=plan.steps,
        learning_rate=0.02,
        lr_scheduler_type=plan.lora.schedule,
        logging_steps=1,
        train_sampling_strategy="sequential",
        use_cpu=device.type == "cpu",
        bf16=run.base.dtype == "bf16",
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    logged: list[tuple[float, float, float]] = []

    class Log(TrainerCallback):
        def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
            if "loss" in logs:
                logged.append((float(logs["loss"]), float(logs["grad_norm"]), float(logs["learning_rate"])))

    model = attach_lora(load_base(run.base, folder), plan.lora, plan.seed)
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list([labelled(rows[index]) for index in order]),
        processing_class=load_tokenizer(run.base, folder),
        callbacks=[Log()],
    )
    settle_torch()
    trainer.train()
    return logged, adapter_tensors(model)


@pytest.mark.parametrize(
    ("dtype", "schedule"), [("fp32", "constant"), ("fp32", "linear"), ("fp32", "cosine"), ("bf16", "constant")]
)
def test_it_is_trls_own_run(dtype: str, schedule: str, root: Path, told: list[tuple[float, float, float]]) -> None:
    """Every loss, gradient norm, rate and weight of it: the same rows in the same order, with all of TRL's defaults."""
    run = trl_file(lora={"schedule": schedule})
    run = run.model_copy(update={"needed_base": run.base.model_copy(update={"dtype": dtype})})
    logged, adapter = by_its_own_loop(run, root)
    trained(run, root)
    assert torch.tensor(told) == pytest.approx(torch.tensor(logged), rel=1e-6)
    ours = safetensors.torch.load_file(root / "artifacts" / "run" / "adapter" / WEIGHTS)
    assert ours.keys() == adapter.keys()
    difference = torch.cat([(ours[name] - adapter[name]).reshape(-1) for name in ours]).norm()
    assert difference / torch.cat([tensor.reshape(-1) for tensor in ours.values()]).norm() < 1e-6


def test_its_adapter_is_like_one_of_halos(root: Path) -> None:
    """The same two files, which PEFT loads, and in fp32 numbers that differ by rounding."""
    trained(trl_file("trl"), root)
    trained(run_file(output="halo"), root)
    configs, weights = [], []
    for name in ("trl", "halo"):
        folder = root / "artifacts" / name / "adapter"
        assert sorted(path.name for path in folder.iterdir()) == [CONFIG, WEIGHTS]
        configs.append((folder / CONFIG).read_bytes())
        weights.append(safetensors.torch.load_file(folder / WEIGHTS))
    assert configs[0] == configs[1]
    assert weights[0].keys() == weights[1].keys()
    difference = torch.cat([(weights[0][name] - weights[1][name]).reshape(-1) for name in weights[0]]).norm()
    assert difference / torch.cat([tensor.reshape(-1) for tensor in weights[0].values()]).norm() < 1e-4
    ids = torch.tensor([[5, 6, 7, 8]])
    base = AutoModelForCausalLM.from_pretrained(root / "models" / "tiny")
    before = base(ids).logits
    after = PeftModel.from_pretrained(base, str(root / "artifacts" / "trl" / "adapter"))(ids).logits
    assert (after - before).abs().max() > 0.01


def test_a_killed_run_goes_on_to_the_same_bytes(root: Path) -> None:
    """With dropout, which is drawn twice where activations are computed again."""
    lora = {"dropout": 0.1}
    trained(trl_file("straight", lora=lora, steps=20), root)
    process = start("train", trl_file("a1", lora=lora, steps=20), root)
    last = wait_for(process, root, 2).checkpoints[-1]
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert last.step < 20
    resume = {"step": last.step, "uri": last.uri, "digest": last.digest}
    second = start("train", trl_file("a2", lora=lora, steps=20, resume=resume), root)
    output, _ = second.communicate(timeout=240)
    assert second.returncode == 0, output.decode()
    assert adapter_bytes(root, "a2") == adapter_bytes(root, "straight")
    trained(trl_file("dry", steps=20), root)
    assert adapter_bytes(root, "dry") != adapter_bytes(root, "straight")


def test_a_child_begins_as_its_parent(root: Path) -> None:
    """As with the trainer Halo: its first loss is of the parent's weights."""
    adapter = trained(run_file(output="parent"), root).outcome.adapter  # type: ignore[union-attr]
    assert adapter
    parent = {"name": "parent", "uri": adapter.uri, "digest": adapter.digest}
    one = {"steps": 1, "saveSteps": 1, "parent": parent}
    first = [trained(make(output=name, **one), root).progress for name, make in (("a", trl_file), ("b", run_file))]
    assert first[0]
    assert first[1]
    assert first[0].loss == pytest.approx(first[1].loss, rel=1e-6)


def test_two_processes_train_the_same_adapter(root: Path) -> None:
    """Of shares of unlike size: 3 and 2 rows, in parts of 2 and 1."""
    trained(trl_file("one", batch=5), root)
    process = start("train", trl_file("two", batch=5, layout={"gpusPerNode": 2}), root)
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output.decode()
    one, two = (safetensors.torch.load_file(root / "artifacts" / name / "adapter" / WEIGHTS) for name in ("one", "two"))
    difference = torch.cat([(one[name] - two[name]).reshape(-1) for name in one]).norm()
    assert difference / torch.cat([tensor.reshape(-1) for tensor in one.values()]).norm() < 1e-4


def test_the_output_head_is_refused(root: Path) -> None:
    outcome = train_here(trl_file(lora={"targetModules": ["q_proj", "lm_head"]}), root).outcome
    assert outcome
    assert (outcome.reason, outcome.message) == (
        Reason.INVALID_SPEC,
        "spec.lora.targetModules: found the output head, and TRL's sft can't train it; leave it out",
    )
