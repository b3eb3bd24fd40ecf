"""Folding: a policy depends on the base and on itself alone, and is what PEFT's own merge of it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rollout_support import MORE, lora_config, make_adapter, make_base, merged
from torch import Tensor

from halo_rollout.folding import fold, group_of, update
from halo_rollout.lora import NOTHING, Delta, Lora, Unfoldable, deltas, lora_of
from halo_rollout.pristine import Pristine, read_lora

PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
KINDS = [kind for kind in MORE if kind != "wide"]
A, B = torch.zeros(4, 3), torch.zeros(5, 4)


class Served:
    """The weights that an engine would have: it takes what an update sends, whole groups only."""

    def __init__(self, pristine: Pristine) -> None:
        self.pristine = pristine
        self.weights = {name: pristine.weight(name) for name in pristine.shapes}
        self.changed: frozenset[str] = frozenset()

    def take(self, lora: Lora) -> int:
        change = update(lora, self.pristine.shapes, PACKED, self.changed)
        sent = dict(self.pristine.folded(change))
        groups = {group_of(name, PACKED) for name in sent}
        assert set(sent) == {name for name in self.weights if group_of(name, PACKED) in groups}
        self.weights |= sent
        self.changed = change.changed
        return len(sent)


def random_lora(lora: Lora, generator: torch.Generator, only: str = "") -> Lora:
    """Return a LoRA of the same shapes, on the modules whose name holds `only`."""
    pairs = {
        module: (torch.randn(a.shape, generator=generator), torch.randn(b.shape, generator=generator))
        for module, (a, b) in lora.pairs.items()
        if only in module
    }
    return replace(lora, pairs=pairs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_after_100_policies_the_weights_are_a_fresh_merge_bit_for_bit(kind: str, dtype: str, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", kind)
    lora = read_lora(make_adapter(base, tmp_path / "adapter", seed=1))
    pristine = Pristine(base, dtype)
    served, generator = Served(pristine), torch.Generator().manual_seed(0)
    for number in range(100):
        # Not every policy changes every layer: what only an earlier one changed must be the base's again.
        served.take(random_lora(lora, generator, only=("", "layers.0", "o_proj", "q_proj")[number % 4]))
    served.take(lora)
    fresh = Served(pristine)
    fresh.take(lora)
    assert same(served.weights, fresh.weights)
    served.take(NOTHING)
    assert same(served.weights, Served(pristine).weights)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folded_policy_is_what_pefts_own_merge_makes_of_it(kind: str, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", kind)
    adapter = make_adapter(base, tmp_path / "adapter", seed=1)
    served = Served(Pristine(base, "fp32"))
    served.take(read_lora(adapter))
    merged(base, adapter).save_pretrained(tmp_path / "merged")
    theirs = Pristine(tmp_path / "merged", "fp32")
    assert theirs.shapes == served.pristine.shapes
    for name in theirs.shapes:
        # The products of experts are summed in another order there.
        tolerance = 1e-6 if ".experts." in name else 0.0
        torch.testing.assert_close(served.weights[name], theirs.weight(name), rtol=0.0, atol=tolerance)


def test_only_changed_groups_are_sent_and_those_of_the_policy_before(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", "qwen3_moe")
    lora = read_lora(make_adapter(base, tmp_path / "adapter", seed=1))
    served, generator = Served(Pristine(base, "fp32")), torch.Generator().manual_seed(0)
    assert served.take(random_lora(lora, generator, only="layers.1.self_attn.q_proj")) == 3, "q, k and v of a layer"
    assert served.take(random_lora(lora, generator, only="layers.0.self_attn.o_proj")) == 4
    assert served.take(NOTHING) == 1
    assert served.take(NOTHING) == 0


def test_a_weight_is_rounded_once() -> None:
    """bf16 has 8 bits: 1 + 2^-8 + 2^-9 rounds to 1 + 2^-7, but the delta alone rounded and then added gives another."""
    weight = torch.ones(1, 1, dtype=torch.bfloat16)
    a, b = torch.ones(1, 1), torch.full((1, 1), 2.0**-8 + 2.0**-20)
    assert fold(weight, Delta(a, b, 1.0)).item() == 1 + 2.0**-7
    assert (weight + (b @ a).to(torch.bfloat16)).item() == 1.0


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("model.layers.0.self_attn.k_proj.bias", "model.layers.0.self_attn.qkv_proj"),
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_up_proj"),
        ("model.layers.0.mlp.shared_expert.up_proj.weight", "model.layers.0.mlp.shared_expert.gate_up_proj"),
        ("model.layers.0.mlp.experts.7.up_proj.weight", "model.layers.0.mlp.experts"),
        ("model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts"),
        ("model.layers.0.mlp.gate.weight", "model.layers.0.mlp.gate"),
    ],
)
def test_what_the_engine_fuses_is_one_group(name: str, group: str) -> None:
    assert group_of(name, PACKED) == group


def test_a_multimodal_bases_names_are_found_and_its_second_head_is_not_taken_for_a_layer() -> None:
    weights = {"model.language_model.layers.0.mlp.up_proj.weight": (5, 3), "mtp.layers.0.mlp.up_proj.weight": (5, 3)}
    assert list(deltas(Lora({"model.layers.0.mlp.up_proj": (A, B)}), weights)) == [next(iter(weights))]


@pytest.mark.parametrize("names", [("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")])
def test_experts_are_folded_alike_whether_the_files_have_them_one_by_one_or_as_one(names: tuple[str, ...]) -> None:
    """3 experts of hidden size 4 and inner size 5; PEFT's formula for their LoRA: einsum "o r e, e r i -> e o i"."""
    torch.manual_seed(0)
    pairs = {
        "l.experts.base_layer": (torch.randn(6, 4), torch.randn(10, 6)),
        "l.experts": (torch.randn(6, 5), torch.randn(4, 6)),
    }
    lora = Lora(pairs, alpha=2.0, alphas={r".*\.gate_up_proj": 6.0})
    one = deltas(lora, {"l.experts.gate_up_proj": (3, 10, 4), "l.experts.down_proj": (3, 4, 5)})
    shapes = dict(zip(names, ((5, 4), (5, 4), (4, 5)), strict=True))
    each = deltas(lora, {f"l.experts.{e}.{name}.weight": shape for e in range(3) for name, shape in shapes.items()})
    whole = {name: fold(torch.zeros(delta.shape), delta) for name, delta in one.items()}
    single = {name: fold(torch.zeros(delta.shape), delta) for name, delta in each.items()}
    gate, up, down = ([single[f"l.experts.{e}.{name}.weight"] for e in range(3)] for name in names)
    close = torch.testing.assert_close
    close(whole["l.experts.gate_up_proj"], torch.stack([torch.cat(both) for both in zip(gate, up, strict=True)]))
    close(whole["l.experts.down_proj"], torch.stack(down))
    for name, (a, b), scale in zip(whole, pairs.values(), (3.0, 1.0), strict=True):
        close(whole[name], torch.einsum("ore,eri->eoi", b.reshape(-1, 2, 3), a.reshape(3, 2, -1)) * scale)


