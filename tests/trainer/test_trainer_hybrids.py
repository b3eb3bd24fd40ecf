"""Hybrids: layers with a state train packed, padded and in bundles as their rows do alone, and runs on them resume to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from agent_runs import THINKER, talk, tool_run
from gradients import CPU, alone_gradient, models, token_row
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_layouts import GRADIENTS, runs
from safetensors.torch import load
from tiny_models import HYBRID, VOCABULARY, as_vector, difference, gradient_of, tiny_config, tiny_model
from trainer_support import adapter_bytes, completed, make_tokenizer, run_file, train_here, write_rows

from halo_trainer.attention import Varlen
from halo_trainer.cli import main
from halo_trainer.data.bundle import Tally, linear_bundles
from halo_trainer.data.collate import collate_flat, trained_tokens
from halo_trainer.data.layout import Layout, packed, tree_layout
from halo_trainer.data.template import TokenRow
from halo_trainer.delta_rule import CHUNK, Rows, gated_delta_rule
from halo_trainer.methods import PackedSft, Sft
from halo_trainer.model import flat_logits

# Shorter than the convolution looks back, and around one and two chunks of the delta rule.
LENGTHS = (1, 2, 3, 4, 5, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1)


def row_of(length: int, text: int) -> TokenRow:
    """A row of random tokens, of which the last half trains."""
    ids = torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(text)).tolist()
    return token_row(ids, (length // 2, length))


def step_gradient(method: Sft | PackedSft, model: Any, size: int) -> torch.Tensor:
    """The gradient of one step of all rows, through the method as the loop calls it."""
    step = sorted(range(len(method.lengths)), key=lambda row: -method.lengths[row])
    for part in method.passes(step, size):
        method.share(part, step).loss.backward()
    return gradient_of(model)


@pytest.mark.parametrize("kind", HYBRID)
@pytest.mark.parametrize("packing", [True, False], ids=["packed", "padded"])
def test_rows_of_every_length_have_the_gradient_that_they_have_alone(kind: str, packing: bool) -> None:
    alone, flat = models(kind, torch.float64)
    model = flat if packing else tiny_model(kind, torch.float64)
    rows = [row_of(length, place) for place, length in enumerate(LENGTHS)]
    found = step_gradient((PackedSft if packing else Sft)(rows, model, CPU), model, len(rows))
    assert difference(found, alone_gradient(alone, rows, trained_tokens(rows))) < 1e-8


@settings(GRADIENTS, max_examples=8)
@given(
    rows=st.lists(st.builds(row_of, st.sampled_from(LENGTHS), st.integers(0, 2)), min_size=1, max_size=6),
    size=st.integers(1, 4),
)
def test_packed_rows_in_any_order_have_the_gradient_that_they_have_alone(rows: list[TokenRow], size: int) -> None:
    assume(trained_tokens(rows))
    alone, flat = models("qwen3_5_text", torch.float64)
    found = step_gradient(PackedSft(rows, flat, CPU), flat, size)
    assert difference(found, alone_gradient(alone, rows, trained_tokens(rows))) < 1e-8


@pytest.mark.parametrize("kind", HYBRID)
@settings(GRADIENTS, max_examples=4)
@given(steps=runs(VOCABULARY), most=st.integers(2, 6), length=st.integers(4, 40))
def test_a_packed_step_of_bundles_has_the_gradient_of_its_steps_alone(
    kind: str, steps: list[TokenRow], most: int, length: int
) -> None:
    kept = [cut for cut in (each.truncated(length) for each in steps) if trained_tokens([cut])]
    assume(kept)
    alone, flat = models(kind, torch.float64)
    bundles = list(linear_bundles(kept, most, Tally()))
    assert trained_tokens(bundles) == trained_tokens(kept)
    found = step_gradient(PackedSft(bundles, flat, CPU), flat, 2)
    assert difference(found, alone_gradient(alone, kept, trained_tokens(kept))) < 1e-8


@settings(GRADIENTS, max_examples=8)
@given(lengths=st.lists(st.integers(1, 140), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_the_delta_rule_in_chunks_is_the_rule_token_by_token(lengths: list[int], seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    tokens, heads, keys, values = sum(lengths), 2, 4, 3
    query, key = (torch.randn(tokens, heads, keys, generator=random, dtype=torch.float64) for _ in range(2))
    value = torch.randn(tokens, heads, values, generator=random, dtype=torch.float64)
    log_decay, beta = (torch.rand(tokens, heads, generator=random, dtype=torch.float64) for _ in range(2))
    found = gated_delta_rule(query, key, value, -log_decay, beta, Rows.of(tuple(lengths), 3, CPU))
    for row in torch.split(torch.arange(tokens), lengths):
        state = torch.zeros(heads, keys, values, dtype=torch.float64)
        for at in row:
            q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (query[at], key[at]))
            state = state * torch.exp(-log_decay[at])[:, None, None]
            change = beta[at][:, None] * (value[at] - torch.einsum("hk,hkv->hv", k, state))
            state = state + torch.einsum("hk,hv->hkv", k, change)
            torch.testing.assert_close(found[at], torch.einsum("hk,hkv->hv", q, state) * keys**-0.5)


def test_a_layer_with_a_state_takes_no_tree() -> None:
    _, flat = models("qwen3_5_text", torch.float64)
    tree = [token_row([1, 2], (1, 2)), token_row([3], (0, 1)), token_row([4], (0, 1))]

    def run(layout: Layout) -> None:
        flat_logits(flat, collate_flat(layout, CPU), Varlen.of(layout, CPU))

    run(packed(tree))
    with pytest.raises(ValueError, match="no tree"):
        run(tree_layout([Piece(row, None if place == 0 else 0) for place, row in enumerate(tree)]))


class Piece:
    """A row as a piece of a tree."""

    def __init__(self, row: TokenRow, parent: int | None) -> None:
        self.ids, self.trained, self.parent = row.ids, row.trained, parent


SOFTMAX = {f"self_attn.{name}_proj" for name in "qkvo"}
DELTA = {"linear_attn.out_proj", *(f"linear_attn.in_proj_{name}" for name in ("qkv", "z", "a", "b"))}
FUSED_DELTA = {"linear_attn.out_proj", "linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"}
MLP = {"gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize(
    ("kind", "adapted"),
    [
        ("qwen3_5_text", SOFTMAX | DELTA | {f"mlp.{name}" for name in MLP}),
        (
            "qwen3_5_moe_text",
            SOFTMAX | DELTA | {f"mlp.shared_expert.{name}" for name in MLP} | {"mlp.shared_expert_gate"},
        ),
        # The experts and their router, by PEFT's own table; the second of two adapters on the experts is the inner one.
        (
            "qwen3_next",
            SOFTMAX | FUSED_DELTA | {"mlp.experts", "mlp.experts.base_layer", "mlp.gate", "mlp.shared_expert_gate"},
        ),
    ],
)
def test_what_gets_an_adapter_unless_named(kind: str, adapted: set[str]) -> None:
    """As the documentation lists it; PEFT decides, and a new version of it may decide otherwise."""
    names = (name.split(".lora_A.")[0] for name, _ in tiny_model(kind).named_parameters() if ".lora_A." in name)
    assert {name.split(".", 5)[5] for name in names} == adapted


@pytest.fixture
def hybrid(root: Path) -> Path:
    """A root of volumes whose base is a hybrid as it is published: with a vision tower, which no run needs."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    folder = root / "models" / "tiny"
    tokenizer = make_tokenizer()
    text = tiny_config("qwen3_5_text", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id).to_dict()
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3_5", text_config=text, vision_config=vision)
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    return root


