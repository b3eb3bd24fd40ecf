"""DPO by TRL: its loss by hand, its reference, and that it is killed, stopped and resumed like every run."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from trainer_support import ANSWERS, adapter_bytes, run_file, start, train_here, wait_for, write_rows

from halo_api.adapter import WEIGHTS
from halo_api.conditions import Reason
from halo_api.metrics_history import METRICS_NAME
from halo_api.report import Report
from halo_api.run_file import RunFile
from halo_api.run_status import FrozenLora
from halo_trainer.adapter import put_weights
from halo_trainer.data.load import load_template, load_tokenizer, training_pairs
from halo_trainer.data.preference import TokenPair
from halo_trainer.data.template import TokenRow
from halo_trainer.history import lines
from halo_trainer.model import attach_lora, load_base, settle_torch
from halo_trainer.trl.dpo import Dpo

DATA = {"name": "pairs", "kind": "preference", "source": "pvc://data/pairs.jsonl"}
LORA = {"method": "dpo", "trainer": "TRL", "beta": 0.5}
# DPO's loss of a policy that is its own reference: every margin is 0.
LOG_2 = float(torch.tensor(2.0).log())


@pytest.fixture
def pairs(root: Path) -> Path:
    """A root with pairs: of each thing's colour, the right one is chosen and the next thing's rejected."""
    things = list(ANSWERS)
    rows = [
        {
            "prompt": f"{'Please tell me. ' * (i % 3)}Colour of {things[i % 4]}?",
            "chosen": ANSWERS[things[i % 4]] + " Yes." * (i % 2),
            "rejected": ANSWERS[things[(i + 1) % 4]],
        }
        for i in range(12)
    ]
    write_rows(root / "data" / "pairs.jsonl", rows)
    return root


def dpo_file(output: str = "run", lora: dict[str, Any] | None = None, **train: Any) -> RunFile:
    return run_file(output=output, data=DATA, lora=LORA | (lora or {}), **train)


def trained(run: RunFile, root: Path) -> Report:
    report = train_here(run, root)
    assert report.outcome
    assert report.outcome.result == "Succeeded", report.outcome.message
    return report


def parent_of(root: Path, **train: Any) -> dict[str, Any]:
    """Train an adapter by sft and return it as a parent."""
    adapter = trained(run_file(output="parent", **train), root).outcome.adapter  # type: ignore[union-attr]
    assert adapter
    return {"name": "parent", "uri": adapter.uri, "digest": adapter.digest}


def test_the_chosen_answers_win(pairs: Path) -> None:
    run = dpo_file(steps=20, saveSteps=20, lora={"learningRate": 0.01})
    first, last = trained(dpo_file("one", steps=1, saveSteps=1), pairs).progress, trained(run, pairs).progress
    assert first
    assert last
    # Without a parent the base is the reference, and a fresh adapter changes nothing.
    assert first.loss == pytest.approx(LOG_2, abs=1e-12)
    assert (first.reward_margin, first.reward_accuracy) == (0, 0)
    assert last.loss is not None
    assert last.loss < 0.5 * LOG_2
    assert last.reward_accuracy == 1
    assert last.reward_margin is not None
    assert last.reward_margin > 1
    kept = list(lines(pairs / "artifacts" / "run" / METRICS_NAME))
    assert len(kept) == 20
    assert (kept[-1].reward_margin, kept[-1].reward_accuracy) == (last.reward_margin, last.reward_accuracy)


def test_the_parent_is_the_reference(pairs: Path) -> None:
    parent = parent_of(pairs)
    progress = trained(dpo_file("child", steps=1, saveSteps=1, parent=parent), pairs).progress
    assert progress
    assert progress.loss == pytest.approx(LOG_2, abs=1e-12)
    assert progress.reward_margin == 0
    # The step moved the adapter away from the parent's.
    assert adapter_bytes(pairs, "child") != adapter_bytes(pairs, "parent")


def models(root: Path, continues: bool) -> tuple[Dpo, Any, list[TokenPair], Path]:
    """Return the objective of a run that begins with a parent; only `continues` says whether it is the reference."""
    device = settle_torch()
    base = dpo_file().base
    folder = root / "models" / "tiny"
    lora = FrozenLora.model_validate(LORA | {"dataset": "pairs", "rank": 4, "alpha": 8})
    model = attach_lora(load_base(base, folder), lora, 0)
    put_weights(model, safetensors.torch.load_file(root / "artifacts" / "parent" / "adapter" / WEIGHTS))
    data = dpo_file().data
    assert data
    rows = list(training_pairs(data, root / "data" / "pairs.jsonl", load_template(base, folder)))
    model.train()
    return Dpo(rows, model, load_tokenizer(base, folder), lora, continues, device), model, rows, folder


def log_p(model: Any, row: TokenRow) -> float:
    """The log-probability of a row's answer by the model's own forward pass."""
    ids = torch.tensor([list(row.ids)])
    with torch.no_grad():
        log_p_BTV = torch.log_softmax(model(input_ids=ids, use_cache=False).logits.double(), dim=-1)
    each = log_p_BTV[0, :-1].gather(-1, ids[0, 1:, None]).squeeze(-1)
    return float(each[torch.tensor(list(row.trained[1:]), dtype=torch.bool)].sum())


@pytest.mark.parametrize("continues", [True, False])
def test_the_loss_by_hand(continues: bool, pairs: Path) -> None:
    """The reference is the parent where the run has one, else the base; and it stays, whatever the policy becomes."""
    parent_of(pairs)
    objective, model, rows, folder = models(pairs, continues)
    step = list(range(len(rows)))
    first = objective.share(step, step).loss.item()
    assert (first == pytest.approx(LOG_2, abs=1e-12)) is continues
    reference = load_base(dpo_file().base, folder)
    if continues:
        reference = attach_lora(reference, FrozenLora.model_validate({"dataset": "pairs", "rank": 4, "alpha": 8}), 0)
        put_weights(reference, safetensors.torch.load_file(pairs / "artifacts" / "parent" / "adapter" / WEIGHTS))
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if ".default." in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    margins = [
        0.5
        * ((log_p(model, r.chosen) - log_p(reference, r.chosen)) - (log_p(model, r.rejected) - log_p(reference, r.rejected)))
        for r in rows
    ]  # fmt: skip
    by_hand = sum(math.log1p(math.exp(-margin)) for margin in margins) / len(rows)
    # In whatever parts the step is cut.
    shares = [objective.share(part, step) for part in ([0, 1, 2, 3, 4], [5, 6], list(range(7, len(rows))))]
    assert sum(share.loss.item() for share in shares) == pytest.approx(by_hand, rel=1e-5)
    assert sum(share.reward_margin for share in shares) == pytest.approx(sum(margins) / len(rows), rel=1e-4)
    assert sum(share.reward_accuracy for share in shares) == pytest.approx(sum(m > 0 for m in margins) / len(rows))


def test_the_gradient_does_not_depend_on_how_the_step_is_cut(pairs: Path) -> None:
    parent_of(pairs)
    objective, model, rows, _ = models(pairs, continues=True)
    step = list(range(len(rows)))
    gradients = []
    for parts in ([step], [[0, 1, 2, 3, 4], [5, 6], step[7:]], [[index] for index in reversed(step)]):
        model.zero_grad()
        for part in parts:
            objective.share(part, step).loss.backward()
        gradients.append(torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]))
    for gradient in gradients[1:]:
        assert (gradient - gradients[0]).norm() / gradients[0].norm() < 1e-5


@pytest.mark.parametrize("continues", [True, False])
def test_a_resumed_run_is_a_straight_run(continues: bool, pairs: Path) -> None:
    """A resume's policy is its checkpoint's; its reference must still be what the run began with."""
    more = {"parent": parent_of(pairs)} if continues else {}
    lora = {"dropout": 0.1}
    straight = trained(dpo_file("straight", lora=lora, **more), pairs)
    assert [checkpoint.step for checkpoint in straight.checkpoints] == [2, 4, 6]
    again = trained(dpo_file("again", lora=lora, **more), pairs)
    assert adapter_bytes(pairs, "again") == adapter_bytes(pairs, "straight")
    for checkpoint in straight.checkpoints[:2]:
        resume = {"step": checkpoint.step, "uri": checkpoint.uri, "digest": checkpoint.digest}
        name = f"from-{checkpoint.step}"
        report = trained(dpo_file(name, lora=lora, resume=resume, **more), pairs)
        assert report.progress
        assert again.progress
        assert report.progress.loss == again.progress.loss
        assert adapter_bytes(pairs, name) == adapter_bytes(pairs, "straight")
    # Dropout was on: without it the run is another one.
    trained(dpo_file("dry", **more), pairs)
    assert adapter_bytes(pairs, "dry") != adapter_bytes(pairs, "straight")


def test_an_adapter_is_like_one_of_sft(pairs: Path) -> None:
    """TRL's second adapter is in neither the published one nor a checkpoint."""
    parent = parent_of(pairs)
    trained(dpo_file("child", parent=parent), pairs)
    names = []
    for name in ("parent", "child"):
        folder = pairs / "artifacts" / name / "adapter"
        names.append(sorted(safetensors.torch.load_file(folder / "adapter_model.safetensors")))
        assert (folder / "adapter_config.json").read_bytes() == (
            pairs / "artifacts" / "parent" / "adapter" / "adapter_config.json"
        ).read_bytes()
    assert names[0] == names[1]


