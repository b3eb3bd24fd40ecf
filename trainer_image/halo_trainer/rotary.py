"""Rotary positions that depend on how long a row is: a few bases scale their frequencies beyond the length they were trained at.

transformers takes the length of a whole forward pass for it, and for one of the two kinds the longest of all passes before. Here
a row has the positions that it has alone, in a model that has seen nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# What their frequencies depend on: the very length, and only whether it is above the original one.
BY_LENGTH, BY_SIDE = "dynamic", "longrope"


def by_length(config: Any) -> str | None:
    """Return the kind of a base's rotary positions, if they depend on the length of a row."""
    return next((kind for each in _parameters(config) if (kind := each.get("rope_type")) in (BY_LENGTH, BY_SIDE)), None)


def reach(config: Any) -> int | None:
    """Return up to how many tokens a row has the same positions whatever its length; None where all rows have."""
    config = config.get_text_config()
    found = []
    for each in _parameters(config):
        if each.get("rope_type") == BY_LENGTH:
            found.append(config.max_position_embeddings)
        elif each.get("rope_type") == BY_SIDE:
            found.append(each["original_max_position_embeddings"])
    return min(found, default=None)


def apart(share: Sequence[int], lengths: Sequence[int], config: Any) -> list[list[int]]:
    """Part rows, sorted by length, into those that may share a forward pass, as each has the positions there that it has alone."""
    most = reach(config)
    if most is None:
        return [list(share)]
    beyond = [index for index in share if lengths[index] > most]
    within = [index for index in share if lengths[index] <= most]
    parts = [beyond] if by_length(config) == BY_SIDE else [[index] for index in beyond]
    return [part for part in (*parts, within) if part]


def forget_lengths(model: Any) -> None:
    """Let each forward pass of a model of transformers have the positions of its own length, whatever passes came before.

    Else a run that goes on from a checkpoint has others than the one that it goes on with.
    """
    for module in model.modules():
        if BY_LENGTH in str(getattr(module, "rope_type", "")) and hasattr(module, "original_inv_freq"):
            module.register_forward_pre_hook(_forget)


def _forget(module: Any, _: Any) -> None:
    module.max_seq_len_cached = module.original_max_seq_len
    module.inv_freq = module.original_inv_freq.to(module.inv_freq.device)


def _parameters(config: Any) -> list[dict[str, Any]]:
    """Return the rotary settings of a base, which may be one for each kind of layer."""
    found = getattr(config.get_text_config(), "rope_parameters", None) or {}
    if "rope_type" in found:
        return [found]
    return [each for each in found.values() if isinstance(each, dict)]
