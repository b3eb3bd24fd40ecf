"""Tiny models of random weights, one for each architecture that packing is proven for, and segments of trees."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from halo_api.run_status import FrozenLora
from halo_trainer.model import attach_lora, trained_parameters

VOCABULARY = 97
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
DENSE = ("llama", "qwen2", "qwen3")
MOE = ("qwen3_moe",)
HYBRID = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")

# Those of them that choose among experts.
MIXTURES = (*MOE, "qwen3_next", "qwen3_5_moe_text")


def tiny_config(kind: str, **changes: Any) -> Any:
    """Return the configuration of a tiny model."""
    from transformers import AutoConfig

    more: dict[str, Any] = {}
    if kind.startswith("qwen3"):
        more["head_dim"] = 8
    if kind in MIXTURES:
        more |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "router_aux_loss_coef": 0.0}
    if kind in HYBRID:
        more |= {
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_hidden_layers": 3,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 4,
            "linear_value_head_dim": 6,
        }
    if kind in MIXTURES and kind in HYBRID:
        more["shared_expert_intermediate_size"] = 16
    return AutoConfig.for_model(kind, **(COMMON | more | changes))


def tiny_model(kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """Return a model whose LoRA is not the identity; its attention is transformers' own until `install`."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(tiny_config(kind, **changes), dtype=dtype, attn_implementation="sdpa")
    if kind in MIXTURES:
        # The grouped product of torch has no fp64.
        base.set_experts_implementation("eager")
    model = attach_lora(base, FrozenLora(dataset="chat", rank=4, alpha=8), 0).to(dtype)
    if dtype == torch.float64:
        compute_in_double(model)
    torch.manual_seed(1)
    for parameter in trained_parameters(model).values():
        torch.nn.init.normal_(parameter, std=0.3)
    # As in a run, where the layers of transformers behave in ways of their own.
    model.train()
    return model


class InDouble(TorchFunctionMode):
    """What asks for fp32 gets fp64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        args, kwargs = (self.doubled(part) for part in (tuple(args), kwargs or {}))
        return func(*args, **kwargs)

    def doubled(self, part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(torch.float64 if each is torch.float32 else each for each in part)
        return {name: torch.float64 if each is torch.float32 else each for name, each in part.items()}


def compute_in_double(model: Any) -> None:
    """Let what computes in fp32 whatever the model is, as norms, routers and states do, compute in fp64.

    Else the gradients of rows that share tokens are rounded to fp32 after they are added up, and a row's own before.
    """
    layers = model.get_base_model().base_model
    inner = layers.forward

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with InDouble():
            return inner(*args, **kwargs)

    layers.forward = forward


def gradient_of(model: Any) -> torch.Tensor:
    """Return the adapter's whole gradient as one vector, and clear it; what has none has zeros."""
    parts = []
    for parameter in trained_parameters(model).values():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parts.append(gradient.reshape(-1))
        parameter.grad = None
    return torch.cat(parts)


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return how far one vector is from another, relative to that one."""
    return float((found - expected).norm() / expected.norm())


def as_vector(weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return all tensors of an adapter as one vector, by their names."""
    return torch.cat([weights[name].reshape(-1) for name in sorted(weights)])
