"""The training methods: what each adds to the loop, which is its rows and their share in the loss of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from halo_api.conditions import Reason
from halo_api.run_file import BaseRef, DataRef, TrainPlan
from halo_trainer.attention import Varlen, install, why_padded
from halo_trainer.data.batches import micro_batches, packs
from halo_trainer.data.bundle import Tally, linear_bundles
from halo_trainer.data.collate import collate, collate_flat, trained_tokens
from halo_trainer.data.layout import packed
from halo_trainer.data.load import fitting_rows, load_tokenizer, training_pairs, training_rows
from halo_trainer.data.template import Template, TokenRow
from halo_trainer.failures import RunFailure
from halo_trainer.fast_lora import install_fast_lora
from halo_trainer.flops import Work, rows_work
from halo_trainer.model import answer_features, answer_logits, flat_features, flat_logits, plain_head
from halo_trainer.objectives.frozen_head import frozen_head_nll
from halo_trainer.objectives.sft import sft_loss, trained_share


class Share(NamedTuple):
    """What a few rows add to their step: to the loss, and to the means that are reported."""

    loss: Tensor
    reward_margin: float = 0.0
    reward_accuracy: float = 0.0


class Method(Protocol):
    """Rows of one kind, and the loss of some of them."""

    rewards: bool
    lengths: list[int]
    # Tokens of the steps' own rows for each token of their bundles; None without bundles.
    bundle_ratio: float | None

    def passes(self, share: Sequence[int], size: int) -> list[list[int]]:
        """Cut a process's rows of a step, sorted by length, into forward passes that need no more memory than `size` rows."""

    def share(self, part: Sequence[int], step: Sequence[int]) -> Share:
        """Return what the rows `part` add to a step whose rows, of all processes, are `step`: the parts' shares add up."""

    def tokens(self, step: Sequence[int]) -> int:
        """Count the tokens that go through the model."""

    def work(self, step: Sequence[int]) -> Work:
        """Return what goes through the model, as FLOPs are counted by."""


# What makes the method, once the model is there.
Prepared = Callable[[Any, torch.device], Method]


class ChatRows:
    """What every method on chat rows has, whoever computes its loss."""

    rewards = False

    def __init__(self, rows: list[TokenRow], bundles: Tally | None = None) -> None:
        self._rows = rows
        self.lengths = [len(row) for row in rows]
        self.bundle_ratio = bundles.ratio if bundles else None
        self._trained = [trained_tokens([row]) for row in rows]

    def passes(self, share: Sequence[int], size: int) -> list[list[int]]:
        return micro_batches(share, size)

    def denominator(self, step: Sequence[int]) -> int:
        """Count the trained tokens of a step."""
        return sum(self._trained[index] for index in step)

    def tokens(self, step: Sequence[int]) -> int:
        return sum(self.lengths[index] for index in step)

    def work(self, step: Sequence[int]) -> Work:
        return rows_work([self.lengths[index] for index in step], self.denominator(step))


class Sft(ChatRows):
    """Supervised fine-tuning on chat rows."""

    def __init__(self, rows: list[TokenRow], model: Any, device: torch.device, bundles: Tally | None = None) -> None:
        super().__init__(rows, bundles)
        self._model, self._device = model, device
        install_fast_lora(model)
        self._head = plain_head(model)

    def share(self, part: Sequence[int], step: Sequence[int]) -> Share:
        """Every trained token of the step weighs the same."""
        micro = collate([self._rows[index] for index in part], 0, self._device)
        outputs = answer_logits if self._head is None else answer_features
        return self._share(outputs(self._model, micro), micro.targets_BK, micro.trained_BK, step)

    def _share(self, outputs: Tensor, targets_BK: Tensor, trained_BK: Tensor, step: Sequence[int]) -> Share:
        """`outputs` are what predicts the targets: features where the head is plain, else logits."""
        head, denominator = self._head, self.denominator(step)
        if head is None:
            return Share(sft_loss(outputs, targets_BK, trained_BK, denominator))
        nll_N = frozen_head_nll(outputs.flatten(0, 1), head.weight, head.bias, targets_BK.flatten())
        return Share(trained_share(nll_N, trained_BK.flatten(), denominator))


def bundled(steps: Iterable[TokenRow], most: int, data: str) -> tuple[list[TokenRow], Tally]:
    """Return the steps' bundles, as soon as each is whole, and say what that saves. A fork begins a new row."""
    tally = Tally()
    rows = list(linear_bundles(steps, most, tally))
    if not any(row.run for row in rows):
        raise RunFailure(
            Reason.INVALID_SPEC,
            f"spec.lora.bundle: found {most}, and data set {data} has chats and no steps of agent runs; "
            "leave it out, or name a data set whose lines have run, messages and answer",
        )
    print(f"bundle {most}: {tally}", flush=True)
    return rows, tally


class PackedSft(Sft):
    """The same with rows side by side in one flat sequence, which no row sees beyond, and no padding."""

    def __init__(self, rows: list[TokenRow], model: Any, device: torch.device, bundles: Tally | None = None) -> None:
        super().__init__(rows, model, device, bundles)
        install(model.get_base_model())
        self._longest = max(self.lengths)

    def passes(self, share: Sequence[int], size: int) -> list[list[int]]:
        return packs(share, self.lengths, size * self._longest)

    def share(self, part: Sequence[int], step: Sequence[int]) -> Share:
        layout = packed(self._rows[index] for index in part)
        flat = collate_flat(layout, self._device)
        outputs = flat_logits if self._head is None else flat_features
        found = outputs(self._model, flat, Varlen.of(layout, self._device))
        return self._share(found, flat.targets_BK, torch.ones_like(flat.targets_BK, dtype=torch.bool), step)


def sft_method(
    rows: list[TokenRow], packing: bool, model: Any, device: torch.device, bundles: Tally | None = None
) -> Sft:
    """Pack the rows if that was asked for and is exact on this base; say why where it isn't."""
    if not packing:
        return Sft(rows, model, device, bundles)
    if reason := why_padded(model.get_base_model().config):
        print(f"rows are padded, not packed: {reason}", flush=True)
        return Sft(rows, model, device, bundles)
    return PackedSft(rows, model, device, bundles)


def prepared(plan: TrainPlan, base: BaseRef, data: DataRef, path: Path, folder: Path, template: Template) -> Prepared:
    """Read the run's rows from `path`, which is cheap beside the base in `folder`."""
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
    longest = lora.max_length or base.context_length
    if lora.method == "sft":
        steps = fitting_rows(training_rows(data, path, template), longest, lora.overlength)
        rows, tally = bundled(steps, lora.bundle, data.name) if lora.bundle else (list(steps), None)
        if lora.trainer != "TRL":
            return lambda model, device: sft_method(rows, lora.packing, model, device, tally)

        def sft(model: Any, device: torch.device) -> Method:
            from halo_trainer.trl.sft import TrlSft

            return TrlSft(rows, model, load_tokenizer(base, folder), device)

        return sft
    pairs = list(fitting_rows(training_pairs(data, path, template), longest, lora.overlength))

    def dpo(model: Any, device: torch.device) -> Method:
        from halo_trainer.trl.dpo import Dpo

        return Dpo(pairs, model, load_tokenizer(base, folder), lora, continues=plan.parent is not None, device=device)

    return dpo