@pytest.mark.parametrize("packing", [True, False], ids=["packed", "padded"])
def test_a_run_on_a_hybrid_resumes_to_the_bit(hybrid: Path, packing: bool, capsys: pytest.CaptureFixture[str]) -> None:
    lora = {"dropout": 0.1, "microBatch": 2, "packing": packing}
    straight = train_here(run_file(output="straight", lora=lora), hybrid)
    assert straight.outcome
    assert straight.outcome.result == "Succeeded", straight.outcome.message
    assert "rows are padded" not in capsys.readouterr().out
    for kept in straight.checkpoints[:-1]:
        resume = {"step": kept.step, "uri": kept.uri, "digest": kept.digest}
        train_here(run_file(output=f"from-{kept.step}", lora=lora, resume=resume), hybrid)
        assert adapter_bytes(hybrid, f"from-{kept.step}") == adapter_bytes(hybrid, "straight")


def test_bundles_on_a_hybrid_are_packed_and_end_at_a_fork(hybrid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On all eight steps alone, and in their six linear bundles, a run learns the same."""
    (hybrid / "models" / "tiny" / "chat_template.jinja").write_text(THINKER)
    write_rows(hybrid / "data" / "chat.jsonl", [*talk("a", 3), *tool_run("b", 2), *talk("c", 2)])
    for output, batch, bundle in (("alone", 8, {}), ("bundled", 6, {"bundle": 8})):
        lora = {"packing": True, "microBatch": 2} | bundle
        assert train_here(run_file(output=output, lora=lora, batch=batch, steps=3), hybrid).progress
    told = capsys.readouterr().out
    assert "bundle 8: 8 steps in 6 rows: " in told
    assert "padded" not in told
    assert (
        main(["inspect", "--base", str(hybrid / "models/tiny"), "--bundle", "8", str(hybrid / "data/chat.jsonl")]) == 0
    )
    assert "bundle 8: 8 steps in 6 rows: " in capsys.readouterr().out
    alone, bundled = (
        as_vector(load(adapter_bytes(hybrid, name)["adapter_model.safetensors"])) for name in ("alone", "bundled")
    )
    assert difference(bundled, alone) < 1e-3


@pytest.mark.slow
def test_a_run_over_two_processes_learns_what_one_does(hybrid: Path) -> None:
    """Started as a pod starts it, on rows of which most are split."""
    lora = {"packing": True, "microBatch": 2}
    train_here(run_file(output="one", lora=lora, steps=4), hybrid)
    split = {"contextParallel": {"group": 2, "wholeRow": 40}, "layout": {"gpusPerNode": 2}}
    completed(run_file(output="two", lora=lora, steps=4, **split), hybrid)
    one, two = (as_vector(load(adapter_bytes(hybrid, name)["adapter_model.safetensors"])) for name in ("one", "two"))
    assert difference(two, one) < 1e-3


def test_answers_of_a_hybrid_are_the_same_beside_a_longer_prompt(
    hybrid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Padding goes before a prompt, where it must leave the state at zero."""
    train_here(run_file(steps=2), hybrid)
    capsys.readouterr()
    base, adapter = (str(hybrid / place) for place in ("models/tiny", "artifacts/run/adapter"))
    prompts = [option for text in ("Sky?", "Please tell me the colour of grass.") for option in ("--prompt", text)]
    answers = []
    for batch in ("1", "2"):
        options = ["--base", base, "--adapter", adapter, *prompts, "--batch", batch, "--max-new-tokens", "12", "--json"]
        assert main(["sample", *options]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    assert len(answers[0].splitlines()) == 2
