"""Attention over a layout: each run of the flat sequence attends to its own path and to nothing else, with no T x T mask.

Registered with transformers under the name `halo`, for which it makes no mask. What a forward pass attends to is handed to it
as `varlen=...`, which transformers passes on to every layer. The form is FlashAttention's: queries of N runs one behind the
other, their keys likewise, and where each begins; a run's queries are the last of its keys (causal, aligned
bottom-right). On a GPU one kernel computes all runs; elsewhere scaled_dot_product_attention computes one after the other.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from halo_trainer.data.layout import Layout
from halo_trainer.data.split import Shard
from halo_trainer.recurrent import SideBySide, install_recurrent
from halo_trainer.rotary import by_length

NAME = "halo"
# Causal decoders for which the tests prove packed rows equal to lone ones: those whose every layer attends to all that came
# before, and those that have gated delta rule layers too.
ATTENDING = ("llama", "qwen2", "qwen3", "qwen3_moe")
HYBRID = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
PROVEN = (*ATTENDING, *HYBRID)
# Queries behind the keys of an ancestor are masked in blocks, so that no mask has more than this many rows.
BLOCK = 256
# From a rank's keys and values (B, G, T, D), along T, to those that its queries may see.
Gather = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Varlen:
    """What each of N runs attends to.

    `queries` and `keys` are their numbers in each run; `index_S` says where in the flat sequence each key is taken from, None
    where the keys lie as the queries do. The next two, for the GPU's kernel, are where each run begins, and the end. `gather`
    turns this rank's keys and values into those of its whole group, which `index_S` then speaks of; None where it sees its own.
    `rows` is for layers with a state; None where runs fork.
    """

    queries: list[int]
    keys: list[int]
    index_S: Tensor | None
    queries_M: Tensor
    keys_M: Tensor
    gather: Gather | None = None
    rows: SideBySide | None = None

    @classmethod
    def of(cls, layout: Layout, device: torch.device) -> Varlen:
        """Return what the runs of a layout attend to."""
        runs = layout.runs
        moved = any(run.before for run in runs)
        queries = [run.end - run.start for run in runs]
        rows = None if moved else SideBySide(tuple(queries))
        return cls._made(queries, [run.keys for run in runs], moved, rows, device)

    @classmethod
    def trial(cls, layout: Layout, copies: int, device: torch.device) -> Varlen:
        """Return what a row attends to that has each of its keys so often: what a tree that forks takes, and no tree."""
        if copies == 1:
            return cls.of(layout, device)
        return cls._made([len(layout)], [((0, len(layout)),) * copies], True, None, device)

    @classmethod
    def of_shard(cls, shard: Shard, gather: Gather | None, rows: SideBySide | None, device: torch.device) -> Varlen:
        """Return what one rank's runs attend to, among what `gather` returns."""
        moved = gather is not None or any(len(keys) > 1 for keys in shard.keys)
        return cls._made(list(shard.queries), shard.keys, moved, rows, device, gather)

    @classmethod
    def _made(
        cls,
        queries: list[int],
        slices: Sequence[tuple[tuple[int, int], ...]],
        moved: bool,
        rows: SideBySide | None,
        device: torch.device,
        gather: Gather | None = None,
    ) -> Varlen:
        keys = [sum(end - start for start, end in each) for each in slices]
        index = None
        if moved:
            index = torch.cat([torch.arange(start, end) for each in slices for start, end in each]).to(device)
        queries_M, keys_M = (
            torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
            for lengths in (queries, keys)
        )
        return cls(queries, keys, index, queries_M, keys_M, gather, rows)


