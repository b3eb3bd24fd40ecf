"""Gradients of rows alone, by transformers' own layers, and of layouts."""

from __future__ import annotations

import functools
from array import array
from typing import Any

import torch
from tiny_models import gradient_of, tiny_model

from halo_trainer.attention import Varlen, install
from halo_trainer.data.collate import collate, collate_flat
from halo_trainer.data.layout import Layout
from halo_trainer.data.template import TokenRow
from halo_trainer.model import answer_logits, flat_logits
from halo_trainer.objectives.sft import sft_loss

CPU = torch.device("cpu")


@functools.cache
def models(kind: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """The same weights twice: with transformers' own layers, and with those of layouts."""
    alone, flat = tiny_model(kind, dtype), tiny_model(kind, dtype)
    install(flat.get_base_model())
    return alone, flat


def token_row(ids: list[int], *answers: tuple[int, int]) -> TokenRow:
    trained = bytearray(len(ids))
    for first, last in answers:
        trained[first:last] = b"\1" * (last - first)
    return TokenRow(array("i", ids), trained)


def alone_gradient(model: Any, rows: list[TokenRow], denominator: float) -> torch.Tensor:
    """The sum of the rows' own gradients, each by transformers' own attention on that row alone."""
    total = torch.zeros(())
    for row in rows:
        micro = collate([row], 0, CPU)
        sft_loss(answer_logits(model, micro), micro.targets_BK, micro.trained_BK, denominator).backward()
        total = total + gradient_of(model)
    return total


def layout_gradient(model: Any, layout: Layout, denominator: float) -> torch.Tensor:
    flat = collate_flat(layout, CPU)
    logits = flat_logits(model, flat, Varlen.of(layout, CPU))
    sft_loss(logits, flat.targets_BK, torch.ones_like(flat.targets_BK, dtype=torch.bool), denominator).backward()
    return gradient_of(model)
