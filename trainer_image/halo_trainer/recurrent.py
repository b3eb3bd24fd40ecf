"""Gated delta rule layers over rows side by side: each row's convolution and state begin anew, and no padded batch is made.

Hybrids (Qwen3-Next, Qwen3.5, Qwen3.6) have such layers beside those of full attention. A state can go on along one row but can't
be shared by two, so that rows pack and trees don't. Where transformers has found their packages on a GPU, the kernels of
flash-linear-attention and causal-conv1d are told where rows begin; elsewhere torch computes the rule. Of rows that a group of ranks shares, each rank computes some heads.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from halo_trainer.delta_rule import Rows, gated_delta_rule
from halo_trainer.parallel.heads import SharedRows

if TYPE_CHECKING:
    from halo_trainer.attention import Varlen


@dataclass(frozen=True)
class SideBySide:
    """The rows of a flat sequence, by their lengths: those that are whole here, behind a rank's slices of those that a group shares."""

    whole: tuple[int, ...]
    shared: SharedRows | None = None


# Of whole and of shared rows, once for the layers of a pass.
_rows_of = functools.lru_cache(maxsize=2)(Rows.of)


def halo_delta_net(
    layer: Any,
    hidden_states: Tensor,
    cache_params: Any = None,
    attention_mask: Tensor | None = None,
    *,
    varlen: Varlen | None = None,
    **_: Any,
) -> Tensor:
    """The forward pass of a layer of transformers for rows side by side: hidden states (1, T, D) to (1, T, D)."""
    rows = varlen.rows if varlen else None
    if rows is None or cache_params is not None or attention_mask is not None:
        raise ValueError(
            "a layer with a state takes rows side by side, no tree, cache or mask: varlen=Varlen.of(layout, device)"
        )
    *parts_TP, gate = _projected(layer, hidden_states)
    shared, own = rows.shared, sum(rows.whole)
    split_TP, whole_TP = zip(*(torch.split(part, [len(part) - own, own]) for part in parts_TP), strict=True)
    out = []
    if shared is not None:
        sent = [_by_heads(part, kinds, shared.group.size) for part, kinds in zip(split_TP, _kinds(layer), strict=True)]
        every_SP = shared.to_heads(torch.cat(sent, dim=2))
        every = torch.split(every_SP, [part.shape[2] for part in sent], dim=1)
        share = _read(layer, every, shared.lengths, shared.group.rank, shared.group.size)
        out.append(shared.to_tokens(share.flatten(1)).flatten(1))
    if own:
        out.append(_read(layer, whole_TP, rows.whole).flatten(1))
    normed = layer.norm(torch.cat(out).reshape(-1, layer.head_v_dim), gate.reshape(-1, layer.head_v_dim))
    output: Tensor = layer.out_proj(normed.reshape(1, -1, layer.value_dim))
    return output


def _read(layer: Any, parts: Sequence[Tensor], lengths: tuple[int, ...], share: int = 0, shares: int = 1) -> Tensor:
    """What one of so many equal shares of the heads reads from the states of whole rows of these lengths: (T, heads, width)."""
    mixed_TC, beta_TH, step_TH = parts
    rows = _rows_of(lengths, layer.conv_kernel_size - 1, mixed_TC.device)
    filter_KC = _by_heads(layer.conv1d.weight.squeeze(1).T, _kinds(layer)[0], shares)[:, share]
    mixed_TC = _convolved(layer, mixed_TC, filter_KC, rows)
    keys = layer.key_dim // shares
    query, key, value = torch.split(mixed_TC, [keys, keys, layer.value_dim // shares], dim=1)
    # Some value heads share a key head.
    sharing = layer.num_v_heads // layer.num_k_heads
    query, key = (
        part.reshape(len(part), -1, layer.head_k_dim).repeat_interleave(sharing, dim=1) for part in (query, key)
    )
    value = value.reshape(len(value), -1, layer.head_v_dim)
    exact = torch.promote_types(step_TH.dtype, torch.float32)
    rate_H, bias_H = (part.chunk(shares)[share] for part in (layer.A_log.to(exact).exp(), layer.dt_bias))
    log_decay_TH = -rate_H * F.softplus(step_TH.to(exact) + bias_H)
    return _ruled(layer, query, key, value, log_decay_TH, beta_TH.sigmoid(), rows)


def _kinds(layer: Any) -> tuple[list[int], list[int], list[int]]:
    """Where queries, keys and values begin anew among the channels, and that two numbers are each value head's own."""
    return [layer.key_dim, layer.key_dim, layer.value_dim], [layer.num_v_heads], [layer.num_v_heads]


def _by_heads(part_TP: Tensor, kinds: list[int], shares: int) -> Tensor:
    """Return equal shares of the heads (T, shares, …), each with its heads of every kind."""
    return torch.cat([kind.reshape(len(part_TP), shares, -1) for kind in torch.split(part_TP, kinds, dim=1)], dim=2)


def _projected(layer: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values before the convolution (T, C), two numbers for each value head (T, H), and the output's gate."""
    if hasattr(layer, "in_proj_qkvz"):
        parts = layer.fix_query_key_value_ordering(layer.in_proj_qkvz(hidden), layer.in_proj_ba(hidden))
        query, key, value, gate, beta, step = (part.squeeze(0) for part in parts)
        return torch.cat([part.flatten(1) for part in (query, key, value)], dim=1), beta, step, gate
    mixed, beta, step, gate = (getattr(layer, f"in_proj_{name}")(hidden).squeeze(0) for name in ("qkv", "b", "a", "z"))
    return mixed, beta, step, gate


def _convolved(layer: Any, mixed_TC: Tensor, filter_KC: Tensor, rows: Rows) -> Tensor:
    """Let each channel see its own last few tokens of the row."""
    kernel = _kernel("causal_conv1d", mixed_TC)
    part_TC = mixed_TC if kernel else rows.apart.filled(mixed_TC)
    out_1CT: Tensor = _modeling(layer).causal_conv1d_fn(
        part_TC.T.unsqueeze(0),
        filter_KC.T.contiguous(),
        activation=layer.activation,
        seq_idx=rows.row_T if kernel else None,
    )
    out_TC = out_1CT.squeeze(0).T
    return out_TC if kernel else rows.apart.taken(out_TC)


def _ruled(
    layer: Any, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, rows: Rows
) -> Tensor:
    if not _kernel("flash_linear_attention", query):
        return gated_delta_rule(query, key, value, log_decay, beta, rows).to(query.dtype)
    query, key, value, log_decay, beta = (part.unsqueeze(0) for part in (query, key, value, log_decay, beta))
    out: Tensor = _modeling(layer).torch_chunk_gated_delta_rule(
        query, key, value, g=log_decay, beta=beta, use_qk_l2norm_in_kernel=True, cu_seqlens=rows.starts_M
    )[0]
    return out.squeeze(0)


def _modeling(layer: Any) -> Any:
    """The module of transformers whose functions are a package's kernels where it has found the package."""
    return sys.modules[type(layer).__module__]


def _kernel(package: str, tensor: Tensor) -> bool:
    """Whether transformers has taken this package's kernel for what lies on this tensor's device."""
    from transformers.utils import import_utils

    return tensor.is_cuda and bool(getattr(import_utils, f"is_{package}_available")())


def install_recurrent(model: Any) -> None:
    """Let the gated delta rule layers of a model of transformers take rows side by side, and nothing else, from now on."""
    for layer in model.modules():
        if type(layer).__name__.endswith("GatedDeltaNet"):
            layer.forward = types.MethodType(halo_delta_net, layer)