def halo_attention(
    module: torch.nn.Module,
    query_BHTD: Tensor,
    key_BGTD: Tensor,
    value_BGTD: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    varlen: Varlen | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend run by run, H query heads over G groups of keys and values; return the outputs as (B, T, H, D) and no weights."""
    if varlen is None or attention_mask is not None or query_BHTD.shape[0] != 1:
        raise ValueError("the attention `halo` takes one flat sequence, no mask, and varlen=Varlen.of(layout, device)")
    if varlen.gather is not None:
        key_BGTD, value_BGTD = varlen.gather(key_BGTD, value_BGTD)
    if varlen.index_S is not None:
        key_BGTD, value_BGTD = (part.index_select(2, varlen.index_S) for part in (key_BGTD, value_BGTD))
    if _flash_fits(query_BHTD, dropout):
        return _flash(query_BHTD, key_BGTD, value_BGTD, varlen, scaling), None
    if len(varlen.queries) == 1:
        return _run(query_BHTD, key_BGTD, value_BGTD, dropout, scaling).transpose(1, 2).contiguous(), None
    # Split and not sliced: the gradient of a slice is as long as the whole, so it would cost T for every run.
    queries = torch.split_with_sizes(query_BHTD, varlen.queries, 2)
    keys, values = (torch.split_with_sizes(part, varlen.keys, 2) for part in (key_BGTD, value_BGTD))
    parts = [_run(*run, dropout, scaling).transpose(1, 2) for run in zip(queries, keys, values, strict=True)]
    return torch.cat(parts, dim=1), None


def _run(query: Tensor, key: Tensor, value: Tensor, dropout: float, scaling: float | None) -> Tensor:
    """One run's outputs (B, H, T, D): its queries are the last of its keys."""
    attend = functools.partial(
        scaled_dot_product_attention, dropout_p=dropout, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    queries, keys = query.shape[2], key.shape[2]
    if queries == keys:
        return attend(query, key, value, is_causal=True)
    parts, seen = [], keys - queries
    for block in torch.split(query, BLOCK, 2):
        rows = block.shape[2]
        seen += rows
        mask = torch.ones(rows, seen, dtype=torch.bool, device=query.device).tril(seen - rows)
        parts.append(attend(block, key[:, :, :seen], value[:, :, :seen], attn_mask=mask))
    return torch.cat(parts, dim=2)


def _flash_fits(query: Tensor, dropout: float) -> bool:
    """Whether FlashAttention's kernel takes this; it has no fp32 and, as torch offers it, no dropout."""
    return query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and query.shape[3] <= 256 and dropout == 0


def _flash(query: Tensor, key: Tensor, value: Tensor, varlen: Varlen, scaling: float | None) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    query_THD, key_SGD, value_SGD = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))
    out_THD = varlen_attn(
        query_THD,
        key_SGD,
        value_SGD,
        varlen.queries_M,
        varlen.keys_M,
        max(varlen.queries),
        max(varlen.keys),
        scale=scaling,
        window_size=(-1, 0),
        enable_gqa=True,
    )
    assert isinstance(out_THD, Tensor)
    return out_THD.unsqueeze(0)


def install(model: Any) -> None:
    """Let a model of transformers attend by layouts, and by nothing else, from now on."""
    from transformers import AttentionInterface

    # No mask function goes with it: transformers makes no mask then, nor looks at the positions for one, which would make the
    # host wait for the GPU in every pass.
    AttentionInterface.register(NAME, halo_attention)
    model.set_attn_implementation(NAME)
    install_recurrent(model)


def why_padded(config: Any) -> str | None:
    """Return why rows of a base of this configuration are padded and not packed, or None where they can be packed."""
    config = config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if config.model_type in HYBRID:
        kinds.discard("linear_attention")
    if carrying := sorted(kinds - {"full_attention", "sliding_attention", "chunked_attention"}):
        return f"its layers of kind {', '.join(carrying)} carry a state from one row to the next"
    window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if window or kinds - {"full_attention"}:
        return "some of its layers attend to a window of the row"
    if kind := by_length(config):
        return f"its {kind} rotary positions depend on the longest row of a forward pass"
    if config.model_type not in PROVEN:
        return f"its architecture {config.model_type} is none of {', '.join(PROVEN)}, for which packing is proven"
    return None


def why_whole(config: Any, ranks: int) -> str | None:
    """Return why rows of a base of this configuration can't be split over so many ranks, or None where they can be."""
    heads = getattr(config.get_text_config(), "linear_num_key_heads", ranks)
    uneven = f"its linear attention has {heads} key heads, no multiple of {ranks}" if heads % ranks else None
    return why_padded(config) or uneven


def takes_trees(config: Any) -> bool:
    """Return whether steps that fork can share their beginning: a state goes on along one row and can't be shared by two."""
    return why_padded(config) is None and config.get_text_config().model_type not in HYBRID
