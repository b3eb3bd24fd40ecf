"""An update of online RL on tiny models: the loss and gradient of its formula, however its rows are cut, packed and dealt out."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from gradients import models
from rl_support import kept, ranked_gradient, recipe, sampled, update_gradient
from tiny_models import difference, gradient_of

from halo_api.recipe_settings import RecipeSettings
from halo_trainer.data.template import TokenRow
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.rl.scoring import Sampled

if TYPE_CHECKING:
    from rank_workers import Workers

# A router's choice, and a state, can turn on the last bit: those are held to their rows in fp64.
CASES = [
    ("qwen3", torch.float32, 1e-5),
    ("qwen3_moe", torch.float64, 1e-8),
    ("qwen3_5_text", torch.float64, 1e-8),
    ("qwen3_5_moe_text", torch.float64, 1e-8),
]
GRPO = recipe("sql_v3", objective__kl=0.05)
DAPO = recipe("sql_v4_dapo_sync", rollouts__temperature=0.7)
# As with two updates a round: what the server says is weighed, though here it is `old` too, where every weight is 1.
TIS = recipe("sql_v4_dapo_sync", objective__importanceCap=2)
RECIPES = pytest.mark.parametrize("settings", [GRPO, DAPO, TIS], ids=["grpo", "dapo", "tis"])
MODELS = pytest.mark.parametrize(("kind", "dtype", "bound"), CASES, ids=[case[0] for case in CASES])


def rows_of(settings: RecipeSettings, seed: int = 0) -> list[Sampled]:
    return sampled(7, settings.objective.normalisation, seed)


def by_hand(model: Any, rows: list[Sampled], settings: RecipeSettings) -> torch.Tensor:
    """The formula, a token at a time, over whole logits of transformers' own layers and each row alone."""
    objective, loss = settings.objective, torch.zeros(())
    assert objective.clip_low
    assert objective.clip_high
    trained = sum(len(row.rollout) for row in rows)
    for number, each in enumerate(rows):
        assert isinstance(each.row, TokenRow)
        logits = model(input_ids=torch.tensor([list(each.row.ids)]), use_cache=False).logits[0]
        log_p = torch.log_softmax(logits / settings.rollouts.temperature, dim=-1)
        places = [place for place in range(1, len(each.row)) if each.row.trained[place]]
        reference = kept(settings, rows, [number]).reference_K
        weight = 1 / trained if objective.normalisation == "batch-tokens" else 1 / len(rows) / len(places)
        for at, place in enumerate(places):
            token = log_p[place - 1, each.row.ids[place]]
            ratio, advantage = torch.exp(token - each.rollout[at]), each.advantages[at]
            bound = 1 + objective.clip_high if advantage > 0 else 1 - objective.clip_low
            cut = (ratio > bound) if advantage > 0 else (ratio < bound)
            loss = loss - weight * (bound if cut else ratio) * advantage
            if reference is not None:
                d = float(reference[at]) - token
                loss = loss + objective.kl * weight * (torch.exp(d) - d - 1)
    return loss


@RECIPES
@MODELS
def test_an_update_is_its_formula(kind: str, dtype: torch.dtype, bound: float, settings: RecipeSettings) -> None:
    alone, flat = models(kind, dtype)
    rows = rows_of(settings)
    loss = by_hand(alone, rows, settings)
    loss.backward()
    expected = gradient_of(alone)
    found, total = update_gradient(Ranks(), flat, rows, settings, 40)
    assert total == pytest.approx(loss.item(), rel=bound)
    assert difference(found, expected) <= bound


@RECIPES
@MODELS
def test_pitfalls_1_and_3_a_gradient_is_the_same_however_the_rows_are_cut_and_ordered(
    kind: str, dtype: torch.dtype, bound: float, settings: RecipeSettings
) -> None:
    """A row a pass, all in one, padded, in another order: micro-batch, accumulation and packing change nothing."""
    alone, flat = models(kind, dtype)
    rows = rows_of(settings, seed=1)
    expected, loss = update_gradient(Ranks(), flat, rows, settings, 10**6)
    shuffled = random.Random(3).sample(rows, len(rows))
    ways = [(flat, rows, 1, False), (flat, rows, 47, False), (flat, shuffled, 60, False), (alone, rows, 80, True)]
    for model, order, most, padded in ways:
        found, total = update_gradient(Ranks(), model, order, settings, most, padded)
        assert total == pytest.approx(loss, rel=bound)
        assert difference(found, expected) <= bound


@pytest.mark.parametrize("settings", [GRPO, DAPO], ids=["grpo", "dapo"])
@MODELS
def test_pitfall_9_a_gradient_is_the_same_over_two_ranks(
    two: Workers, kind: str, dtype: torch.dtype, bound: float, settings: RecipeSettings
) -> None:
    rows = rows_of(settings, seed=2)
    expected, loss = update_gradient(Ranks(), models(kind, dtype)[1], rows, settings, 10**6)
    for found, total in two.ask(ranked_gradient, kind, dtype, rows, settings, 40):
        assert total == pytest.approx(loss, rel=bound)
        assert difference(found, expected) <= bound


def test_pitfall_11_the_trainers_log_probabilities_are_of_the_temperature_that_was_sampled_with() -> None:
    """Against whole logits; at another temperature they are others, and a ratio would not be 1 for equal weights."""
    from rl_support import CPU

    from halo_trainer.rl.scoring import Scorer

    alone, flat = models("llama", torch.float64)
    row = sampled(1)[0].row
    assert isinstance(row, TokenRow)
    with torch.no_grad():
        logits = alone(input_ids=torch.tensor([list(row.ids)]), use_cache=False).logits[0]
        for temperature in (1.0, 0.5, 1.7):
            log_p, _ = Scorer(flat, CPU, temperature).log_probs([row])
            expected = torch.log_softmax(logits / temperature, -1)
            places = [place for place in range(1, len(row)) if row.trained[place]]
            by_place = [float(expected[place - 1, row.ids[place]]) for place in places]
            assert log_p.tolist() == pytest.approx(by_place, rel=1e-9)
            assert math.isfinite(sum(by_place))
