"""A LoRA from outside, as PEFT saves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIG = {
    "peft_type": "LORA",
    "base_model_name_or_path": "Qwen/Qwen3-8B",
    "r": 8,
    "lora_alpha": 16,
    "revision": None,
    "target_modules": ["q_proj"],
}


def safetensors(**shapes: list[int]) -> bytes:
    """Weights of zeros in fp32; `__` in a name is a dot."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * shape[1]
        header[name.replace("__", ".")] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end)


def lora(rank: int = 8) -> bytes:
    return safetensors(q_proj__lora_A__weight=[rank, 32], q_proj__lora_B__weight=[32, rank])


def peft_folder(where: Path, weights: bytes | None = None, **config: Any) -> Path:
    """Write a folder that can be imported."""
    where.mkdir(parents=True, exist_ok=True)
    (where / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    (where / "adapter_model.safetensors").write_bytes(lora() if weights is None else weights)
    (where / "README.md").write_text("of somebody else")
    (where / ".gitattributes").write_text("*.safetensors filter=lfs")
    return where
