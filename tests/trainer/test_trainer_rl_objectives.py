"""Online RL's objectives against numbers worked out by hand, one formula at a time."""

from __future__ import annotations

import math

import pytest
import torch
from rl_support import recipe
from torch import tensor

from halo_trainer.objectives.advantages import group_advantages
from halo_trainer.objectives.mismatch import Mismatch, mismatch
from halo_trainer.objectives.policy import (
    clipped_surrogate,
    k3_kl,
    policy_loss,
    row_weights,
    truncated_importance,
)


def found(rewards: list[float], scored: list[bool] | None = None, scale: str = "group-std") -> list[float] | None:
    mask = tensor(scored if scored else [True] * len(rewards))
    advantages = group_advantages(tensor(rewards, dtype=torch.float32), mask, scale, 1e-4)  # type: ignore[arg-type]
    return None if advantages is None else advantages.tolist()


def test_advantages_are_distances_from_the_groups_mean_in_its_std() -> None:
    # mean 1/2; the std of n - 1 is sqrt(4/4 / 3).
    assert found([1, 0, 0, 1]) == pytest.approx([math.sqrt(3) / 2 * sign for sign in (1, -1, -1, 1)])
    # mean 1/4, std sqrt((9 + 3) / 16 / 3) = 1/2.
    assert found([1, 0, 0, 0]) == pytest.approx([1.5, -0.5, -0.5, -0.5])
    assert found([1, 0, 0, 0], scale="none") == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_an_unscored_episode_is_no_zero() -> None:
    """It moves neither mean nor std, and trains nothing."""
    assert found([1, 0, 0, 0], [True, True, False, False]) == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5), 0, 0])
    assert found([1, 1, 0, 0], [True, True, False, False]) is None
    assert found([1, 0, 0, 0], [True, False, False, False]) is None
    assert found([1, 0], [False, False]) is None


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
@pytest.mark.parametrize("scale", ["group-std", "none"])
def test_pitfall_7_a_group_of_equal_rewards_is_dropped_and_gets_no_advantage_of_thousands(
    reward: float, scale: str
) -> None:
    assert found([reward] * 8, scale=scale) is None
    # The last bit of an fp32 reward.
    assert found([reward] * 7 + [reward + 1e-7], scale=scale) is None


def test_pitfall_6_a_group_of_almost_equal_rewards_stays_in_bounds() -> None:
    advantages = found([0.5, 0.5, 0.5, 0.501])
    assert advantages
    assert max(map(abs, advantages)) <= 1.5 + 1e-6


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "slope"),
    [
        # Between the bounds: r A, whose derivative by log p is r A.
        (1.1, 1.0, 1.1, 1.1),
        (0.9, -2.0, -1.8, -1.8),
        # Above 1 + 0.28: no further where that is good, all of it where it is bad.
        (1.5, 1.0, 1.28, 0.0),
        (1.5, -1.0, -1.5, -1.5),
        # Below 1 - 0.2 likewise.
        (0.5, 1.0, 0.5, 0.5),
        (0.5, -1.0, -0.8, 0.0),
        # DAPO's room above: GRPO would have cut this at 1.2.
        (1.25, 1.0, 1.25, 1.25),
    ],
)
def test_the_clipped_surrogate(ratio: float, advantage: float, gain: float, slope: float) -> None:
    old = tensor([-2.0], dtype=torch.float64)
    log_p = (old + math.log(ratio)).requires_grad_()
    surrogate = clipped_surrogate(log_p, old, tensor([advantage], dtype=torch.float64), 0.2, 0.28)
    surrogate.loss_K.sum().backward()
    assert surrogate.loss_K.item() == pytest.approx(-gain)
    assert log_p.grad is not None
    assert log_p.grad.item() == pytest.approx(-slope, abs=1e-12)
    assert surrogate.clipped_K.item() == (slope == 0)


def test_a_ratio_beyond_all_bounds_has_a_finite_gradient() -> None:
    log_p = tensor([-1.0, -300.0, -1.0], requires_grad=True)
    old = tensor([-300.0, -1.0, -300.0])
    clipped_surrogate(log_p, old, tensor([1.0, -1.0, -1.0]), 0.2, 0.28).loss_K.sum().backward()
    k3_kl(log_p, old).sum().backward()
    assert log_p.grad is not None
    assert bool(log_p.grad.isfinite().all())


