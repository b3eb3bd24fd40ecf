"""TRL's side: SFTTrainer's own loop, held at each step by a callback, on the rows that our trainer makes of the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from halo_api.run_file import RunFile, volume_path
from halo_trainer.data.load import load_tokenizer
from halo_trainer.data.template import TokenRow
from halo_trainer.model import attach_lora, load_base
from halo_trainer.trl.sft import labelled

from .link import Link
from .rows import balanced_packs
from .steps import counted, talks_of_steps


class Paced(TrainerCallback):
    """Waits for the bench before the first step and after each; a step's loss is logged when the next one begins."""

    def __init__(self, link: Link, counts: list[dict[str, Any]]) -> None:
        self._link, self._counts = link, counts

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._link.ready()

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        self._link.stepped(**self._counts[state.global_step - 1])

    def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
        if "loss" in logs:
            self._link.say(loss=float(logs["loss"]))


def run(settings: dict[str, Any], link: Link) -> None:
    """Train with the settings of the side; the bench ends the process."""
    file = RunFile.model_validate(settings["run"])
    plan, lora, volumes = file.train, file.train.lora, settings["volumes"]
    base = Path(volume_path(file.base.source, volumes))
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    talks = talks_of_steps(file, volumes, settings["rows"])
    # Longest first, so that rows of a pass are of like length.
    steps = [sorted((row for talk in step for row in talk), key=len, reverse=True) for step in talks]
    counts = [counted([[row] for row in step], settings["config"]) for step in steps]
    options = dict(settings["options"])
    attention = options.pop("attention", None)
    model = load_base(file.base, base)
    if attention:
        model.set_attn_implementation(attention)
    packs = options.pop("packs", None)
    if packs:
        examples = [packed([step[place] for place in pack]) for step in steps for pack in packs_of(step, packs)]
        options |= {"padding_free": True, "per_device_train_batch_size": 1, "gradient_accumulation_steps": packs}
    else:
        examples = [labelled(row) for step in steps for row in step]
        size = options["per_device_train_batch_size"]
        options["gradient_accumulation_steps"] = len(steps[0]) // size
    arguments = SFTConfig(
        output_dir=str(Path(volumes) / settings["name"]),
        max_steps=plan.steps,
        learning_rate=lora.learning_rate,
        lr_scheduler_type=lora.schedule,
        logging_steps=1,
        train_sampling_strategy="sequential",
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        use_cpu=not torch.cuda.is_available(),
        bf16=file.base.dtype == "bf16",
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **options,
    )
    trainer = SFTTrainer(
        model=attach_lora(model, lora, plan.seed),
        args=arguments,
        train_dataset=Dataset.from_list(examples),
        processing_class=load_tokenizer(file.base, base),
        callbacks=[Paced(link, counts)],
    )
    if not torch.cuda.is_available():
        # accelerate sets another number, by the cores of the machine.
        torch.set_num_threads(1)
    trainer.train()


def packs_of(step: list[TokenRow], packs: int) -> list[list[int]]:
    return balanced_packs([len(row) for row in step], packs)


def packed(rows: list[TokenRow]) -> dict[str, list[int]]:
    """Return rows as one example, as TRL's own packing makes them."""
    parts = [labelled(row) for row in rows]
    joined = {name: [value for part in parts for value in part[name]] for name in ("input_ids", "labels")}
    return joined | {"seq_lengths": [len(row) for row in rows]}