@pytest.mark.parametrize(
    ("config", "tensors", "words"),
    [
        ({"use_dora": True}, {}, "use_dora True"),
        ({"modules_to_save": ["lm_head"]}, {}, "modules_to_save"),
        ({"lora_alpha": None}, {}, "lora_alpha None"),
        ({}, {"base_model.model.x.lora_magnitude_vector": A}, "lora_magnitude_vector"),
        ({}, {"base_model.model.x.lora_A.weight": A}, "only lora_A of x"),
    ],
)
def test_what_is_no_plain_lora_is_refused(config: dict[str, object], tensors: dict[str, Tensor], words: str) -> None:
    with pytest.raises(Unfoldable, match=words):
        lora_of(lora_config(**config), tensors)


def test_a_lora_of_another_base_is_refused() -> None:
    lora = lora_of(lora_config(), {"base_model.model.x.lora_A.weight": A, "base_model.model.x.lora_B.weight": B})
    with pytest.raises(Unfoldable, match=r"no x\.weight"):
        update(lora, {"y.weight": (5, 3)}, {}, ())
    with pytest.raises(Unfoldable, match="as a weight of 5x3, and the base's is 5x2"):
        update(lora, {"x.weight": (5, 2)}, {}, ())


def test_the_scale_is_pefts() -> None:
    tensors = {"base_model.model.l.q.lora_A.weight": A, "base_model.model.l.q.lora_B.weight": B}

    def scale(**changes: object) -> float:
        return deltas(lora_of(lora_config(**changes), tensors), {"l.q.weight": (5, 3)})["l.q.weight"].scale

    assert scale() == 2.0
    assert scale(use_rslora=True) == 4.0
    assert scale(alpha_pattern={"q": 2}) == 0.5
    assert scale(alpha_pattern={r".*\.gate_up_proj": 2}) == 2.0


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    """Whether all weights are equal, bit for bit; an output layer that is tied is not in the files."""
    assert found.keys() == expected.keys()
    return all(torch.equal(found[name], expected[name]) for name in expected)
