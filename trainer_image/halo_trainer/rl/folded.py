"""The policy as a server computes it that folds it: a base whose weights have the LoRA in them, rounded once to its dtype."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ADAPTER = "default"


@contextmanager
def as_folded(model: Any) -> Iterator[bool]:
    """Let a model compute with W + s B A in its base's dtype instead of with W and its LoRA; yield whether all of its layers do.

    A layer's sum is made when it is called and dropped then, so that neither a second base nor a whole one of a sharded base is
    ever held. It is computed in fp32 from the pristine base, as the servers do: folding in place drifts (huggingface/trl#6688).
    """
    from peft.tuners.lora.layer import LoraLayer

    adapted = [layer for layer in model.modules() if isinstance(layer, LoraLayer)]
    fitting = [layer for layer in adapted if type(layer.base_layer) is nn.Linear]
    kept = [vars(layer).get("forward") for layer in fitting]
    for layer in fitting:
        layer.forward = functools.partial(_forward, layer)  # type: ignore[attr-defined]
    try:
        yield len(fitting) == len(adapted)
    finally:
        for layer, forward in zip(fitting, kept, strict=True):
            del layer.forward  # type: ignore[attr-defined]
            if forward:
                layer.forward = forward  # type: ignore[attr-defined]


def _forward(layer: Any, x: Tensor, *_: Any, **__: Any) -> Tensor:
    base = layer.base_layer
    return functional.linear(x, folded_weight(layer), base.bias)


def folded_weight(layer: Any) -> Tensor:
    """Return W + s B A of an adapted layer, in the dtype of W."""
    weight = layer.base_layer.weight
    exact = torch.promote_types(weight.dtype, torch.float32)
    a, b = (part[ADAPTER].weight.to(exact) for part in (layer.lora_A, layer.lora_B))
    folded: Tensor = (weight.to(exact) + layer.scaling[ADAPTER] * (b @ a)).to(weight.dtype)
    return folded
