"""Context parallel: forward passes that a group of ranks does together, each with its part of the rows that are too long for one.

Each layer's keys and values of split rows are gathered over the group, and their gradients are summed back to the ranks that
they came from. All ranks of a group do the same passes in the same order, so that none waits for ever: one with nothing to train
goes through the same layers, with a loss of 0. In a pass without a split row none waits for another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from halo_api.conditions import Reason
from halo_api.run_file import BaseRef, ContextParallel, TrainPlan
from halo_trainer.attention import Varlen, why_whole
from halo_trainer.data.layout import Layout, joined
from halo_trainer.data.load import load_config
from halo_trainer.data.split import Shard, group_packs, is_split, placed, room, shard
from halo_trainer.failures import RunFailure
from halo_trainer.parallel.heads import SharedRows
from halo_trainer.parallel.ranks import Group, Ranks
from halo_trainer.recurrent import SideBySide


def rows_can_be_split(plan: TrainPlan, base: BaseRef, folder: Path, ranks: int) -> None:
    """Raise RunFailure where rows can't be split over so many GPUs: they must lie flat, and each layer must have its part of them."""
    lora, what = plan.lora, "spec.contextParallel: rows that are split over GPUs"
    if lora.method != "sft" or lora.trainer == "TRL":
        found = "trainer TRL" if lora.trainer == "TRL" else f"method {lora.method}"
        raise RunFailure(Reason.INVALID_SPEC, f"{what} belong to sft by Halo, found {found}; remove it")
    if not lora.packing:
        raise RunFailure(
            Reason.INVALID_SPEC, f"{what} are packed, found packing false; set spec.lora.packing: true, or remove one"
        )
    if reason := why_whole(load_config(base, folder), ranks):
        raise RunFailure(Reason.INVALID_SPEC, f"{what}: base {base.name} has none, since {reason}; remove it")


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

    def told(self, lengths: Sequence[int]) -> str:
        """Return the log's line on rows of these lengths."""
        split = sum(is_split(length, self.group.size, self.whole) for length in lengths)
        return (
            f"{self.group.size} ranks share rows of more than {self.whole} tokens: {split} of {len(lengths)}, "
            f"the longest of {max(lengths)}"
        )

    def passes(self, share: Sequence[int], lengths: Sequence[int], most: int) -> list[list[int]]:
        """Cut a group's rows into passes of at most so many tokens on a rank; each rank does them all."""
        return group_packs(share, lengths, self.group.size, self.whole, most)

    def room(self, size: int, longest: int) -> int:
        """Return the tokens of a pass on a rank that take no more memory than `size` rows, the longest of them split."""
        return room(size, longest, self.group.size, self.whole)

    def laid_out(self, rows: Sequence[Layout], device: torch.device) -> tuple[Shard, Varlen]:
        """Return this rank's part of a pass of these rows, and what it attends to."""
        places = placed(map(len, rows), self.group.size, self.whole)
        split = [row for row, place in zip(rows, places, strict=True) if place is None]
        own = [row for row, place in zip(rows, places, strict=True) if place == self.group.rank]
        lengths = [len(row) for row in split]
        part = shard(joined(split), lengths, joined(own), self.group.size, self.group.rank)
        gather = Gathered(self.group, part.shared, part.most) if part.most else None
        forks = any(run.before for row in rows for run in row.runs)
        shared = SharedRows(self.group, tuple(lengths)) if lengths else None
        beside = None if forks else SideBySide(part.whole, shared)
        return part, Varlen.of_shard(part, gather, beside, device)

    def trial(self, layout: Layout, copies: int, device: torch.device) -> Varlen:
        """Return what a rank attends to whose tokens are its part of a split row, with its own keys in the place of the others'.

        It has each of them so often, as where trees fork.
        """
        size = self.group.size
        part = shard(joined([]), [], layout, 1, 0)
        part = dataclasses.replace(part, keys=(((0, size * len(layout)),) * copies,))
        rows = SideBySide(part.whole)
        return Varlen.of_shard(part, lambda *both: tuple(each.repeat(1, 1, size, 1) for each in both), rows, device)


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
        every_BNSD = every_SBND.movedim(0, 2)
        if own_BNTD.shape[2]:
            every_BNSD = torch.cat([every_BNSD, own_BNTD], dim=2)
        key, value = every_BNSD.chunk(2, dim=1)
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
