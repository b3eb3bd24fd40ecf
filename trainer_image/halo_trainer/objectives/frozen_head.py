"""A frozen output head and the loss of the tokens it predicts, without ever holding their logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Logits that are held at once, in fp32: few enough for a CPU's caches, many enough for a GPU's matrix units.
CHUNK_NUMBERS = {"cpu": 2**23, "cuda": 2**27}


def frozen_head_nll(
    hidden_KH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_K: Tensor, temperature: float = 1.0
) -> Tensor:
    """Return the negative log-likelihood of each target, -log softmax((W h + b) / temperature)[y], in fp32 (over fp64 in fp64).

    The head is frozen, so its gradient is not made, and that of h is known as soon as the logits z are: W' (softmax z - onehot y),
    over the temperature.
    It is computed with the loss, chunk by chunk, and kept in place of K x V logits, as n times itself for n = sum exp(z - max z).
    Each logit is computed once; a chunked head that computes it again in the backward pass does half as much again.
    """
    losses: Tensor = FrozenHead.apply(hidden_KH, weight_VH, bias_V, targets_K, temperature)  # type: ignore[no-untyped-call]
    return losses


class FrozenHead(torch.autograd.Function):
    """K rows of H features, a head of V tokens."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_KH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_K: Tensor,
        temperature: float = 1.0,
    ) -> Tensor:
        if weight_VH.requires_grad or (bias_V is not None and bias_V.requires_grad):
            raise ValueError("the output head must be frozen: its own gradient is not made here")
        rows = max(CHUNK_NUMBERS.get(hidden_KH.device.type, 2**27) // weight_VH.shape[0], 1)
        exact = torch.promote_types(hidden_KH.dtype, torch.float32)
        losses_K, sums_K = (torch.empty(len(hidden_KH), dtype=exact, device=hidden_KH.device) for _ in range(2))
        grad_KH = torch.empty_like(hidden_KH) if ctx.needs_input_grad[0] else None
        for start in range(0, len(hidden_KH), rows):
            part = slice(start, start + rows)
            targets_C1 = targets_K[part].unsqueeze(-1)
            logits_CV = torch.nn.functional.linear(hidden_KH[part], weight_VH, bias_V).to(exact)
            if temperature != 1:
                logits_CV = logits_CV / temperature
            most_C1 = logits_CV.amax(dim=-1, keepdim=True)
            target_C1 = logits_CV.gather(-1, targets_C1) - most_C1
            # In place: what the logits were becomes their gradient.
            powers_CV = logits_CV.sub_(most_C1).exp_()
            sums_C1 = powers_CV.sum(dim=-1, keepdim=True)
            losses_K[part] = (sums_C1.log() - target_C1).squeeze(-1)
            if grad_KH is not None:
                sums_K[part] = sums_C1.squeeze(-1)
                powers_CV.scatter_add_(-1, targets_C1, -sums_C1)
                grad_KH[part] = torch.mm(powers_CV.to(weight_VH.dtype), weight_VH)
        ctx.save_for_backward(grad_KH, sums_K)
        ctx.temperature = temperature
        return losses_K

    @staticmethod
    def backward(ctx: Any, losses_grad_K: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        grad_KH, sums_K = ctx.saved_tensors
        if grad_KH is None:
            return None, None, None, None, None
        scale_K = losses_grad_K / sums_K
        if ctx.temperature != 1:
            scale_K = scale_K / ctx.temperature
        return (grad_KH * scale_K.unsqueeze(-1)).to(grad_KH.dtype), None, None, None, None
