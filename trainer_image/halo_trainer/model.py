"""The base and its LoRA."""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from halo_api.conditions import Reason
from halo_api.run_file import BaseRef
from halo_api.run_status import FrozenLora
from halo_api.training_methods import LINEAR_LAYERS
from halo_trainer.attention import Varlen
from halo_trainer.data.collate import FlatBatch, MicroBatch
from halo_trainer.data.load import base_folder
from halo_trainer.failures import RunFailure, first_line
from halo_trainer.quantized import loading
from halo_trainer.rotary import forget_lengths
from halo_trainer.seeds import derived_seed

THREADS_VARIABLE = "OMP_NUM_THREADS"
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def settle_torch() -> torch.device:
    """Choose the device and make the CPU's arithmetic repeatable; return the device.

    On the CPU the number of threads decides how sums are split, hence the last bits. It is taken from OMP_NUM_THREADS, which
    must be the same for every attempt of a run, and is 1 unless set: on shared cores more threads spin against each other.
    """
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.set_num_threads(int(os.environ.get(THREADS_VARIABLE, "1")))
    torch.use_deterministic_algorithms(True)
    # Nothing here reads memory before it is written; to fill it first costs a pass over every new array.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return torch.device("cpu")


def load_base(base: BaseRef, path: Path) -> Any:
    """Load the frozen base on the CPU in its catalog's precision, or in 4 bits."""
    import transformers

    dtype = DTYPES[base.dtype]

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            base_folder(base, path), dtype=dtype, local_files_only=True, **loading(base, dtype)
        )
    except (RunFailure, MemoryError):
        raise
    except Exception as error:
        # Whatever is wrong in the folder, the cure is the same.
        found = f"its weights can't be loaded ({first_line(error)[:300]})"
        raise RunFailure(
            Reason.BASE_MISSING, f"base {base.name}: {found}; put the model's own files into {path}"
        ) from error
    forget_lengths(model)
    return model


def attach_lora(model: Any, lora: FrozenLora, seed: int) -> Any:
    """Add a LoRA of fp32 weights, initialised from the seed; on the CPU, so that every device starts from the same bytes."""
    from peft import LoraConfig, get_peft_model

    alpha = lora.alpha or 32
    modules = list(lora.target_modules or [LINEAR_LAYERS])
    layers = dict(model.named_modules())
    known = sorted({name.rpartition(".")[2] for name, part in layers.items() if isinstance(part, nn.Linear)})
    config = LoraConfig(
        r=lora.rank or 16,
        # PEFT and vLLM declare an integer; a fraction works in both all the same.
        lora_alpha=int(alpha) if alpha == int(alpha) else alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        target_modules=LINEAR_LAYERS if modules == [LINEAR_LAYERS] else modules,
        bias="none",
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(derived_seed(seed, "adapter"))
    try:
        adapted = get_peft_model(model, config)
    except ValueError as error:
        if lora.dropout and "lora_dropout" in str(error):
            found = f"found {lora.dropout}, and an adapter of fused experts or their router takes none"
            cure = "leave it out, or name in targetModules no layers of experts"
            raise RunFailure(Reason.INVALID_SPEC, f"spec.lora.dropout: {found}; {cure}") from error
        if "without also targeting" in str(error):
            found = f"{', '.join(modules)} are not all that the base has fused ({first_line(error)})"
            raise RunFailure(
                Reason.INVALID_SPEC, f"spec.lora.targetModules: {found}; name those too, or none"
            ) from error
        raise _without_adapter(modules, known) from error
    if modules != [LINEAR_LAYERS] and (unfit := _without(modules, config.target_modules or (), layers)):
        raise _without_adapter(unfit, known)
    return adapted


def _without(modules: Sequence[str], targets: Collection[str], layers: Iterable[str]) -> list[str]:
    """Return the names that no layer has: PEFT passes over them, if another name has some.

    Those that it has made targets inside of fused experts are no `targets` any more.
    """
    return [name for name in modules if name in targets and not any(f".{path}".endswith(f".{name}") for path in layers)]


def _without_adapter(modules: Sequence[str], known: Sequence[str]) -> RunFailure:
    return RunFailure(
        Reason.INVALID_SPEC,
        f"spec.lora.targetModules {', '.join(modules)} can't get an adapter; use some of {', '.join(known)}",
    )


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the adapter's parameters by name, in the model's own order."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def answer_logits(model: Any, batch: MicroBatch) -> Tensor:
    """Return the logits at the positions that predict a trained token.

    The output head is a large part of a small base, so it is applied to no other position where the architecture lets one
    choose (`logits_to_keep`).
    """
    forward = inspect.signature(model.get_base_model().forward).parameters
    inputs = {"input_ids": batch.ids_BT, "attention_mask": batch.attention_BT, "use_cache": False}
    if "logits_to_keep" in forward:
        kept: Tensor = model(**inputs, logits_to_keep=batch.positions_K).logits
        return kept
    every: Tensor = model(**inputs).logits
    return every[:, batch.positions_K]


def flat_logits(model: Any, batch: FlatBatch, varlen: Varlen) -> Tensor:
    """Return the logits (1, K, V) that predict each target of a layout, by a model that attends by layouts."""
    inputs = {"input_ids": batch.ids_BT, "position_ids": batch.depths_BT, "use_cache": False, "varlen": varlen}
    logits_BUV: Tensor = model(**inputs, logits_to_keep=batch.positions_U).logits
    return logits_BUV if batch.place_K is None else logits_BUV[:, batch.place_K]
