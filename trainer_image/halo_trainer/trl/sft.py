"""Supervised fine-tuning by TRL's SFTTrainer, as an objective of our own loop.

SFTTrainer's own loop could not be stopped, resumed, pruned or cut at a budget to the byte as every run is; its loss, collator
and precision are what its numbers are made of, and give the same curve step by step as its own loop on the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

from halo_api.conditions import Reason
from halo_trainer.data.template import TokenRow
from halo_trainer.failures import RunFailure
from halo_trainer.methods import ChatRows, Share
from halo_trainer.trl.part import loop_arguments, own_precision, settled_threads, stand_alone

# TRL's mark of what does not train.
IGNORED = -100


class TrlSft(ChatRows):
    """The rows of a run, and their loss by TRL."""

    def __init__(self, rows: Sequence[TokenRow], model: Any, tokenizer: Any, device: torch.device) -> None:
        """Take the model as the run starts it; TRL's defaults hold where the run file says nothing."""
        super().__init__(rows, device)
        if hasattr(model.get_output_embeddings(), "base_layer"):
            raise RunFailure(
                Reason.INVALID_SPEC,
                "spec.lora.targetModules: found the output head, and TRL's sft can't train it; leave it out",
            )
        base = model.get_base_model()
        arguments = SFTConfig(
            **loop_arguments(device),
            # TRL's default is mixed precision, whatever the weights are; a base that the catalog says is fp32 stays exact.
            bf16=base.dtype == torch.bfloat16,
            gradient_checkpointing=base.supports_gradient_checkpointing,
            # Each share has the denominator of the whole step, on every process.
            average_tokens_across_devices=False,
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        with settled_threads(), own_precision(model):
            self._trainer = SFTTrainer(
                model=model,
                args=arguments,
                train_dataset=Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]}),
                processing_class=tokenizer,
                data_collator=DataCollatorForLanguageModeling(pad_token_id=0),
            )
        stand_alone(self._trainer)
        # Else the trainer's own loop does this.
        if arguments.gradient_checkpointing:
            model.gradient_checkpointing_enable()

    def share(self, part: Sequence[int], step: Sequence[int]) -> Share:
        """Every trained token of the step weighs the same, as in TRL since the gradient accumulation bug was mended."""
        trainer = self._trainer
        inputs = trainer.data_collator([labelled(self._rows[index]) for index in part])
        inputs = {name: tensor.to(self._device) for name, tensor in inputs.items()}
        # The load-balancing loss of a mixture of experts is a mean over forward passes.
        trainer.current_gradient_accumulation_steps = len(step) / len(part)  # type: ignore[assignment]
        with trainer.accelerator.autocast():
            loss: Tensor = trainer.compute_loss(  # type: ignore[no-untyped-call]
                trainer.model, inputs, num_items_in_batch=torch.tensor(self.denominator(step), device=self._device)
            )
        trainer._metrics["train"].clear()
        return Share(loss)


def labelled(row: TokenRow) -> dict[str, list[int]]:
    """Return a row as TRL's collator takes it."""
    labels = [token if trains else IGNORED for token, trains in zip(row.ids, row.trained, strict=True)]
    return {"input_ids": list(row.ids), "labels": labels}
