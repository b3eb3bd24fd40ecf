"""The adapter as a PEFT folder that PEFT and vLLM load, the same bytes for the same weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from halo_api.adapter import CONFIG, WEIGHTS
from halo_api.digests import bytes_digest
from halo_api.run_file import BaseRef
from halo_trainer.files import write_durably


def adapter_tensors(model: Any) -> dict[str, Tensor]:
    """Return the adapter's weights under PEFT's names."""
    from peft import get_peft_model_state_dict

    # Of an adapted head or embedding PEFT would write the base's own weights too, which no server takes.
    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(state.items())}


def write_adapter(model: Any, base: BaseRef, folder: Path) -> dict[str, str]:
    """Write weights and configuration into an existing folder; return the digests of what was written, by path.

    Not `save_pretrained`: it writes a model card with versions in it, and the folder that the base was loaded from; and a
    set, whose order changes from process to process, as the target modules.
    """
    weights = safetensors.torch.save(adapter_tensors(model), metadata={"format": "pt"})
    config = model.peft_config["default"].to_dict() | {
        "base_model_name_or_path": base.name,
        "revision": base.revision,
        "inference_mode": True,
    }
    text = json.dumps(config, default=sorted, indent=2, sort_keys=True) + "\n"
    written = {WEIGHTS: weights, CONFIG: text.encode()}
    for name, data in written.items():
        write_durably(folder / name, data)
    return {name: bytes_digest(data) for name, data in written.items()}


def put_weights(model: Any, tensors: Mapping[str, Tensor]) -> None:
    """Put weights under PEFT's names into a model that has the same adapter."""
    from peft import set_peft_model_state_dict

    result: Any = set_peft_model_state_dict(model, dict(tensors))
    if result.unexpected_keys:
        raise ValueError(f"these are weights of another adapter: {result.unexpected_keys[:3]}")
