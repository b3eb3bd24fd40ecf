"""The fast paths have the numbers of what they replace: the adapted layer PEFT's, the frozen head those of whole logits."""

from __future__ import annotations

import collections
import copy
from array import array
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_models import COMMON, DENSE, HYBRID, MOE, VOCABULARY, gradient_of, tiny_config, tiny_model
from torch.nn.functional import cross_entropy, linear
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from halo_api.run_status import FrozenLora
from halo_trainer.answers import plain_head
from halo_trainer.attention import Varlen
from halo_trainer.data.collate import collate, collate_flat, trained_tokens
from halo_trainer.data.layout import packed
from halo_trainer.data.template import TokenRow
from halo_trainer.fast_lora import AdaptedLinear, install_fast_lora
from halo_trainer.methods import PackedSft, Sft
from halo_trainer.model import answer_logits, attach_lora
from halo_trainer.objectives import frozen_head
from halo_trainer.objectives.frozen_head import frozen_head_nll
from halo_trainer.objectives.sft import sft_loss

CPU = torch.device("cpu")
# Of a few lengths, with one that teaches nothing: its first token has nothing that predicts it.
ROWS = [
    TokenRow(array("i", range(first, first + length)), bytearray([1] + [place % 3 > 0 for place in range(length - 1)]))
    for first, length in ((3, 9), (20, 4), (40, 17))
] + [TokenRow(array("i", [5, 6, 7]), bytearray([1, 0, 0]))]


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
def test_the_gradient_of_an_adapted_layer(biased: bool, dropped: bool) -> None:
    """Against differences of its values, and these against the formula."""
    torch.manual_seed(0)
    x, other, a, b = numbers(2, 3, 5), numbers(2, 3, 5), numbers(2, 5), numbers(4, 2)
    weight, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((4, 5), (4,)))
    frozen = (weight, bias if biased else None)
    low = other if dropped else x
    found = AdaptedLinear.apply(x, other if dropped else None, *frozen, a, b, 0.5)
    assert torch.allclose(found, linear(x, *frozen) + 0.5 * (low @ a.T @ b.T))
    if dropped:
        assert torch.autograd.gradcheck(
            lambda x, d, a, b: AdaptedLinear.apply(x, d, *frozen, a, b, 0.5), (x, other, a, b)
        )
    assert torch.autograd.gradcheck(lambda x, a, b: AdaptedLinear.apply(x, None, *frozen, a, b, 0.5), (x, a, b))
    # What comes from a frozen embedding needs no gradient.
    AdaptedLinear.apply(x.detach(), None, *frozen, a, b, 0.5).sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("numbers_at_once", [1, 7 * 3, 10**6])
def test_the_gradient_of_a_frozen_head(biased: bool, numbers_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against torch's own loss of whole logits, of which 1, 3 or all 8 rows are held at once."""
    monkeypatch.setitem(frozen_head.CHUNK_NUMBERS, "cpu", numbers_at_once)
    torch.manual_seed(0)
    hidden, targets = numbers(8, 5), torch.randint(0, 7, (8,))
    weight, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((7, 5), (7,)))
    frozen = (weight, bias if biased else None)
    found = frozen_head_nll(hidden, *frozen, targets)
    assert torch.allclose(found, cross_entropy(linear(hidden, *frozen), targets, reduction="none"))
    assert torch.autograd.gradcheck(lambda hidden: frozen_head_nll(hidden, *frozen, targets), (hidden,))
    nothing = frozen_head_nll(hidden[:0], *frozen, targets[:0]).sum()
    nothing.backward()
    assert nothing.item() == 0


def test_a_head_that_trains_is_refused() -> None:
    with pytest.raises(ValueError, match="must be frozen"):
        frozen_head_nll(numbers(1, 5), numbers(7, 5), None, torch.tensor([0]))


@pytest.mark.parametrize("method", [Sft, PackedSft])
@pytest.mark.parametrize("kind", [*DENSE, *MOE, *HYBRID])
def test_a_step_has_the_numbers_of_peft_and_whole_logits(kind: str, method: type[Sft] | type[PackedSft]) -> None:
    model = tiny_model(kind, torch.float64)
    step = list(range(len(ROWS)))
    denominator = trained_tokens(ROWS)
    micro = collate(ROWS, 0, CPU)
    loss = sft_loss(answer_logits(model, micro), micro.targets_BK, micro.trained_BK, denominator)
    loss.backward()
    expected = gradient_of(model)
    quick = method(ROWS, model, CPU)
    assert quick._answers.head is not None
    assert install_fast_lora(model) > 0
    shares = [quick.share(part, step).loss for part in quick.passes(step, 2)]
    for share in shares:
        share.backward()
    assert sum(share.item() for share in shares) == pytest.approx(loss.item(), rel=1e-10)
    assert (gradient_of(model) - expected).norm() / expected.norm() < 1e-10


