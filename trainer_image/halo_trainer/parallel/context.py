"""Context parallel: forward passes that a group of ranks does together, each with its part of the rows that are too long for one.

Each layer's keys and values of split rows are gathered over the group, and their gradients are summed back to the ranks that
they came from. All ranks of a group do the same passes with split rows, in the same order, so that none waits for ever: one with
nothing to train goes through the same layers, with a loss of 0. A pass without a split row has no such step in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from halo_api.run_file import ContextParallel
from halo_trainer.attention import Varlen
from halo_trainer.data.layout import Layout, joined
from halo_trainer.data.split import Shard, group_packs, placed, room, shard
from halo_trainer.parallel.heads import SharedRows
from halo_trainer.parallel.ranks import Group, Ranks
from halo_trainer.recurrent import SideBySide


@dataclass(frozen=True)
class Context:
    """A group of ranks that splits rows of more than `whole` tokens."""

    group: Group
    whole: int

    @classmethod
    def of(cls, wanted: ContextParallel | None, ranks: Ranks) -> Context | None:
        """Return this rank's context; None where each rank takes its rows alone. The ranks must be connected."""
        if wanted is None or wanted.group == 1:
            return None
        return cls(ranks.group(wanted.group), wanted.whole_row)

    def passes(self, share: Sequence[int], lengths: Sequence[int], size: int) -> list[list[int]]:
        """Cut a group's rows into passes, and return those in which this rank has tokens."""
        ranks = self.group.size
        budget = room(size, max(lengths), ranks, self.whole)
        found = group_packs(share, lengths, ranks, self.whole, budget)
        return [part for part in found if {None, self.group.rank} & set(self._placed([lengths[at] for at in part]))]

    def laid_out(self, rows: Sequence[Layout], device: torch.device) -> tuple[Shard, Varlen]:
        """Return this rank's part of a pass of these rows, and what it attends to."""
        places = self._placed([len(row) for row in rows])
        split = [row for row, place in zip(rows, places, strict=True) if place is None]
        own = [row for row, place in zip(rows, places, strict=True) if place == self.group.rank]
        lengths = [len(row) for row in split]
        part = shard(joined(split), lengths, joined(own), self.group.size, self.group.rank)
        gather = Gathered(self.group, part.shared, part.most) if part.most else None
        forks = any(run.before for row in rows for run in row.runs)
        shared = SharedRows(self.group, tuple(lengths)) if lengths else None
        beside = None if forks else SideBySide(tuple(len(row) for row in own), shared)
        return part, Varlen.of_shard(part, gather, beside, device)

    def _placed(self, lengths: Sequence[int]) -> list[int | None]:
        return placed(lengths, self.group.size, self.whole)


@dataclass(frozen=True)
class Gathered:
    """Makes, of this rank's keys and values, those of the group's: `most` tokens of each rank, and its own that it does not share."""

    group: Group
    shared: int
    most: int

    def __call__(self, key_BGTD: Tensor, value_BGTD: Tensor) -> tuple[Tensor, Tensor]:
        # Both in one collective.
        both_BNTD = torch.cat([key_BGTD, value_BGTD], dim=1)
        shared_BNSD, own_BNTD = both_BNTD.tensor_split([self.shared], dim=2)
        padded_BNSD = torch.nn.functional.pad(shared_BNSD, (0, 0, 0, self.most - self.shared))
        every_SBND = GatherTokens.apply(padded_BNSD.movedim(2, 0).contiguous(), self.group)  # type: ignore[no-untyped-call]
        key, value = torch.cat([every_SBND.movedim(0, 2), own_BNTD], dim=2).chunk(2, dim=1)
        return key, value


class GatherTokens(torch.autograd.Function):
    """Concatenate the ranks' tensors along their first dimension; backward, add up what each rank has of this one's gradient."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Group) -> Tensor:
        ctx.group = group
        every = part.new_empty(group.size * part.shape[0], *part.shape[1:])
        dist.all_gather_single(every, part, group=group.handle)
        return every

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        group = ctx.group
        part = grad.new_empty(grad.shape[0] // group.size, *grad.shape[1:])
        dist.reduce_scatter_single(part, grad.contiguous(), group=group.handle)
        return part, None
