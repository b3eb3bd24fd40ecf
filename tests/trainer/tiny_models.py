"""Tiny models of random weights, one for each architecture that packing is proven for, and segments of trees."""

from __future__ import annotations

import types
from typing import Any

import torch

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


def tiny_config(kind: str, **changes: Any) -> Any:
    """Return the configuration of a tiny model."""
    from transformers import AutoConfig

    more: dict[str, Any] = {}
    if kind in ("qwen3", "qwen3_moe"):
        more["head_dim"] = 8
    if kind == "qwen3_moe":
        more |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "router_aux_loss_coef": 0.0}
    return AutoConfig.for_model(kind, **(COMMON | more | changes))


def tiny_model(kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """Return a model whose LoRA is not the identity; its attention is transformers' own until `install`."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(tiny_config(kind, **changes), dtype=dtype, attn_implementation="sdpa")
    if kind in MOE:
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


class InDouble:
    """The torch module to code that asks for fp32: it gets fp64."""

    def __getattr__(self, name: str) -> Any:
        return torch.float64 if name in ("float", "float32") else getattr(torch, name)


def compute_in_double(model: torch.nn.Module) -> None:
    """Let norms and routers, which compute in fp32 whatever the model is, compute in fp64.

    Else the gradients of rows that share tokens are rounded to fp32 after they are added up, and a row's own before.
    """
    for module in model.modules():
        if type(module).__name__.endswith(("RMSNorm", "TopKRouter")):
            forward = type(module).forward
            inner = types.FunctionType(forward.__code__, {**forward.__globals__, "torch": InDouble()})
            module.forward = types.MethodType(inner, module)


def gradient_of(model: Any) -> torch.Tensor:
    """Return the adapter's whole gradient as one vector, and clear it; what has none has zeros."""
    parts = []
    for parameter in trained_parameters(model).values():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parts.append(gradient.reshape(-1))
        parameter.grad = None
    return torch.cat(parts)
