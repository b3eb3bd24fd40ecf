"""The training methods: what each adds to the loop, which is its rows and their share in the loss of a step."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from halo_api.conditions import Reason
from halo_api.run_file import BaseRef, DataRef, TrainPlan
from halo_trainer.answers import Answers
from halo_trainer.attention import Varlen, install, takes_trees, why_padded
from halo_trainer.data.batches import micro_batches, packs
from halo_trainer.data.bundle import Tally, Tree, linear_bundles, tree_bundles
from halo_trainer.data.collate import collate, collate_flat, trained_tokens
from halo_trainer.data.layout import Layout, joined, row_layout, tree_layout
from halo_trainer.data.load import fitting_rows, load_config, load_tokenizer, training_pairs, training_rows
from halo_trainer.data.row_store import RowStore
from halo_trainer.data.split import Shard
from halo_trainer.data.template import Template, TokenRow
from halo_trainer.failures import RunFailure
from halo_trainer.flops import Work, Works, rows_work, summed
from halo_trainer.parallel.context import Context, rows_can_be_split
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.rotary import apart, reach


class Share(NamedTuple):
    """What a few rows add to their step: to the loss, and to the means that are reported."""

    loss: Tensor
    reward_margin: float = 0.0
    reward_accuracy: float = 0.0


class Method(Protocol):
    """Rows of one kind, and the loss of some of them."""

    rewards: bool
    lengths: Sequence[int]
    # Tokens of the steps' own rows for each token of their bundles; None without bundles.
    bundle_ratio: float | None

    def passes(self, share: Sequence[int], size: int) -> list[list[int]]:
        """Cut a process's rows of a step, sorted by length, into forward passes that need no more memory than `size` rows."""

    def share(self, part: Sequence[int], step: Sequence[int]) -> Share:
        """Return what the rows `part` add to a step whose rows, of all processes, are `step`: the parts' shares add up."""

    def work(self, step: Sequence[int]) -> Work:
        """Return what goes through the model, as FLOPs are counted by."""


# A linear bundle, or one that may fork.
Bundle = TypeVar("Bundle", TokenRow, Tree)
# What makes the method, once the model is there.
Prepared = Callable[[Any, torch.device], Method]


class Supervised:
    """What a step of supervised fine-tuning counts, whatever form its rows have: `works` is each row's own."""

    rewards = False

    def __init__(self, works: Iterable[Work], bundles: Tally | None) -> None:
        self._works = Works(works)
        self.lengths: Sequence[int] = self._works.tokens
        self.bundle_ratio = bundles.ratio if bundles else None

    def denominator(self, step: Sequence[int]) -> int:
        """Count the trained tokens of a step."""
        return self.work(step).predicted

    def work(self, step: Sequence[int]) -> Work:
        return summed(self._works[index] for index in step)


class ChatRows(Supervised):
    """Rows that are padded to the longest of a pass, whoever computes their loss."""

    def __init__(self, rows: Sequence[TokenRow], device: torch.device, bundles: Tally | None = None) -> None:
        super().__init__(map(row_work, rows), bundles)
        self._rows, self._device = rows, device

    def passes(self, share: Sequence[int], size: int) -> list[list[int]]:
        return micro_batches(share, size)

    def pass_tokens(self, size: int) -> int:
        """Return the most tokens that a process has in a pass."""
        return size * max(self.lengths)


class Sft(ChatRows):
    """Chat rows, padded to the longest of a pass."""

    def __init__(
        self, rows: Sequence[TokenRow], model: Any, device: torch.device, bundles: Tally | None = None
    ) -> None:
        super().__init__(rows, device, bundles)
        self._answers = Answers(model)
        self._config = model.get_base_model().config

    def passes(self, share: Sequence[int], size: int) -> list[list[int]]:
        parts = apart(share, self.lengths, self._config)
        return [rows for part in parts for rows in micro_batches(part, size)]

    def share(self, part: Sequence[int], step: Sequence[int]) -> Share:
        """Every trained token of the step weighs the same."""
        return Share(self._loss([self._rows[index] for index in part], self.denominator(step)))

    def trial(self, length: int) -> Tensor:
        """Return the loss of a row of a length, all of whose tokens train."""
        return self._loss([trial_row(length)], length)

    def _loss(self, rows: list[TokenRow], denominator: int) -> Tensor:
        return self._answers.padded(collate(rows, 0, self._device), denominator)


