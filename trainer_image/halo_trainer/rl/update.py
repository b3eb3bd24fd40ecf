"""What one forward pass adds to an update by a recipe's objective, and the facts of it that are reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from halo_api.recipe_objective import Objective
from halo_trainer.objectives.mismatch import Mismatch, mismatch
from halo_trainer.objectives.policy import clipped_surrogate, k3_kl, policy_loss, truncated_importance
from halo_trainer.rl.scoring import Sampled, Scorer, pass_values


class Facts(NamedTuple):
    """Sums over trained tokens of this process; parts add up, and so do those of all processes."""

    tokens: float = 0.0
    clipped: float = 0.0
    capped: float = 0.0
    kl: float = 0.0
    mismatch: Mismatch = Mismatch()

    def __add__(self, other: Facts) -> Facts:  # type: ignore[override]
        return Facts(
            self.tokens + other.tokens,
            self.clipped + other.clipped,
            self.capped + other.capped,
            self.kl + other.kl,
            self.mismatch + other.mismatch,
        )


class Kept(NamedTuple):
    """Log-probabilities (K) of a pass's tokens that were computed before the round's first update; unset: not needed."""

    old_K: Tensor | None = None
    reference_K: Tensor | None = None


def pass_loss(scorer: Scorer, rows: Sequence[Sampled], objective: Objective, kept: Kept) -> tuple[Tensor, Facts]:
    """Return the share of the rows in the loss of a step, with a gradient, and the facts of it.

    The mismatch told is that of the trainer now; of a round's first update it is that of the same weights.
    """
    assert objective.clip_low is not None
    assert objective.clip_high is not None
    log_p_K, places_K = scorer.log_probs([each.row for each in rows])
    rollout_K, advantages_K, weights_K = (
        pass_values(rows, name, places_K).to(log_p_K.dtype) for name in ("rollout", "advantages", "weights")
    )
    old_K = rollout_K if kept.old_K is None else kept.old_K
    surrogate = clipped_surrogate(log_p_K, old_K, advantages_K, objective.clip_low, objective.clip_high)
    importance_K = kl_K = None
    if objective.importance_cap is not None:
        importance_K = truncated_importance(old_K, rollout_K, objective.importance_cap)
    if kept.reference_K is not None:
        kl_K = k3_kl(log_p_K, kept.reference_K)
    loss = policy_loss(surrogate, weights_K, importance_K, kl_K, objective.kl)
    return loss, Facts(
        tokens=log_p_K.numel(),
        clipped=float(surrogate.clipped_K.sum()),
        capped=0.0 if importance_K is None else float((importance_K >= (objective.importance_cap or 0)).sum()),
        kl=0.0 if kl_K is None else float(kl_K.detach().sum()),
        mismatch=mismatch(log_p_K, rollout_K),
    )


def token_log_probs(scorer: Scorer, rows: Sequence[Sampled]) -> Tensor:
    """Return log p (K) of a pass's tokens, without a gradient, in the order in which `pass_loss` has them."""
    with torch.no_grad():
        return scorer.log_probs([each.row for each in rows])[0]