def test_pitfall_4_and_5_the_denominator_has_each_trained_token_or_row_once() -> None:
    """Masked rows are not among the counts; nothing is divided by the group's size or the passes again."""
    assert row_weights([2, 6], "batch-tokens") == [1 / 8, 1 / 8]
    assert row_weights([2, 6], "sequence") == [1 / 4, 1 / 12]
    for normalisation in ("batch-tokens", "sequence"):
        weights = row_weights([3, 1, 7], normalisation)  # type: ignore[arg-type]
        assert sum(count * weight for count, weight in zip([3, 1, 7], weights, strict=True)) == pytest.approx(1)
    assert row_weights([], "sequence") == row_weights([], "batch-tokens") == []


def test_importance_is_truncated_and_has_no_gradient() -> None:
    old = tensor([-1.0, -1.0, -3.0], requires_grad=True)
    weights = truncated_importance(old, tensor([-1.5, -4.0, -1.0]), 2.0)
    assert weights.tolist() == pytest.approx([math.exp(0.5), 2.0, math.exp(-2)])
    assert not weights.requires_grad


def test_pitfall_10_importance_is_by_token_so_that_a_long_row_is_weighed_like_a_short_one() -> None:
    """A product over a row of 2,000 tokens, each 1 % off, would be e^20 and the row be cut or dropped."""
    rollout = torch.full((2000,), -1.01)
    assert torch.allclose(truncated_importance(torch.full((2000,), -1.0), rollout, 2.0), tensor(math.exp(0.01)))


def test_k3_is_never_negative_and_pulls_to_the_reference() -> None:
    log_p = tensor([math.log(0.5), math.log(0.2), math.log(0.3)], dtype=torch.float64, requires_grad=True)
    reference = tensor([math.log(0.25), math.log(0.4), math.log(0.3)], dtype=torch.float64)
    kl = k3_kl(log_p, reference)
    assert kl.tolist() == pytest.approx([0.5 + math.log(2) - 1, 2 - math.log(2) - 1, 0], abs=1e-12)
    kl.sum().backward()
    assert log_p.grad is not None
    # d k3 / d log p = 1 - exp(d).
    assert log_p.grad.tolist() == pytest.approx([0.5, -1.0, 0.0], abs=1e-12)


def test_a_loss_is_the_weighed_sum_of_surrogate_and_kl() -> None:
    log_p = tensor([math.log(0.5), math.log(0.2)], dtype=torch.float64)
    old = tensor([math.log(0.4), math.log(0.4)], dtype=torch.float64)
    surrogate = clipped_surrogate(log_p, old, tensor([1.0, -1.0], dtype=torch.float64), 0.2, 0.2)
    weights, importance = tensor([0.25, 0.75]), tensor([2.0, 0.5])
    kl = k3_kl(log_p, old)
    # Surrogates -1.2 (clipped from 1.25) and 0.8 (clipped from 0.5); KL as above.
    values = [0.8 + math.log(1.25) - 1, 2.0 - math.log(2) - 1]
    expected = 0.25 * (-2.4 + 0.1 * values[0]) + 0.75 * (0.4 + 0.1 * values[1])
    assert policy_loss(surrogate, weights, importance, kl, 0.1).item() == pytest.approx(expected)
    assert policy_loss(surrogate, weights, None, None, 0.0).item() == pytest.approx(0.25 * -1.2 + 0.75 * 0.8)


def test_the_mismatch_is_that_of_all_tokens_however_they_are_cut() -> None:
    train, rollout = tensor([-1.0, -2.0, -0.5]), tensor([-1.5, -2.0, -0.25])
    whole = mismatch(train, rollout)
    assert (whole.tokens, whole.mean_gap, whole.gap_most) == (3, 0.25, 0.5)
    assert whole.k3 == pytest.approx((math.exp(0.5) - 1.5 + math.exp(-0.25) - 0.75) / 3)
    parts = mismatch(train[:1], rollout[:1]) + mismatch(train[1:], rollout[1:]) + mismatch(train[:0], rollout[:0])
    assert parts == pytest.approx(whole)
    assert mismatch(train, train).k3 == Mismatch().mean_gap == 0


def test_the_recipes_say_each_of_the_numbers() -> None:
    grpo, dapo = recipe("sql_v3").objective, recipe("sql_v4_dapo_sync").objective
    assert (grpo.clip_low, grpo.clip_high, grpo.normalisation, grpo.kl) == (0.2, 0.2, "sequence", 0.001)
    assert (dapo.clip_low, dapo.clip_high, dapo.normalisation, dapo.kl) == (0.2, 0.28, "batch-tokens", 0)
    assert dapo.dynamic_sampling.enabled
    assert (grpo.truncated_answers, dapo.truncated_answers) == ("train", "mask")
