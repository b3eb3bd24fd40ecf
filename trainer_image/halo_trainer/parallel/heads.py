"""Context parallel of layers with a state: from a rank's tokens of split rows to all their tokens, of some heads, and back.

A state goes from token to token, but heads know nothing of each other. So each rank of a group gives every other one that one's
heads of its own tokens, computes whole rows for its heads, and gets its tokens' other heads back (DeepSpeed Ulysses,
arXiv:2309.14509). Rows of any length and number take two collectives a layer.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from halo_trainer.data.split import slices
from halo_trainer.parallel.ranks import Group


@dataclass(frozen=True)
class SharedRows:
    """Rows of these lengths that a group has together, each rank its slices of them."""

    group: Group
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """How many tokens of them this rank has."""
        return _counts(self.lengths, self.group.size)[self.group.rank]

    def to_heads(self, part_TGP: Tensor) -> Tensor:
        """From the shares of every rank in this one's tokens, to this rank's share of all tokens (S, P), row by row."""
        counts = list(_counts(self.lengths, self.group.size))
        sent = part_TGP.transpose(0, 1).flatten(0, 1)
        every = AllToAll.apply(sent, [self.tokens] * len(counts), counts, self.group)  # type: ignore[no-untyped-call]
        return every.index_select(0, _order(self.lengths, self.group.size).argsort().to(every.device))  # type: ignore[no-any-return]

    def to_tokens(self, part_SP: Tensor) -> Tensor:
        """The way back: from this rank's share of all tokens, to all shares of this rank's tokens (T, G, P)."""
        counts = list(_counts(self.lengths, self.group.size))
        sent = part_SP.index_select(0, _order(self.lengths, self.group.size).to(part_SP.device))
        mine = AllToAll.apply(sent, counts, [self.tokens] * len(counts), self.group)  # type: ignore[no-untyped-call]
        return mine.reshape(len(counts), -1, part_SP.shape[1]).transpose(0, 1)  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=2)
def _counts(lengths: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """The tokens that each rank has."""
    return tuple(sum(end - start for start, end in each) for each in slices(lengths, ranks))


@functools.lru_cache(maxsize=2)
def _order(lengths: tuple[int, ...], ranks: int) -> Tensor:
    """The places in the rows of all ranks' tokens, rank by rank."""
    return torch.cat([torch.arange(start, end) for each in slices(lengths, ranks) for start, end in each])


class AllToAll(torch.autograd.Function):
    """Send each rank its `sent` next tokens (along the first dimension), and return `got` tokens of each; backward, the reverse."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, sent: list[int], got: list[int], group: Group) -> Tensor:
        ctx.sent, ctx.got, ctx.group = sent, got, group
        return _exchanged(part, sent, got, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(grad, ctx.got, ctx.sent, ctx.group), None, None, None


def _exchanged(part: Tensor, sent: list[int], got: list[int], group: Group) -> Tensor:
    every = part.new_empty(sum(got), *part.shape[1:])
    dist.all_to_all_single(every, part.contiguous(), got, sent, group=group.handle)
    return every
