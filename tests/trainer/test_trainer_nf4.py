"""QLoRA on a CPU: a base in 4 bits learns, resumes to the bit, and leaves an adapter like any other."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from trainer_support import adapter_bytes, colour_rows, completed, killed, run_file, train_here, write_rows

from halo_api.conditions import Reason
from halo_api.run_file import RunFile
from halo_api.run_status import FrozenLora
from halo_trainer.cli import main
from halo_trainer.data.batches import step_rows
from halo_trainer.data.load import load_template, training_rows
from halo_trainer.methods import sft_method
from halo_trainer.model import attach_lora, load_base, trained_parameters


def in_nf4(run: RunFile, **changes: Any) -> RunFile:
    return run.model_copy(update={"needed_base": run.base.model_copy(update={"quantization": "nf4"} | changes)})


def frozen_bytes(model: Any) -> dict[str, bytes]:
    """Return every tensor that does not train, as bytes."""
    return {
        name: weights.detach().contiguous().view(torch.uint8).numpy().tobytes()
        for name, weights in model.named_parameters()
        if not weights.requires_grad
    }


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_base_stays_as_it_was_quantised_and_the_adapter_learns(root: Path, dtype: str) -> None:
    run = in_nf4(run_file(), dtype=dtype)
    model = attach_lora(load_base(run.base, root / "models" / "tiny"), FrozenLora(dataset="chat", rank=4, alpha=8), 0)
    layer = model.base_model.model.model.layers[0].mlp.up_proj.base_layer
    assert (layer.weight.dtype, layer.weight.numel()) == (torch.uint8, 32 * 64 // 2)
    assert model.get_output_embeddings().weight.dtype in (torch.float32, torch.bfloat16)
    assert {weights.dtype for weights in trained_parameters(model).values()} == {torch.float32}
    assert run.data
    rows = list(
        training_rows(run.data, root / "data" / "chat.jsonl", load_template(run.base, root / "models" / "tiny"))
    )
    method = sft_method(rows, True, model.train(), torch.device("cpu"))
    before, optimizer, losses = frozen_bytes(model), torch.optim.AdamW(trained_parameters(model).values(), lr=0.02), []
    for step in range(24):
        indices = step_rows(len(rows), 6, 0, step)
        loss = sum(method.share(part, indices).loss for part in method.passes(indices, 6))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] * 0.95
    assert frozen_bytes(model) == before


def test_a_resumed_run_ends_in_the_same_bytes(root: Path) -> None:
    kept = train_here(in_nf4(run_file(output="straight")), root).checkpoints[0]
    resume = {"step": kept.step, "uri": kept.uri, "digest": kept.digest}
    train_here(in_nf4(run_file(output="again", resume=resume)), root)
    assert adapter_bytes(root, "again") == adapter_bytes(root, "straight")


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bytes(root: Path) -> None:
    completed(in_nf4(run_file(output="straight", steps=40)), root)
    run = in_nf4(run_file(output="killed", steps=40))
    resume = killed(run, root)
    assert run.train
    again = in_nf4(run_file(output="again", steps=40, resume=resume))
    completed(again, root)
    assert adapter_bytes(root, "again") == adapter_bytes(root, "straight")


def test_its_adapter_is_one_like_any_other(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same files, names, shapes and settings as of a base that is not quantised; both kinds of base answer with it."""
    train_here(run_file(output="plain"), root)
    train_here(in_nf4(run_file(output="nf4")), root)
    plain, nf4 = (adapter_bytes(root, output) for output in ("plain", "nf4"))
    assert plain.keys() == nf4.keys()
    assert json.loads(plain["adapter_config.json"]) == json.loads(nf4["adapter_config.json"])
    headers = [data[8 : 8 + int.from_bytes(data[:8], "little")] for data in (found["adapter_model.safetensors"] for found in (plain, nf4))]  # fmt: skip
    assert headers[0] == headers[1]
    assert plain["adapter_model.safetensors"] != nf4["adapter_model.safetensors"]
    heldout = write_rows(root / "heldout.jsonl", colour_rows(4))
    capsys.readouterr()
    for flags in ([], ["--nf4"]):
        adapter = str(root / "artifacts" / "nf4" / "adapter")
        command = ["sample", "--base", str(root / "models" / "tiny"), "--adapter", adapter, "--prompts", str(heldout)]
        assert main([*command, "--max-new-tokens", "4", *flags]) == 0
        assert "exact: " in capsys.readouterr().out


PAIRS = {"name": "pairs", "kind": "preference", "source": "pvc://data/pairs.jsonl"}


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_trl_trains_the_adapter_in_its_own_precision_too(method: str, root: Path) -> None:
    """TRL would round it to bf16, in which a small update is none; and a policy to something else than its reference."""
    rows = [{"prompt": "sky?", "chosen": f"Blue {at}.", "rejected": f"Green {at}."} for at in range(6)]
    write_rows(root / "data" / "pairs.jsonl", rows)
    data = PAIRS if method == "dpo" else {}
    lora = {"trainer": "TRL", "method": method}
    report = train_here(in_nf4(run_file(output="first", steps=2, data=data, lora=lora), dtype="bf16"), root)
    weights = safetensors.torch.load(adapter_bytes(root, "first")["adapter_model.safetensors"])
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert any((weight != weight.bfloat16()).any() for weight in weights.values())
    if method == "dpo":
        # A child is its reference before its first step.
        assert report.outcome
        kept = report.outcome.adapter
        assert kept, report.outcome.message
        parent = {"name": "first", "uri": kept.uri, "digest": kept.digest}
        child = run_file(output="child", steps=1, parent=parent, data=data, lora=lora)
        told = train_here(in_nf4(child, dtype="bf16"), root).progress
        assert told
        assert (told.loss, told.reward_margin) == (pytest.approx(math.log(2), abs=1e-6), pytest.approx(0, abs=1e-6))


def test_an_image_without_bitsandbytes_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *more: None if name == "bitsandbytes" else find(name, *more)
    )
    outcome = train_here(in_nf4(run_file()), root).outcome
    assert outcome
    assert (outcome.reason, outcome.message) == (
        Reason.INVALID_SPEC,
        "base tiny: found quantization nf4, and this image has no bitsandbytes; install it, or leave quantization out",
    )
