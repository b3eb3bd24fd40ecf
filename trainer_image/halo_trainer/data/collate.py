"""Rows as tensors: padded on the right, targets shifted, and only the positions whose logits are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from halo_trainer.data.template import TokenRow


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one forward pass. K positions predict a trained token in some row; only they need logits."""

    ids_BT: Tensor
    attention_BT: Tensor
    positions_K: Tensor
    targets_BK: Tensor
    trained_BK: Tensor


def collate(rows: Sequence[TokenRow], padding: int, device: torch.device) -> MicroBatch:
    """Return the rows with the positions that predict a trained token in any of them."""
    ids, attention, trained = padded(rows, padding)
    predicts = trained[:, 1:]
    positions = predicts.any(dim=0).nonzero().squeeze(-1)
    return MicroBatch(
        ids.to(device),
        attention.to(device),
        positions.to(device),
        ids[:, 1:][:, positions].to(device),
        predicts[:, positions].to(device),
    )


def padded(rows: Sequence[TokenRow], padding: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pad on the right: causal rows never see the padding, and left padding would corrupt recurrent states.

    Return ids, attention, and where a token trains.
    """
    length = max(len(row) for row in rows)
    ids = torch.full((len(rows), length), padding, dtype=torch.long)
    attention = torch.zeros((len(rows), length), dtype=torch.long)
    trained = torch.zeros((len(rows), length), dtype=torch.bool)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.tensor(row.ids, dtype=torch.long)
        attention[place, : len(row)] = 1
        trained[place, : len(row)] = torch.tensor(list(row.trained), dtype=torch.bool)
    return ids, attention, trained


def trained_tokens(rows: Sequence[TokenRow]) -> int:
    """Count the tokens that train; the first token of a row has nothing that predicts it."""
    return sum(sum(row.trained[1:]) for row in rows)
