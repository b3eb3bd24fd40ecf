"""The gated delta rule over rows side by side, in torch: in chunks, each row from a state of zeros, and without a padded batch."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

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
