"""Folding: a policy's LoRA added to the base's weights, always from the pristine base, in fp32, rounded once.

`merge, serve, unmerge` in place would drift: in bf16 each cycle leaves a rounding behind (TRL issue 6688: 6e-3 after 100). Here
what a policy serves depends on the base and on that policy alone, whichever policies were served before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from halo_rollout.lora import Delta, Lora, deltas

EXPERTS = ".experts"


def group_of(name: str, packed: Mapping[str, Sequence[str]]) -> str:
    """Return the engine's module that a weight of the base's files is loaded into.

    An engine fuses projections (`packed`: the fused one and its parts, such as qkv_proj) and all experts of a layer, and loads
    a module whole or not at all.
    """
    module = name.rpartition(".")[0]
    before, experts, _ = module.partition(EXPERTS)
    if experts:
        return before + experts
    parent, _, leaf = module.rpartition(".")
    return f"{parent}.{next((whole for whole, parts in packed.items() if leaf in parts), leaf)}"


@dataclass(frozen=True)
class Update:
    """What is sent to an engine so that it serves a policy: weights, in order, and what is added to which of them."""

    names: tuple[str, ...]
    deltas: Mapping[str, Delta]
    # The groups that differ from the base afterwards.
    changed: frozenset[str]

    @property
    def experts(self) -> bool:
        """Whether experts are sent; then those of every layer are."""
        return any(EXPERTS in name for name in self.names)


def update(
    lora: Lora,
    weights: Mapping[str, tuple[int, ...]],
    packed: Mapping[str, Sequence[str]],
    changed_before: Collection[str],
) -> Update:
    """Return what is to be sent: every group that this policy changes, and those that the one before it had changed.

    `weights`: the base's, with their shapes; raises Unfoldable where the LoRA is not one of this base.
    """
    added = deltas(lora, weights)
    changed = frozenset(group_of(name, packed) for name in added)
    wanted = changed | set(changed_before)
    groups = {name: group_of(name, packed) for name in weights}
    if any(group.endswith(EXPERTS) for group in wanted):
        wanted |= {group for group in groups.values() if group.endswith(EXPERTS)}
    # Group by group: the engine holds back a module's weights until it has them all.
    names = sorted((name for name in weights if groups[name] in wanted), key=lambda name: (groups[name], name))
    return Update(tuple(names), added, changed)


def fold(weight: Tensor, delta: Delta) -> Tensor:
    """Return W + s*B*A (LoRA, arXiv:2106.09685) in the dtype of W, computed in fp32 on its device, rounded once.

    W (out, in), A (rank, in), B (out, rank), or all of them with a first dimension for experts.
    """
    with torch.no_grad(), exact_products():
        a, b = (part.to(weight.device, torch.float32) for part in (delta.a, delta.b))
        return (weight.float() + (b @ a) * delta.scale).to(weight.dtype)


@contextmanager
def exact_products() -> Iterator[None]:
    """Have fp32 matrix products be in fp32, whatever the engine allowed its own: TF32 has hardly more digits than bf16."""
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(allowed)