def test_dropout_is_what_it_was() -> None:
    """Drawn in the same order from the same generator, of the adapter's inputs alone."""
    model = tiny_model("llama", torch.float64)
    for name, _ in model.named_modules():
        if name.endswith("lora_dropout.default"):
            parent = model.get_submodule(name.rpartition(".")[0])
            parent["default"] = torch.nn.Dropout(0.5)
    micro = collate(ROWS[:1], 0, CPU)

    def gradient() -> torch.Tensor:
        torch.manual_seed(3)
        sft_loss(answer_logits(model, micro), micro.targets_BK, micro.trained_BK, 1).backward()
        return gradient_of(model)

    expected = gradient()
    install_fast_lora(model)
    found = gradient()
    assert (found - expected).norm() / expected.norm() < 1e-10
    model.eval()
    assert (gradient() - found).norm() / expected.norm() > 1e-3


class Calls(TorchDispatchMode):
    """Counts what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", DENSE)
def test_the_host_never_waits_for_the_device_in_a_pass(kind: str) -> None:
    """Nothing asks for a number, or for a length that depends on numbers, from the tokens to the gradients."""
    model = tiny_model(kind)
    rows = PackedSft(ROWS, model, CPU)
    layout = packed(ROWS)
    flat, varlen = collate_flat(layout, CPU), Varlen.of(layout, CPU)
    with Calls() as calls:
        rows._answers.flat(flat, varlen, 30).backward()
    assert calls.names["aten.mm.default"] > 0
    waits = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "unique", "masked_select", "item")
    assert [name for name in calls.names if name.split(".")[1] in waits] == []


@pytest.mark.parametrize("more", [{"use_dora": True}, {"lora_bias": True}])
def test_other_kinds_of_lora_stay_those_of_peft(more: dict[str, Any]) -> None:
    base = AutoModelForCausalLM.from_config(tiny_config("llama"))
    assert install_fast_lora(get_peft_model(base, LoraConfig(target_modules=["up_proj"], **more))) == 0


def test_an_adapter_that_is_off_is_off() -> None:
    model = tiny_model("qwen2", torch.float64)
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad(), model.disable_adapter():
        expected = model(input_ids=ids).logits
        install_fast_lora(model)
        assert torch.equal(model(input_ids=ids).logits, expected)
    with torch.no_grad():
        assert not torch.allclose(model(input_ids=ids).logits, expected)


def test_over_a_bf16_base_the_adapter_is_fp32_and_no_less_exact() -> None:
    """Held to the same weights in fp64, it is as far off as with PEFT's adapter in fp32: the base's own products decide."""
    model = tiny_model("llama", hidden_size=128, intermediate_size=256)
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.03)
        elif parameter.dim() == 2:
            parameter.data *= 5
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)
    micro = collate(ROWS, 0, CPU)

    def gradient(model: Any) -> torch.Tensor:
        sft_loss(answer_logits(model, micro), micro.targets_BK, micro.trained_BK, 30).backward()
        return gradient_of(model)

    exact, by_peft = gradient(copy.deepcopy(model).to(torch.float64)), gradient(model)
    install_fast_lora(model)
    found = gradient(model)
    assert found.dtype == by_peft.dtype == torch.float32
    assert (found - exact).norm() < 1.25 * (by_peft - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize(
    ("kind", "more", "plain"),
    [
        ("llama", {}, True),
        ("qwen3", {"tie_word_embeddings": True}, True),
        ("granite", {"logits_scaling": 8.0}, False),
        ("gemma2", {"final_logit_softcapping": 30.0, "head_dim": 8}, False),
        ("cohere", {"logit_scale": 0.5}, False),
    ],
)
def test_a_head_is_plain_where_its_product_is_the_logits(kind: str, more: dict[str, Any], plain: bool) -> None:
    base = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(COMMON | more)))
    model = attach_lora(base, FrozenLora(dataset="chat", rank=4, alpha=8), 0)
    assert (plain_head(model) is not None) is plain
    logits = model(input_ids=torch.tensor([[1, 2]])).logits
    assert logits.shape == (1, 2, VOCABULARY)


def test_an_adapted_head_is_not_plain() -> None:
    base = tiny_model("llama").get_base_model()
    lora = FrozenLora(dataset="chat", rank=4, alpha=8, target_modules=["q_proj", "lm_head"])
    assert plain_head(attach_lora(base, lora, 0)) is None
