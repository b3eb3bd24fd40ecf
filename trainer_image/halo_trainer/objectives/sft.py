"""Supervised fine-tuning: the negative log-likelihood of the answers' tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def sft_loss(logits_BTV: Tensor, targets_BT: Tensor, trained_BT: Tensor, denominator: float) -> Tensor:
    """Return the share of these rows in the loss of an optimizer step.

        L = - 1/M * sum over rows b, positions t of  m_bt * log softmax(z_bt)[y_bt]

    with z the logits that predict y, the next token, m_bt = 1 where y is an answer's token, and M (`denominator`) the
    trained tokens of the *whole* optimizer batch, over every micro-batch and rank. So the shares add up to the same loss
    and gradient however the batch is cut; dividing by each part's own count would weigh tokens by their neighbours'
    padding (the gradient accumulation bug of 2024: huggingface/transformers#34191). Computed in fp32, or in fp64 where
    the logits are.
    """
    return trained_share(target_nll(logits_BTV, targets_BT), trained_BT, denominator)


def target_nll(logits_BTV: Tensor, targets_BT: Tensor, temperature: float = 1.0) -> Tensor:
    """Return -log softmax(z / temperature)[y] of each target from whole logits, in fp32 (over fp64 in fp64)."""
    exact_BTV = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
    if temperature != 1:
        exact_BTV = exact_BTV / temperature
    log_p_BTV = torch.log_softmax(exact_BTV, dim=-1)
    return -log_p_BTV.gather(-1, targets_BT.unsqueeze(-1)).squeeze(-1)


def trained_share(nll: Tensor, trained: Tensor, denominator: float) -> Tensor:
    """Return that share from the negative log-likelihoods themselves; of those that don't train none counts."""
    # A selection and not a product: an infinite loss at a position that does not train must not become NaN.
    return torch.where(trained, nll, 0.0).sum() / denominator
