"""Gated delta rule layers over rows side by side: each row's convolution and state begin anew, and no padded batch is made.

Hybrids (Qwen3-Next, Qwen3.5, Qwen3.6) have such layers beside those of full attention. A state can go on along one row but can't
be shared by two, so that rows pack and trees don't. Where transformers has found their packages on a GPU, the kernels of
flash-linear-attention and causal-conv1d are told where rows begin; elsewhere the rule is computed here, chunk by chunk.
Of rows that a group of ranks shares, each rank computes some heads.
"""

from __future__ import annotations

import functools
import itertools
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from halo_trainer.parallel.heads import SharedRows

if TYPE_CHECKING:
    from halo_trainer.attention import Varlen


@dataclass(frozen=True)
class SideBySide:
    """The rows of a flat sequence, by their lengths: those that are whole here, behind a rank's slices of those that a group shares."""

    whole: tuple[int, ...]
    shared: SharedRows | None = None


# Tokens of a chunk: within one the rule is a product of matrices, from one to the next it is a scan.
CHUNK = 64


@dataclass(frozen=True)
class Room:
    """A longer sequence of S places, of which T hold the tokens, each at `place_T`, and the others zeros."""

    place_T: Tensor
    size: int

    def filled(self, part_T: Tensor) -> Tensor:
        """Return the longer sequence (S, …)."""
        room = part_T.new_zeros(self.size, *part_T.shape[1:])
        return room.index_copy(0, self.place_T, part_T)

    def taken(self, part_S: Tensor) -> Tensor:
        """Return the tokens' own places (T, …)."""
        return part_S.index_select(0, self.place_T)


@dataclass(frozen=True)
class Rows:
    """N rows of T tokens together, as the layers need them.

    `apart` has zeros behind each row, as many as a convolution looks back. `chunked` has the rows cut into chunks, the last one
    of a row filled up with zeros: first the first chunk of each row, longest row first, then the second of each that has one,
    and so on; `scan` counts the rows that have an i-th. `starts_M` and `row_T` are for the kernels.
    """

    apart: Room
    chunked: Room
    scan: list[int]
    starts_M: Tensor
    row_T: Tensor

    @classmethod
    def of(cls, lengths: tuple[int, ...], back: int, device: torch.device) -> Rows:
        """Return what the layers need of rows of these lengths, whose convolutions look `back` tokens back."""
        chunks_N = [-(-length // CHUNK) for length in lengths]
        longest_first = sorted(range(len(lengths)), key=lambda row: -chunks_N[row])
        scan = [sum(chunks > step for chunks in chunks_N) for step in range(max(chunks_N))]
        first_N = torch.tensor([0, *itertools.accumulate(lengths)])
        rank_N = torch.empty(len(lengths), dtype=torch.long)
        rank_N[torch.tensor(longest_first)] = torch.arange(len(lengths))
        before = torch.tensor([0, *itertools.accumulate(scan)])
        row_T = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        token_T = torch.arange(len(row_T))
        depth_T = token_T - first_N[row_T]
        chunk_T = before[depth_T // CHUNK] + rank_N[row_T]
        return cls(
            Room((token_T + back * row_T).to(device), len(row_T) + back * len(lengths)),
            Room((chunk_T * CHUNK + depth_T % CHUNK).to(device), CHUNK * sum(scan)),
            scan,
            first_N.to(device),
            row_T.to(device, torch.int32).unsqueeze(0),
        )


# Of whole and of shared rows, once for the layers of a pass.
_rows_of = functools.lru_cache(maxsize=2)(Rows.of)


def gated_delta_rule(
    query_THK: Tensor, key_THK: Tensor, value_THV: Tensor, log_decay_TH: Tensor, beta_TH: Tensor, rows: Rows
) -> Tensor:
    """Return what queries read from a state that each row begins at zero, (T, H, V); as fp32 at least.

        S_t = a_t S_(t-1) + b_t k_t (v_t - a_t S_(t-1)^T k_t)^T,    o_t = S_t^T q_t / sqrt(K)

    with queries and keys of unit length, a = exp(log_decay). In chunks by the UT transform (Gated Delta Networks,
    arXiv:2412.06464, section 3.3): in each the values that the keys correct come from one triangular system, over all chunks at
    once; then the states go from chunk to chunk, of all rows at once. Chunks begin where the row begins, as alone.
    """
    dtype = torch.promote_types(query_THK.dtype, torch.float32)
    query_THK, key_THK = (_unit(part.to(dtype)) for part in (query_THK, key_THK))
    # C chunks of L tokens: (C, H, L, …)
    query, key, value, beta, log_decay = (
        rows.chunked.filled(part.to(dtype)).reshape(-1, CHUNK, *part.shape[1:]).transpose(1, 2)
        for part in (
            query_THK * query_THK.shape[2] ** -0.5,
            key_THK,
            value_THV,
            beta_TH.unsqueeze(2),
            log_decay_TH.unsqueeze(2),
        )
    )
    decay = log_decay.cumsum(2)
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=key.device).triu(1)
    between = (decay - decay.transpose(2, 3)).masked_fill(later, float("-inf")).exp()
    system = (key * beta) @ key.transpose(2, 3) * between
    right = torch.cat([value * beta, key * beta * decay.exp()], dim=3)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    last = decay[:, :, -1:]
    parts = (
        *torch.split(solved, [value.shape[3], key.shape[3]], dim=3),
        query * decay.exp(),
        query @ key.transpose(2, 3) * between,
        key * (last - decay).exp(),
        last.exp(),
    )
    state = value.new_zeros(rows.scan[0], key.shape[1], key.shape[3], value.shape[3])
    outputs = []
    # Split and not sliced: the gradient of a slice is as long as the whole.
    for new, corrected, read, within, written, kept in zip(
        *(torch.split(part, rows.scan) for part in parts), strict=True
    ):
        state = state[: len(new)]
        new = new - corrected @ state
        outputs.append(read @ state + within @ new)
        state = state * kept + written.transpose(2, 3) @ new
    return rows.chunked.taken(torch.cat(outputs).transpose(1, 2).flatten(0, 1))


def _unit(part: Tensor) -> Tensor:
    return part * torch.rsqrt((part * part).sum(-1, keepdim=True) + 1e-6)


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
        ranks, widths = shared.group.size, [part.shape[1] // shared.group.size for part in parts_TP]
        sent_TGP = torch.cat([_by_heads(layer, part, ranks) for part in split_TP], dim=2)
        every_SP = torch.split(shared.to_heads(sent_TGP), widths, dim=1)
        share = _read(layer, every_SP, shared.lengths, shared.group.rank, ranks)
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
    filter_KC = _by_heads(layer, layer.conv1d.weight.squeeze(1).T, shares)[:, share]
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


def _by_heads(layer: Any, part: Tensor, shares: int) -> Tensor:
    """From (T, C), or numbers of each value head (T, H), to equal shares of the heads (T, shares, …)."""
    kinds = [layer.key_dim, layer.key_dim, layer.value_dim] if part.shape[1] != layer.num_v_heads else [part.shape[1]]
    return torch.cat([kind.reshape(len(part), shares, -1) for kind in torch.split(part, kinds, dim=1)], dim=2)


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


def why_not_shared(config: Any, ranks: int) -> str | None:
    """Return why a group of so many ranks can't share rows on a base of this configuration, or None where it can."""
    heads = getattr(config.get_text_config(), "linear_num_key_heads", ranks)
    return f"its linear attention has {heads} key heads, no multiple of {ranks}" if heads % ranks else None
