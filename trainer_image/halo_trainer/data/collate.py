"""Rows as tensors: padded on the right or laid out flat, targets shifted, and only the positions whose logits are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from halo_trainer.data.layout import Layout
from halo_trainer.data.split import Shard
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
        sent(ids, device),
        sent(attention, device),
        sent(positions, device),
        sent(ids[:, 1:][:, positions], device),
        sent(predicts[:, positions], device),
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


@dataclass(frozen=True)
class FlatBatch:
    """A layout as one row of T tokens. U positions predict; of those, `place_K` is the one that predicts each of K targets.

    K is above U where the layout forks; `place_K` is None where they are the same.
    """

    ids_BT: Tensor
    depths_BT: Tensor
    positions_U: Tensor
    place_K: Tensor | None
    targets_BK: Tensor


def collate_flat(layout: Layout | Shard, device: torch.device) -> FlatBatch:
    """Return a layout, or a rank's part of one, with the positions that predict a trained token."""
    ids, depths, predicts, targets = (
        torch.tensor(part, dtype=torch.long).unsqueeze(0)
        for part in (layout.ids, layout.positions, layout.predicts, layout.targets)
    )
    positions, place = torch.unique(predicts, return_inverse=True)
    # Without a fork each token is predicted by the one before it, so the positions are sorted already.
    forks = not torch.equal(positions, predicts.squeeze(0))
    return FlatBatch(
        sent(ids, device),
        sent(depths, device),
        sent(positions, device),
        sent(place.squeeze(0), device) if forks else None,
        sent(targets, device),
    )


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Send a tensor to the device; from pinned memory, as from other memory the host would first wait for the GPU's work."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def trained_tokens(rows: Sequence[TokenRow]) -> int:
    """Count the tokens that train; the first token of a row has nothing that predicts it."""
    return sum(sum(row.trained[1:]) for row in rows)