def test_the_output_head_is_refused(pairs: Path) -> None:
    outcome = train_here(dpo_file(lora={"targetModules": ["q_proj", "lm_head"]}), pairs).outcome
    assert outcome
    assert (outcome.reason, outcome.message) == (
        Reason.INVALID_SPEC,
        "spec.lora.targetModules: found the output head, and TRL's dpo can't train it; leave it out",
    )


def test_the_end_of_the_budget_publishes_the_last_checkpoint(pairs: Path) -> None:
    process = start("train", dpo_file("cut", steps=2000), pairs)
    wait_for(process, pairs, 2)
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output.decode()
    outcome = Report.model_validate_json((pairs / "report.json").read_bytes()).outcome
    assert outcome
    assert (outcome.result, outcome.reason) == ("Succeeded", Reason.BUDGET_REACHED)
    assert outcome.checkpoint
    kept = pairs / "artifacts" / "cut" / "checkpoints" / f"step-{outcome.checkpoint.step}" / "adapter"
    assert adapter_bytes(pairs, "cut") == {path.name: path.read_bytes() for path in kept.iterdir()}


def test_a_terminated_run_keeps_its_step(pairs: Path) -> None:
    process = start("train", dpo_file("a1", steps=2000, saveSteps=1000), pairs)
    while not (pairs / "report.json").exists() or b'"Working"' not in (pairs / "report.json").read_bytes():
        assert process.poll() is None, process.communicate()[0].decode()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 1, output.decode()
    outcome = Report.model_validate_json((pairs / "report.json").read_bytes()).outcome
    assert outcome
    assert (outcome.reason, outcome.retriable) == (Reason.INTERRUPTED, True)


def test_two_processes_train_the_same_adapter(pairs: Path) -> None:
    """Shares of unlike size: 3 and 2 pairs, in parts of 2. A step of Adam is as large as the rate however small the gradient
    is, so that the rounding of the smallest ones shows; a wrong weight of a share would show as 1e-2 and more."""
    trained(dpo_file("one", batch=5), pairs)
    process = start("train", dpo_file("two", batch=5, layout={"gpusPerNode": 2}), pairs)
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output.decode()
    one, two = (
        safetensors.torch.load_file(pairs / "artifacts" / name / "adapter" / "adapter_model.safetensors")
        for name in ("one", "two")
    )
    difference = torch.cat([(one[name] - two[name]).reshape(-1) for name in one]).norm()
    assert difference / torch.cat([tensor.reshape(-1) for tensor in one.values()]).norm() < 1e-4


def test_only_a_run_by_trl_loads_it() -> None:
    """Its imports take seconds, and the pods that inspect, publish and verify are small."""
    code = (
        "import sys; import halo_trainer.cli, halo_trainer.inspection, halo_trainer.publish, halo_trainer.train; "
        "assert not {'trl', 'datasets', 'accelerate'} & set(sys.modules), sorted(sys.modules)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=120)
