"""The training methods: what each adds to the loop, which is its rows and their share in the loss of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from halo_api.conditions import Reason
from halo_api.run_file import BaseRef, DataRef, TrainPlan
from halo_trainer.attention import Varlen, install, why_padded
from halo_trainer.data.batches import micro_batches, packs
from halo_trainer.data.collate import collate, collate_flat, trained_tokens
from halo_trainer.data.layout import packed
from halo_trainer.data.load import fitting_rows, load_tokenizer, training_pairs, training_rows
from halo_trainer.data.template import Template, TokenRow
from halo_trainer.failures import RunFailure
from halo_trainer.model import answer_logits, flat_logits
from halo_trainer.objectives.sft import sft_loss


class Share(NamedTuple):
    """What a few rows add to their step: to the loss, and to the means that are reported."""

    loss: Tensor
    reward_margin: float = 0.0
    reward_accuracy: float = 0.0


class Method(Protocol):
    """Rows of one kind, and the loss of some of them."""

    rewards: bool
    lengths: list[int]

    def passes(self, share: Sequence[int], size: int) -> list[list[int]]:
        """Cut a process's rows of a step, sorted by length, into forward passes that need no more memory than `size` rows."""

    def share(self, part: Sequence[int], step: Sequence[int]) -> Share:
        """Return what the rows `part` add to a step whose rows, of all processes, are `step`: the parts' shares add up."""

    def tokens(self, step: Sequence[int]) -> int:
        """Count the tokens that go through the model."""


# What makes the method, once the model is there.
Prepared = Callable[[Any, torch.device], Method]


class Sft:
    """Supervised fine-tuning on chat rows."""

    rewards = False

    def __init__(self, rows: list[TokenRow], model: Any, device: torch.device) -> None:
        self._rows, self._model, self._device = rows, model, device
        self.lengths = [len(row) for row in rows]
        self._trained = [trained_tokens([row]) for row in rows]

    def passes(self, share: Sequence[int], size: int) -> list[list[int]]:
        return micro_batches(share, size)

    def share(self, part: Sequence[int], step: Sequence[int]) -> Share:
        """Every trained token of the step weighs the same."""
        micro = collate([self._rows[index] for index in part], 0, self._device)
        denominator = sum(self._trained[index] for index in step)
        logits = answer_logits(self._model, micro)
        return Share(sft_loss(logits, micro.targets_BK, micro.trained_BK, denominator))

    def tokens(self, step: Sequence[int]) -> int:
        return sum(self.lengths[index] for index in step)


class PackedSft(Sft):
    """The same with rows side by side in one flat sequence, which no row sees beyond, and no padding."""

    def __init__(self, rows: list[TokenRow], model: Any, device: torch.device) -> None:
        super().__init__(rows, model, device)
        install(model.get_base_model())
        self._longest = max(self.lengths)

    def passes(self, share: Sequence[int], size: int) -> list[list[int]]:
        return packs(share, self.lengths, size * self._longest)

    def share(self, part: Sequence[int], step: Sequence[int]) -> Share:
        layout = packed(self._rows[index] for index in part)
        flat = collate_flat(layout, self._device)
        logits_BKV = flat_logits(self._model, flat, Varlen.of(layout, self._device))
        denominator = sum(self._trained[index] for index in step)
        every_BK = torch.ones_like(flat.targets_BK, dtype=torch.bool)
        return Share(sft_loss(logits_BKV, flat.targets_BK, every_BK, denominator))


def sft_method(rows: list[TokenRow], packing: bool, model: Any, device: torch.device) -> Sft:
    """Pack the rows if that was asked for and is exact on this base; say why where it isn't."""
    if not packing:
        return Sft(rows, model, device)
    if reason := why_padded(model.get_base_model().config):
        print(f"rows are padded, not packed: {reason}", flush=True)
        return Sft(rows, model, device)
    return PackedSft(rows, model, device)


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
    longest = lora.max_length or base.context_length
    if lora.method == "sft":
        rows = fitting_rows(training_rows(data, path, template), longest, lora.overlength)
        return lambda model, device: sft_method(rows, lora.packing, model, device)
    pairs = fitting_rows(training_pairs(data, path, template), longest, lora.overlength)

    def dpo(model: Any, device: torch.device) -> Method:
        from halo_trainer.trl.dpo import Dpo

        return Dpo(pairs, model, load_tokenizer(base, folder), lora, continues=plan.parent is not None, device=device)

    return dpo