def bundled(bundles: Iterable[Bundle], most: int, data: str, tally: Tally) -> Sequence[Bundle]:
    """Return the bundles of at most so many steps, and say what they save."""
    every = iter(bundles)
    first = next(every)
    # A file has steps or chats, not both.
    if not first.run:
        raise RunFailure(
            Reason.INVALID_SPEC,
            f"spec.lora.bundle: found {most}, and data set {data} has chats and no steps of agent runs; "
            "leave it out, or name a data set whose lines have run, messages and answer",
        )
    rows = RowStore(itertools.chain([first], every))
    print(f"bundle {most}: {tally}", flush=True)
    return rows


class PackedSft(Supervised):
    """Rows, or trees of steps, side by side in one flat sequence: none sees beyond itself, and there is no padding.

    With a context, a group of ranks has such a sequence together.
    """

    def __init__(
        self,
        rows: Sequence[TokenRow | Tree],
        model: Any,
        device: torch.device,
        bundles: Tally | None = None,
        context: Context | None = None,
    ) -> None:
        self._copies = 1.0
        super().__init__(map(self._counted, rows), bundles)
        self._rows, self._device, self._context = rows, device, context
        self._answers = Answers(model)
        install(model.get_base_model())
        self._longest = max(self.lengths)
        if context and context.group.rank == 0:
            print(context.told(self.lengths), flush=True)

    def passes(self, share: Sequence[int], size: int) -> list[list[int]]:
        most = self.pass_tokens(size)
        if self._context:
            return self._context.passes(share, self.lengths, most)
        return packs(share, self.lengths, most)

    def pass_tokens(self, size: int) -> int:
        """Return the most tokens that a process has in a pass."""
        return self._context.room(size, self._longest) if self._context else size * self._longest

    def laid_out(self, part: Sequence[int]) -> tuple[Layout | Shard, Varlen]:
        """Return what this process has of a pass, and what it attends to."""
        return side_by_side([own_layout(self._rows[index]) for index in part], self._context, self._device)

    def share(self, part: Sequence[int], step: Sequence[int]) -> Share:
        return Share(self._loss(*self.laid_out(part), self.denominator(step)))

    def trial(self, length: int) -> Tensor:
        """Return the loss of a row of a length, all of whose tokens train; of a rank's part of a longer one, without its group.

        It has as many keys for each token as the tree that has most: they are kept for the backward pass.
        """
        layout = row_layout(trial_row(length))
        copies = math.ceil(self._copies)
        if self._context:
            return self._loss(layout, self._context.trial(layout, copies, self._device), length)
        return self._loss(layout, Varlen.trial(layout, copies, self._device), length)

    def _counted(self, row: TokenRow | Tree) -> Work:
        if isinstance(row, Tree):
            self._copies = max(self._copies, row.copies)
        return row_work(row)

    def _loss(self, layout: Layout | Shard, varlen: Varlen, denominator: int) -> Tensor:
        return self._answers.flat(collate_flat(layout, self._device), varlen, denominator)


def own_layout(row: TokenRow | Tree) -> Layout:
    """Return the layout of a row, or of a tree of steps."""
    return tree_layout(row.segments) if isinstance(row, Tree) else row_layout(row)


def side_by_side(
    layouts: Sequence[Layout], context: Context | None, device: torch.device
) -> tuple[Layout | Shard, Varlen]:
    """Return what this process has of a pass of these layouts, and what it attends to."""
    if context:
        return context.laid_out(layouts, device)
    layout = joined(layouts)
    return layout, Varlen.of(layout, device)


def trial_row(length: int) -> TokenRow:
    """Return a row of a length, all of whose tokens train."""
    return TokenRow(array("i", [0]) * length, bytearray([1]) * length)


