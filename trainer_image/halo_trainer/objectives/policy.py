"""Online RL's objectives, token by token: the clipped surrogate of GRPO and DAPO, KL to a reference, and weights of importance.

Notation: of K sampled tokens that train, `log_p` is the trainer's log-probability now, at the temperature that the token was sampled
with; `rollout` the rollout server's as it sampled; `old` that of the policy before the round's first update: the trainer's own,
or the server's where the recipe takes that for it; `advantage` that of the token's episode. All in nats, in fp32 or above.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

# Log ratios are cut here: beyond, exp overflows, and a clipped token's gradient of 0 would become NaN.
MOST_LOG_RATIO = 20.0


def row_weights(counts: Sequence[int], normalisation: Literal["sequence", "batch-tokens"]) -> list[float]:
    """Return what a trained token weighs in the loss of a step, for each of its R rows, of `counts` trained tokens each.

        sequence       w = 1 / (R n_r)      GRPO (arXiv:2402.03300, equation 3): the mean of each row, then of rows
        batch-tokens   w = 1 / sum of n_r   DAPO's token mean (2503.14476, equation 8), as it is computed by verl, TRL and NeMo-RL:
                                            over the tokens of the *whole* optimizer batch, where the paper's formula has one group's

    The rows are those that train, of all processes and passes: masked rows and dropped groups are in no denominator
    (huggingface/trl#6369), and so the shares of any cut of the step add up to the same gradient (trl#5619, #6024; verl#906, #3332).
    """
    if normalisation == "sequence":
        return [1.0 / (len(counts) * count) for count in counts]
    return [1.0 / sum(counts) for _ in counts]


class Surrogate(NamedTuple):
    """`loss_K` is minimised; `clipped_K`: where the clip binds, so that the token has no gradient."""

    loss_K: Tensor
    clipped_K: Tensor


def clipped_surrogate(log_p_K: Tensor, old_K: Tensor, advantage_K: Tensor, low: float, high: float) -> Surrogate:
    """Return PPO's clipped surrogate of each token (arXiv:1707.06347, equation 7).

        loss = - min(r A, clip(r, 1 - low, 1 + high) A),   r = exp(log_p - old)

    GRPO clips alike on both sides; DAPO's `high` is above its `low`, which leaves unlikely tokens more room to become likely
    (2503.14476, 3.1).
    """
    ratio_K = torch.exp((log_p_K - old_K).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO))
    gain_K = torch.minimum(ratio_K * advantage_K, ratio_K.clamp(1 - low, 1 + high) * advantage_K)
    over_K = (advantage_K > 0) & (ratio_K.detach() > 1 + high)
    under_K = (advantage_K < 0) & (ratio_K.detach() < 1 - low)
    return Surrogate(-gain_K, over_K | under_K)


def truncated_importance(old_K: Tensor, rollout_K: Tensor, cap: float) -> Tensor:
    """Return the weight of each token's surrogate, min(pi_old / pi_rollout, cap), without a gradient.

    Truncated importance sampling (TIS; Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025):
    tokens come from the server's arithmetic, not from the trainer's. By token and never by the product over a row, which
    drops long rows (huggingface/trl#4772, #5814).
    """
    return torch.exp(old_K - rollout_K).clamp(max=cap).detach()


def k3_kl(log_p_K: Tensor, reference_K: Tensor) -> Tensor:
    """Return the k3 estimate of KL(pi || reference) at each token sampled from pi, which is never negative (Schulman, 2020).

    k3 = exp(d) - 1 - d,   d = log p_reference - log p
    """
    d_K = (reference_K.detach() - log_p_K).clamp(max=MOST_LOG_RATIO)
    return torch.expm1(d_K) - d_K


def policy_loss(
    surrogate: Surrogate, weights_K: Tensor, importance_K: Tensor | None, kl_K: Tensor | None, kl: float
) -> Tensor:
    """Return the share of these tokens in the loss of a step.

        L = sum over tokens of  w (t s + kl k3)

    with s the surrogate, w the token's weight in the step (`row_weights`), t its importance weight if it has one, and k3 the KL to the
    reference, which importance does not weigh (as in TRL). The shares of all passes and processes add up to the loss.
    """
    loss_K = surrogate.loss_K if importance_K is None else importance_K * surrogate.loss_K
    if kl_K is not None:
        loss_K = loss_K + kl * kl_K
    return (weights_K * loss_K).sum()
