"""How far the policy that samples is from the one that trains, which compute the same weights by different kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Mismatch(NamedTuple):
    """Of sampled tokens: their number, sum and most of |log p_train - log p_rollout|, and the sum of k3. Parts add up."""

    tokens: int = 0
    gap_sum: float = 0.0
    gap_most: float = 0.0
    k3_sum: float = 0.0

    def __add__(self, other: Mismatch) -> Mismatch:  # type: ignore[override]
        return Mismatch(
            self.tokens + other.tokens,
            self.gap_sum + other.gap_sum,
            max(self.gap_most, other.gap_most),
            self.k3_sum + other.k3_sum,
        )

    @property
    def mean_gap(self) -> float:
        """The mean of |log p_train - log p_rollout|, in nats."""
        return self.gap_sum / self.tokens if self.tokens else 0.0

    @property
    def k3(self) -> float:
        """The estimate of KL(rollout || train) a token."""
        return self.k3_sum / self.tokens if self.tokens else 0.0


def mismatch(train_K: Tensor, rollout_K: Tensor) -> Mismatch:
    """Compare log-probabilities of tokens that the rollout server sampled, in nats.

    k3 = exp(d) - 1 - d with d = log p_train - log p_rollout estimates KL(rollout || train) without a bias, as the tokens
    are the server's. On one kernel both are 0; in bf16 a healthy k3 is about 1e-3 or less (2510.26788, 2510.11370).
    """
    if not train_K.numel():
        return Mismatch()
    d_K = (train_K.detach() - rollout_K).to(torch.float64)
    gap_K = d_K.abs()
    return Mismatch(d_K.numel(), float(gap_K.sum()), float(gap_K.max()), float((torch.expm1(d_K) - d_K).sum()))