def row_work(row: TokenRow | Tree) -> Work:
    """Return what goes through the model with a row, or a tree of steps."""
    if isinstance(row, Tree):
        return Work(len(row), row.pairs, row.predicted)
    return rows_work([len(row)], trained_tokens([row]))


def sft_method(
    rows: Sequence[TokenRow],
    packing: bool,
    model: Any,
    device: torch.device,
    bundles: Tally | None = None,
    context: Context | None = None,
) -> Sft | PackedSft:
    """Pack the rows if that was asked for and is exact on this base; say why where it isn't."""
    if not packing:
        return Sft(rows, model, device, bundles)
    if reason := why_padded(model.get_base_model().config):
        print(f"rows are padded, not packed: {reason}", flush=True)
        return Sft(rows, model, device, bundles)
    return PackedSft(rows, model, device, bundles, context)


def prepared(
    plan: TrainPlan, base: BaseRef, data: DataRef, path: Path, folder: Path, template: Template, ranks: Ranks
) -> Prepared:
    """Read the run's rows from `path`, which is cheap beside the base in `folder`; make the method once ranks are connected."""
    lora = plan.lora
    wanted = "preference" if lora.method == "dpo" else "chat"
    if data.kind != wanted:
        raise RunFailure(
            Reason.INVALID_SPEC,
            f"spec.lora.dataset: found data set {data.name} of kind {data.kind}, method {lora.method} trains on kind {wanted}; "
            "name another Dataset",
        )
    if lora.bundle and (lora.method != "sft" or lora.trainer == "TRL"):
        found = f"method {lora.method}" + (" by TRL" if lora.trainer == "TRL" else "")
        raise RunFailure(Reason.INVALID_SPEC, f"spec.lora.bundle: belongs to sft by Halo, found {found}; remove it")
    if lora.method == "dpo" and lora.trainer == "Halo":
        raise RunFailure(Reason.INVALID_SPEC, "spec.lora.trainer: found Halo, method dpo is trained by TRL; set TRL")
    longest = lora.max_length or base.context_length
    if plan.context_parallel and plan.context_parallel.group > 1:
        rows_can_be_split(plan, base, folder, plan.context_parallel.group)
    if lora.method == "sft":
        steps = fitting_rows(training_rows(data, path, template), longest, lora.overlength)
        if lora.bundle:
            config = load_config(base, folder)
            forks = lora.packing and takes_trees(config)
            return _of_bundles(steps, plan, data.name, longest if forks else None, reach(config), ranks)
        rows = RowStore(steps)
        if lora.trainer != "TRL":
            return lambda model, device: sft_method(
                rows, lora.packing, model, device, context=Context.of(plan.context_parallel, ranks)
            )

        def sft(model: Any, device: torch.device) -> Method:
            from halo_trainer.trl.sft import TrlSft

            return TrlSft(rows, model, load_tokenizer(base, folder), device)

        return sft
    pairs = RowStore(fitting_rows(training_pairs(data, path, template), longest, lora.overlength))

    def dpo(model: Any, device: torch.device) -> Method:
        from halo_trainer.trl.dpo import Dpo

        return Dpo(pairs, model, load_tokenizer(base, folder), lora, continues=plan.parent is not None, device=device)

    return dpo


def _of_bundles(
    steps: Iterable[TokenRow],
    plan: TrainPlan,
    data: str,
    longest_tree: int | None,
    same_positions: int | None,
    ranks: Ranks,
) -> Prepared:
    """Bundle the steps as trees of at most so many tokens, or, on a base that takes none, in rows that end at a fork."""
    lora, split, tally = plan.lora, plan.context_parallel, Tally()
    most = lora.bundle or 1
    if longest_tree is not None:
        if split:
            # A bundle must not take more memory than the longest row that the group was made for.
            longest_tree = min(longest_tree, split.group * split.whole_row)
        trees = bundled(tree_bundles(steps, most, longest_tree, tally), most, data, tally)
        return lambda model, device: PackedSft(trees, model, device, tally, Context.of(split, ranks))
    rows = bundled(linear_bundles(steps, most, tally, same_positions), most, data, tally)
    return lambda model, device: sft_method(rows, lora.packing, model, device, tally, Context.of(split, ranks))
