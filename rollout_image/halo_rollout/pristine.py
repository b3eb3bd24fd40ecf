"""The pristine base: its weights as the files have them, which nothing that is served ever changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

from halo_api.adapter import CONFIG, WEIGHTS
from halo_rollout.folding import Update, fold
from halo_rollout.lora import Lora, Unfoldable, lora_of

INDEX = "model.safetensors.index.json"
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Pristine:
    """A base's folder of safetensors; weights are read from the mapped files as they are asked for."""

    def __init__(self, folder: Path, dtype: str) -> None:
        """Open the folder; `dtype` is the catalog's, in which the trainer holds the base too."""
        self._dtype = DTYPES[dtype]
        index = folder / INDEX
        if index.exists():
            files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        else:
            files = sorted(path.name for path in folder.glob("*.safetensors"))
        if not files:
            raise Unfoldable(f"the base at {folder} has no safetensors, which folding reads")
        self._files: dict[str, Any] = {}
        for file in files:
            opened: Any = safe_open(folder / file, framework="pt")
            self._files |= dict.fromkeys(opened.keys(), opened)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all weights, by their names in the files."""
        return {name: tuple(file.get_slice(name).get_shape()) for name, file in self._files.items()}

    def weight(self, name: str) -> Tensor:
        """Return one weight, in the base's dtype, on the CPU."""
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

    def folded(self, change: Update, device: torch.device | str = "cpu") -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of an update under their names, with what is to be added folded in."""
        for name in change.names:
            weight = self.weight(name).to(device)
            delta = change.deltas.get(name)
            yield name, weight if delta is None else fold(weight, delta)


def read_lora(folder: Path) -> Lora:
    """Return the LoRA of a PEFT folder; raises Unfoldable where it can't be folded."""
    config = json.loads((folder / CONFIG).read_text())
    return lora_of(config, safetensors.torch.load_file(folder / WEIGHTS))
