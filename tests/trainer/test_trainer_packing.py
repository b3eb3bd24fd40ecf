"""Packing: a step's gradient is the sum of its rows' own, on every architecture that packs, and a run resumes to the bit."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from gradients import alone_gradient, layout_gradient, models, token_row
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_layouts import GRADIENTS, Segment, rows_of, segments
from tiny_models import DENSE, HYBRID, MOE, VOCABULARY, as_vector, difference, gradient_of, tiny_config, tiny_model
from trainer_support import adapter_bytes, completed, killed, run_file, train_here

from halo_trainer.attention import BLOCK, Varlen, takes_trees, why_padded
from halo_trainer.data.collate import collate_flat, trained_tokens
from halo_trainer.data.layout import packed, tree_layout
from halo_trainer.data.template import TokenRow
from halo_trainer.methods import PackedSft, Sft, sft_method
from halo_trainer.model import flat_logits

CPU = torch.device("cpu")
# A router's choice can turn on the last bit, so a mixture of experts is held to its rows in fp64.
TREES = (*DENSE, *MOE)
CASES = [*((kind, torch.float32, 1e-5) for kind in DENSE), *((kind, torch.float64, 1e-8) for kind in TREES)]
PACKS = (*TREES, *HYBRID)


@st.composite
def turns(draw: st.DrawFn, longest: int = 40) -> TokenRow:
    """A prompt and an answer, which may be one token, and perhaps another turn; some rows have the text of others."""
    length = draw(st.integers(2, longest))
    text = torch.Generator().manual_seed(draw(st.integers(0, 3)))
    ids = torch.randint(0, VOCABULARY, (length,), generator=text).tolist()
    first = draw(st.integers(1, length - 1))
    last = draw(st.sampled_from([first + 1, length]))
    later = draw(st.integers(last, length))
    return token_row(ids, (first, last), (later, length))


@pytest.mark.parametrize(("kind", "dtype", "bound"), [*CASES, *((kind, torch.float64, 1e-8) for kind in HYBRID)])
@GRADIENTS
@given(rows=st.lists(turns(), min_size=1, max_size=6), size=st.integers(1, 3))
def test_a_packed_step_has_the_gradient_of_its_rows_alone(
    kind: str, dtype: torch.dtype, bound: float, rows: list[TokenRow], size: int
) -> None:
    """Through the method as the loop calls it: passes, their shares of the loss, and what backward adds up."""
    alone, flat = models(kind, dtype)
    method = PackedSft(rows, flat, CPU)
    step = list(range(len(rows)))
    for part in method.passes(step, size):
        method.share(part, step).loss.backward()
    assert difference(gradient_of(flat), alone_gradient(alone, rows, trained_tokens(rows))) <= bound


def segment(ids: list[int], trained: list[int], parent: int | None) -> Segment:
    return Segment(array("i", ids), bytearray(trained), parent)


# A prompt with an answer; two steps that fork behind it, the second with a fork of its own; and a row of another run.
FORKS = [
    segment([5, 6, 7, 8, 9], [0, 0, 0, 1, 1], None),
    segment([10, 11, 12], [0, 1, 1], 0),
    segment([13, 14], [0, 0], 0),
    segment([15], [1], 2),
    segment([16, 17, 18], [1, 0, 1], 2),
    segment([5, 6, 19], [0, 1, 1], None),
]


@pytest.mark.parametrize(("kind", "dtype", "bound"), CASES)
def test_a_fork_has_the_gradient_of_its_rows_alone(kind: str, dtype: torch.dtype, bound: float) -> None:
    alone, flat = models(kind, dtype)
    rows = rows_of(FORKS)
    assert len(rows) == 5
    layout = tree_layout(FORKS)
    assert any(run.before for run in layout.runs)
    # The last token before the second fork predicts two next tokens.
    assert len(set(layout.predicts)) < len(layout.predicts)
    denominator = trained_tokens(rows)
    assert difference(layout_gradient(flat, layout, denominator), alone_gradient(alone, rows, denominator)) <= bound


@settings(GRADIENTS, max_examples=25)
@given(tree=segments())
def test_a_tree_has_the_gradient_of_its_rows_alone(tree: list[Segment]) -> None:
    alone, flat = models("qwen3", torch.float64)
    rows = rows_of(tree)
    assume(rows)
    denominator = trained_tokens(rows)
    found = layout_gradient(flat, tree_layout(tree), denominator)
    assert difference(found, alone_gradient(alone, rows, denominator)) < 1e-8


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_a_long_branch_is_masked_in_blocks(length: int) -> None:
    alone, flat = models("llama", torch.float64)
    text = torch.Generator().manual_seed(length)
    ids = [torch.randint(0, VOCABULARY, (count,), generator=text).tolist() for count in (9, 4, length)]
    tree = [
        segment(ids[0], [0] * 9, None),
        segment(ids[1], [1] * 4, 0),
        segment(ids[2], [0] * (length - 3) + [1] * 3, 0),
    ]
    found = layout_gradient(flat, tree_layout(tree), 7)
    assert difference(found, alone_gradient(alone, rows_of(tree), 7)) < 1e-9


@pytest.mark.parametrize("kind", PACKS)
@GRADIENTS
@given(first=turns(), second=turns())
def test_a_row_has_the_same_logits_behind_another_as_alone(kind: str, first: TokenRow, second: TokenRow) -> None:
    alone, flat = models(kind, torch.float64)
    every = [TokenRow(row.ids, bytearray(b"\1" * len(row))) for row in (first, second)]
    layout = packed(every)
    with torch.no_grad():
        expected = alone(input_ids=torch.tensor([list(second.ids)]), use_cache=False).logits[0, :-1]
        found = flat_logits(flat, collate_flat(layout, CPU), Varlen.of(layout, CPU))[0, len(first) - 1 :]
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) < 1e-10


def test_a_row_with_nothing_to_predict_adds_nothing() -> None:
    _, flat = models("llama", torch.float32)
    method = PackedSft([token_row([3], (0, 1)), token_row([4, 5, 6], (0, 1)), token_row([7, 8], (1, 2))], flat, CPU)
    loss = method.share([0, 1], [0, 1, 2]).loss
    loss.backward()
    assert loss.item() == 0.0
    assert not gradient_of(flat).any()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        *((lambda kind=kind: tiny_config(kind), None) for kind in PACKS),
        (lambda: tiny_config("qwen3", use_sliding_window=True, sliding_window=8, max_window_layers=1), "a window"),
        (lambda: tiny_config("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=0), "a window"),
        (lambda: tiny_config("qwen3_moe", use_sliding_window=True, sliding_window=8), "a window"),
        # Its window is for no layer: `use_sliding_window` is not set.
        (lambda: tiny_config("qwen3", sliding_window=8), None),
        (lambda: tiny_config("mistral", sliding_window=8), "a window"),
        (lambda: tiny_config("mistral", sliding_window=None), "architecture mistral is none of llama, qwen2"),
        (lambda: tiny_config("gemma3_text"), "a window"),
        (lambda: tiny_config("olmo_hybrid"), "linear_attention carry a state"),
        (lambda: tiny_config("jamba"), "carry a state"),
        (lambda: tiny_config("gpt_neox"), "architecture gpt_neox is none of"),
        (
            lambda: tiny_config("llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
            "dynamic rotary positions",
        ),
        (
            lambda: tiny_config("llama", rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}),
            None,
        ),
    ],
)
def test_only_proven_architectures_pack(config: Callable[[], Any], reason: str | None) -> None:
    found = why_padded(config())
    assert (reason is None) == (found is None)
    assert reason is None or reason in (found or "")


def test_trees_need_layers_that_all_attend() -> None:
    assert [kind for kind in PACKS if takes_trees(tiny_config(kind))] == [*TREES]
    assert not takes_trees(tiny_config("mistral", sliding_window=8))


def test_where_rows_are_padded_the_log_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    windowed = tiny_model("qwen3", use_sliding_window=True, sliding_window=8, max_window_layers=1)
    rows = [token_row([1, 2, 3], (1, 3))]
    assert type(sft_method(rows, True, windowed, CPU)) is Sft
    assert capsys.readouterr().out == "rows are padded, not packed: some of its layers attend to a window of the row\n"
    assert windowed.get_base_model().config._attn_implementation == "sdpa"
    assert type(sft_method(rows, False, tiny_model("qwen3"), CPU)) is Sft
    assert type(sft_method(rows, True, tiny_model("qwen3"), CPU)) is PackedSft
    assert capsys.readouterr().out == ""


LORA = {"dropout": 0.1, "microBatch": 2, "packing": True}


def test_a_packed_run_resumes_to_the_bit(root: Path) -> None:
    straight = train_here(run_file(output="straight", lora=LORA), root)
    assert [checkpoint.step for checkpoint in straight.checkpoints] == [2, 4, 6]
    for checkpoint in straight.checkpoints:
        resume = {"step": checkpoint.step, "uri": checkpoint.uri, "digest": checkpoint.digest}
        train_here(run_file(output=f"from-{checkpoint.step}", lora=LORA, resume=resume), root)
        assert adapter_bytes(root, f"from-{checkpoint.step}") == adapter_bytes(root, "straight")


def test_a_killed_packed_run_goes_on_to_the_same_bytes_on_two_ranks(root: Path) -> None:
    spec = {"lora": LORA, "steps": 40, "layout": {"gpusPerNode": 2}}
    completed(run_file(output="straight", **spec), root)
    resume = killed(run_file(output="a1", **spec), root)
    completed(run_file(output="a2", resume=resume, **spec), root)
    assert adapter_bytes(root, "a2") == adapter_bytes(root, "straight")


def test_packing_changes_a_run_by_no_more_than_rounding(root: Path) -> None:
    """Without dropout, whose draws depend on the shape of a forward pass."""
    for name, packing in (("padded", False), ("packed", True)):
        train_here(run_file(output=name, lora={"microBatch": 3, "packing": packing}), root)
    padded, packed = (
        safetensors.torch.load_file(root / "artifacts" / name / "adapter" / "adapter_model.safetensors")
        for name in ("padded", "packed")
    )
    assert difference(as_vector(packed), as_vector(padded)) < 1e-4
