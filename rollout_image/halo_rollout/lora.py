"""A LoRA in PEFT's format, and what it adds to which weight of a base's files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from torch import Tensor

PREFIX = "base_model.model."
# Checkpoints of multimodal bases hold the language model under another name than the trainer, which loads only that.
RENAMES = (("model.", "model.language_model."), ("model.", "language_model.model."))
# What would make a LoRA compute by another formula than W + s*B*A; each must be so, or be left out.
PLAIN: dict[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "use_dora": False,
    "fan_in_fan_out": False,
    "modules_to_save": [],
    "layer_replication": [],
}
# A layer's experts in a base's files: one tensor for all, or for each its own; gate and up are one for the trainer.
FUSED_INPUT, FUSED_OUTPUT = "gate_up_proj", "down_proj"
INPUTS, OUTPUTS = (("gate_proj", "up_proj"), ("w1", "w3")), ("down_proj", "w2")


class Unfoldable(ValueError):
    """The LoRA can't be folded into this base; one sentence says what was found."""


@dataclass(frozen=True)
class Delta:
    """What a LoRA adds to one weight: s*B*A, of A (rank, in) and B (out, rank); before them may stand a dimension of experts."""

    a: Tensor
    b: Tensor
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight that it is for."""
        return (*self.b.shape[:-1], self.a.shape[-1])


@dataclass(frozen=True)
class Lora:
    """A LoRA: A and B by the module that they are on, and what its scales follow from."""

    pairs: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    alpha: float = 1.0
    alphas: Mapping[str, float] = field(default_factory=dict)
    rank_stabilised: bool = False

    def delta(self, key: str, a: Tensor, b: Tensor) -> Delta:
        """Return what A and B add, scaled as PEFT scales what it calls `key`."""
        own = next(
            (alpha for pattern, alpha in self.alphas.items() if re.match(rf"(.*\.)?({pattern})$", key)), self.alpha
        )
        rank = a.shape[-2]
        return Delta(a, b, own / sqrt(rank) if self.rank_stabilised else own / rank)


NOTHING = Lora()


def lora_of(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Lora:
    """Return the LoRA of a PEFT folder; raises Unfoldable for one that computes something else than W + s*B*A."""
    for key, plain in PLAIN.items():
        if (config.get(key) or plain) != plain:
            raise Unfoldable(f"the adapter has {key} {config[key]!r}, and only {plain!r} can be folded into a base")
    alpha = config.get("lora_alpha")
    if not isinstance(alpha, int | float):
        raise Unfoldable(f"the adapter's configuration has lora_alpha {alpha!r}, which is no number")
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        module, _, half = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        if half not in ("lora_A", "lora_B") or tensor.ndim != 2:
            raise Unfoldable(f"the adapter has {name}, and only matrices lora_A and lora_B fold into a base")
        halves.setdefault(module, {})[half] = tensor
    for module, found in halves.items():
        if len(found) != 2:
            raise Unfoldable(f"the adapter has only {', '.join(found)} of {module}; it was not written whole")
    pairs = {module: (found["lora_A"], found["lora_B"]) for module, found in halves.items()}
    return Lora(pairs, alpha, config.get("alpha_pattern") or {}, bool(config.get("use_rslora")))


def experts_of(module: str) -> str | None:
    """Return the experts that a module of a LoRA is on, None for another layer; PEFT wraps one of their weights in the other."""
    outer = module.removesuffix(".base_layer")
    return outer if outer.endswith(".experts") else None


def deltas(lora: Lora, weights: Mapping[str, tuple[int, ...]]) -> dict[str, Delta]:
    """Return what a LoRA adds to each weight of a base's files, by name; raises Unfoldable where they don't fit.

    `weights`: the names in the files, and their shapes.
    """
    found: dict[str, Delta] = {}
    for module, (a, b) in lora.pairs.items():
        experts = experts_of(module)
        parts = dict(_of_experts(lora, experts, a, b, weights) if experts else _of_layer(lora, module, a, b, weights))
        for name, delta in parts.items():
            if weights[name] != delta.shape:
                wanted, there = ("x".join(map(str, shape)) for shape in (delta.shape, weights[name]))
                raise Unfoldable(f"the adapter changes {name} as a weight of {wanted}, and the base's is {there}")
        found |= parts
    return found


def _of_layer(lora: Lora, module: str, a: Tensor, b: Tensor, weights: Collection[str]) -> Iterator[tuple[str, Delta]]:
    name = next((f"{each}.weight" for each in _spellings(module) if f"{each}.weight" in weights), None)
    if name is None:
        raise Unfoldable(f"the adapter is on {module}, and the base's files have no {module}.weight")
    yield name, lora.delta(module, a, b)


def _of_experts(
    lora: Lora, experts: str, a: Tensor, b: Tensor, weights: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, Delta]]:
    """Yield what a LoRA of all experts of a layer adds: A (experts*rank, in), B (out, rank*experts), as PEFT lays them out.

    Which of their two weights it is on its shape says: PEFT names it by the order of wrapping.
    """
    for prefix in _spellings(experts):
        for key in (FUSED_INPUT, FUSED_OUTPUT):
            shape = weights.get(f"{prefix}.{key}")
            if shape is not None and shape[1:] == (b.shape[0], a.shape[1]):
                yield f"{prefix}.{key}", lora.delta(f"{experts}.{key}", *_by_expert(a, b, shape[0]))
                return
        count = len(
            {name.removeprefix(f"{prefix}.").split(".")[0] for name in weights if name.startswith(f"{prefix}.")}
        )
        parts = _parts(prefix, b.shape[0], a.shape[1], weights)
        if parts:
            a, b = _by_expert(a, b, count)
            rows = b.shape[1] // len(parts)
            key = FUSED_INPUT if len(parts) == 2 else FUSED_OUTPUT
            for expert in range(count):
                for number, part in enumerate(parts):
                    own = b[expert, number * rows : (number + 1) * rows]
                    yield f"{prefix}.{expert}.{part}.weight", lora.delta(f"{experts}.{key}", a[expert], own)
            return
    raise Unfoldable(
        f"the adapter is on {experts} with {b.shape[0]}x{a.shape[1]}, and the base's files have no such experts"
    )


def _parts(prefix: str, out: int, width: int, weights: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Return which weights of an expert make up one of that shape; none where the files have each layer's in one."""
    for parts in (*INPUTS, *((part,) for part in OUTPUTS)):
        if all(weights.get(f"{prefix}.0.{part}.weight") == (out // len(parts), width) for part in parts):
            return parts
    return ()


def _by_expert(a: Tensor, b: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return A (experts, rank, in) and B (experts, out, rank) of what PEFT keeps flat."""
    if a.shape[0] % count or b.shape[1] != a.shape[0]:
        raise Unfoldable(f"the adapter has {a.shape[0]} and {b.shape[1]} rows for {count} experts")
    return a.reshape(count, -1, a.shape[1]), b.reshape(b.shape[0], -1, count).permute(2, 0, 1)


def _spellings(module: str) -> Iterator[str]:
    yield module
    yield from (there + module.removeprefix(here) for here, there in RENAMES if module.startswith(here))
