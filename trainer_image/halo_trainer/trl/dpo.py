"""Direct preference optimisation by TRL's DPOTrainer, as an objective of our own loop.

    L = - 1/N * sum over pairs (x, y+, y-) of  log sigmoid( beta * ( log p(y+|x)/r(y+|x) - log p(y-|x)/r(y-|x) ) )

with p the model that trains, r the reference and N the pairs of the step (arXiv:2305.18290). TRL has the loss, the reference
and the rewards; the order of the pairs, seeds, optimizer, checkpoints and the end of the budget are those of every run, so
that a killed run goes on to the same bytes. The reference is TRL's adapter "ref", a frozen copy of the parent's weights;
without a parent the adapter is turned off for it, which leaves the base.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from halo_api.conditions import Reason
from halo_api.run_status import FrozenLora
from halo_trainer.data.batches import micro_batches
from halo_trainer.data.collate import padded, trained_tokens
from halo_trainer.data.preference import TokenPair
from halo_trainer.failures import RunFailure
from halo_trainer.flops import Work, rows_work
from halo_trainer.methods import Share
from halo_trainer.trl.part import loop_arguments, own_precision, settled_threads, stand_alone

REFERENCE = "ref"


class Pairs(DPOTrainer):
    """TRL's trainer with the rows as we tokenise them: at the prompt's own end, as a server does."""

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset


class Dpo:
    """The pairs of a run, and their loss by TRL."""

    rewards = True
    bundle_ratio: float | None = None

    def __init__(
        self,
        pairs: Sequence[TokenPair],
        model: Any,
        tokenizer: Any,
        lora: FrozenLora,
        continues: bool,
        device: torch.device,
    ) -> None:
        """Take the model as the run starts it: what its adapter is now becomes the reference."""
        self._pairs, self._device = pairs, device
        self.lengths: Sequence[int] = array("q", map(len, pairs))
        if hasattr(model.get_output_embeddings(), "base_layer"):
            raise RunFailure(
                Reason.INVALID_SPEC,
                "spec.lora.targetModules: found the output head, and TRL's dpo can't train it; leave it out",
            )
        arguments = DPOConfig(
            **loop_arguments(device),
            beta=lora.beta or 0.1,
            # Our adapters are fp32 over a base of its own precision.
            bf16=False,
            gradient_checkpointing=False,
        )
        unused = Dataset.from_dict({"prompt_ids": [[0]]})
        with settled_threads(), own_precision(model):
            self._trainer = Pairs(model=model, args=arguments, train_dataset=unused, processing_class=tokenizer)
        stand_alone(self._trainer)
        if not continues:
            model.delete_adapter(REFERENCE)
        # TRL turns dropout off. It stays on where it was asked for; the reference has none.
        for name, module in model.named_modules():
            if name.endswith("lora_dropout.default") and isinstance(module, torch.nn.Dropout):
                module.p = lora.dropout

    def passes(self, share: Sequence[int], size: int) -> list[list[int]]:
        return micro_batches(share, size)

    def share(self, part: Sequence[int], step: Sequence[int]) -> Share:
        """Every pair of the step weighs the same, however long."""
        pairs = [self._pairs[index] for index in part]
        ids, attention, trained = padded([pair.chosen for pair in pairs] + [pair.rejected for pair in pairs], 0)
        inputs = {"input_ids": ids, "attention_mask": attention, "completion_mask": trained.long()}
        inputs = {name: tensor.to(self._device) for name, tensor in inputs.items()}
        loss: Tensor = self._trainer.compute_loss(self._trainer.model, inputs)  # type: ignore[no-untyped-call]
        measured = self._trainer._metrics["train"]
        margin, accuracy = (sum(measured[f"rewards/{name}"]) for name in ("margins", "accuracies"))
        measured.clear()
        weight = len(part) / len(step)
        return Share(loss.double() * weight, margin * weight, accuracy * weight)

    def work(self, step: Sequence[int]) -> Work:
        rows = [row for index in step for row in (self._pairs[index].chosen, self._pairs[index].rejected)]
        return rows_work([len(row) for row in rows], trained_tokens(rows), reference=True)
