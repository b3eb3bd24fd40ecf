"""Activation checkpointing: as few layers as must be are computed again, and no bit of a gradient depends on it."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
import torch
from tiny_models import DENSE, HYBRID, MOE, gradient_of, tiny_model
from trainer_support import adapter_bytes, run_file, train_here

from halo_trainer.activations import Kept, checkpointed_layers, compute_again, layers_again, measured, saved_bytes
from halo_trainer.data.bundle import Segment, Tree
from halo_trainer.data.template import TokenRow
from halo_trainer.methods import PackedSft, Sft

CPU = torch.device("cpu")
ROWS = [
    TokenRow(array("i", range(first, first + length)), bytearray([place % 3 > 0 for place in range(length)]))
    for first, length in ((3, 40), (20, 7), (9, 23))
]


@pytest.mark.parametrize(
    ("free", "again"),
    [
        # Of 10 tokens: 2 bytes each for the rest, 8 for each of 4 layers, and for two more where the backward pass is.
        (10 * (2 + 6 * 8), 0),
        (10 * (2 + 6 * 8) - 1, 1),
        (10 * (2 + 5 * 8 + 1), 1),
        (10 * (2 + 3 * 8 + 3), 3),
        (10 * (2 + 3 * 8 + 3) - 1, 4),
        (0, 4),
        (-1, 4),
    ],
)
def test_as_few_layers_are_computed_again_as_must_be(free: float, again: int) -> None:
    assert layers_again(Kept(layer=8, input=1, rest=2), 4, 10, free) == again


@pytest.mark.parametrize("method", [Sft, PackedSft])
@pytest.mark.parametrize("kind", [*DENSE, *MOE, *HYBRID])
def test_gradients_are_the_same_to_the_bit(kind: str, method: type[Sft] | type[PackedSft]) -> None:
    model = tiny_model(kind)
    for name, _ in model.named_modules():
        if name.endswith("lora_dropout.default"):
            model.get_submodule(name.rpartition(".")[0])["default"] = torch.nn.Dropout(0.3)
    rows = method(ROWS, model, CPU)
    step = list(range(len(ROWS)))

    def gradient(again: int) -> torch.Tensor:
        compute_again(model, again)
        torch.manual_seed(3)
        for part in rows.passes(step, 1):
            rows.share(part, step).loss.backward()
        return gradient_of(model)

    kept = gradient(0)
    layers = len(checkpointed_layers(model))
    assert layers >= 2
    assert torch.equal(gradient(1), kept)
    assert torch.equal(gradient(layers), kept)


@pytest.mark.parametrize("kind", [*DENSE, *MOE])
def test_what_a_pass_keeps_is_foretold_by_a_short_row(kind: str) -> None:
    """And rather too much: a mixture of experts keeps for each of them what does not grow with the row."""
    model = tiny_model(kind, num_hidden_layers=3)
    rows = PackedSft(ROWS, model, CPU)
    kept, layers = measured(model, rows.trial, 128), checkpointed_layers(model)
    assert len(layers) == 3
    for again in range(4):
        compute_again(model, again)
        found = saved_bytes(model, lambda: rows.trial(512))
        foretold = kept.needed(512, 3, again) - 512 * 2 * kept.layer
        assert 0.98 * found < foretold < 1.15 * found


def test_what_forks_take_is_foretold_too() -> None:
    """Each run behind a fork keeps the keys and values of its whole path."""
    model = tiny_model("qwen3", num_hidden_layers=3)
    root = Segment(array("i", [5]) * 256, bytearray(256), None)
    leaves = [Segment(array("i", [7]) * 8, bytearray([1]) * 8, 0) for _ in range(12)]
    rows = PackedSft([Tree((root, *leaves))], model, CPU)
    tokens = 256 + 12 * 8
    found = saved_bytes(model, lambda: rows.share([0], [0]).loss)
    kept = measured(model, rows.trial, 128)
    assert found < kept.needed(tokens, 3, 0) - tokens * 2 * kept.layer
    assert measured(model, PackedSft(ROWS, model, CPU).trial, 128).needed(tokens, 1, 0) < found


def test_a_run_with_little_memory_computes_again_and_has_the_same_bytes(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lora = {"microBatch": 2}
    train_here(run_file(output="much/a1", lora=lora, steps=3), root)
    assert "computed again" not in capsys.readouterr().out
    monkeypatch.setenv("HALO_DEVICE_BYTES", "1000000")
    train_here(run_file(output="little/a1", lora=lora, steps=3), root)
    assert "0 GB are free: 2 of 2 layers are computed again in the backward pass" in capsys.readouterr().out
    assert adapter_bytes(root, "little/a1") == adapter_bytes(root, "much/a1")
