"""What a base's own config.json says that decides how vLLM must be started."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The head sizes that vLLM's attention on CPUs has: with another one it starts, and dies at the first request.
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
# Of linear attention; it dies at the first prompt of some length.
CPU_STATE_MULTIPLE = 32
STATE_KEYS = ("linear_key_head_dim", "linear_value_head_dim")
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")


class Unservable(Exception):
    """vLLM can't serve this base here; one sentence says why."""


@dataclass(frozen=True)
class Traits:
    """What matters of a base's architecture."""

    # It routes tokens to experts.
    experts: bool = False
    # Some layers keep a state in place of keys and values.
    hybrid: bool = False
    head_size: int | None = None
    # The head sizes of its linear attention.
    state_sizes: tuple[int, ...] = ()


def traits_of(config: dict[str, Any]) -> Traits:
    """Return the traits of a base from its config.json; a multimodal base's text part counts."""
    text = {**config, **(config.get("text_config") or {})}
    heads, hidden = text.get("num_attention_heads"), text.get("hidden_size")
    size = text.get("head_dim") or (hidden // heads if heads and hidden else None)
    return Traits(
        experts=any((text.get(key) or 0) > 1 for key in EXPERT_KEYS),
        hybrid="linear_attention" in (text.get("layer_types") or ()) or bool(text.get("linear_num_value_heads")),
        head_size=size,
        state_sizes=tuple(text[key] for key in STATE_KEYS if text.get(key)),
    )


def read_traits(base: Path) -> Traits:
    """Return the traits of the base in a folder; raises Unservable where there is none."""
    try:
        return traits_of(json.loads((base / "config.json").read_text()))
    except (OSError, ValueError) as error:
        raise Unservable(f"{base} holds no base model ({type(error).__name__}: {error})") from error


def check_servable(traits: Traits, on_gpu: bool, dtype: str = "bfloat16") -> None:
    """Raise Unservable for a base that vLLM would accept in this precision and then die of."""
    if not on_gpu and traits.hybrid and dtype != "bfloat16":
        raise Unservable(
            f"the base has linear attention, which vLLM on CPUs has in bfloat16 only, and is to be in {dtype}"
        )
    if not on_gpu and (odd := [size for size in traits.state_sizes if size % CPU_STATE_MULTIPLE]):
        found = f"the base has linear attention with heads of {odd[0]}"
        raise Unservable(f"{found}, and vLLM on CPUs takes only multiples of {CPU_STATE_MULTIPLE}")
    if not on_gpu and traits.head_size is not None and traits.head_size not in CPU_HEAD_SIZES:
        sizes = ", ".join(map(str, CPU_HEAD_SIZES))
        raise Unservable(f"the base has attention heads of {traits.head_size}, and vLLM on CPUs has only {sizes}")
