"""An update of online RL on tiny models: the loss and gradient of its formula, however its rows are cut, packed and dealt out."""

from __future__ import annotations

import math
import random
from array import array
from typing import TYPE_CHECKING, Any

import pytest
import torch
from gradients import models, token_row
from hypothesis import given
from hypothesis import strategies as st
from rl_support import CPU, kept, ranked_gradient, recipe, sampled, update_gradient
from tiny_models import VOCABULARY, difference, gradient_of, tiny_model

from halo_api.recipe_settings import RecipeSettings
from halo_trainer.data.layout import Run
from halo_trainer.data.template import TokenRow
from halo_trainer.methods import own_layout
from halo_trainer.objectives.policy import row_weights
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.rl.bundles import bundled
from halo_trainer.rl.scoring import Sampled, Scorer

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
SETTINGS = {"grpo": GRPO, "dapo": DAPO, "tis": TIS}


def cases(quick: dict[str, tuple[str, ...]]) -> pytest.MarkDecorator:
    """Every model with every objective; those that are not quick are left to the slow suite."""
    every = [
        pytest.param(
            kind, dtype, bound, SETTINGS[name], id=f"{kind}-{name}",
            marks=() if name in quick.get(kind, ()) else pytest.mark.slow,
        )
        for kind, dtype, bound in CASES
        for name in SETTINGS
    ]  # fmt: skip
    return pytest.mark.parametrize(("kind", "dtype", "bound", "settings"), every)


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


@cases(
    {
        "qwen3": ("grpo", "dapo", "tis"),
        "qwen3_moe": ("grpo", "dapo"),
        "qwen3_5_text": ("grpo", "dapo"),
        "qwen3_5_moe_text": ("dapo",),
    }
)
def test_an_update_is_its_formula(kind: str, dtype: torch.dtype, bound: float, settings: RecipeSettings) -> None:
    alone, flat = models(kind, dtype)
    rows = rows_of(settings)
    loss = by_hand(alone, rows, settings)
    loss.backward()
    expected = gradient_of(alone)
    found, total = update_gradient(Ranks(), flat, rows, settings, 40)
    assert total == pytest.approx(loss.item(), rel=bound)
    assert difference(found, expected) <= bound


@cases({"qwen3": ("grpo", "dapo"), "qwen3_moe": ("grpo",), "qwen3_5_text": ("dapo",)})
def test_pitfalls_1_and_3_a_gradient_is_the_same_however_the_rows_are_cut_and_ordered(
    kind: str, dtype: torch.dtype, bound: float, settings: RecipeSettings
) -> None:
    """A row a pass, all in one, padded, in another order: micro-batch, accumulation and packing change nothing."""
    _, flat = models(kind, dtype)
    rows = rows_of(settings, seed=1)
    expected, loss = update_gradient(Ranks(), flat, rows, settings, 10**6)
    shuffled = random.Random(3).sample(rows, len(rows))
    padded = tiny_model(kind, dtype)
    ways = [(flat, rows, 1, False), (flat, rows, 47, False), (flat, shuffled, 60, False), (padded, rows, 80, True)]
    for model, order, most, pads in ways:
        found, total = update_gradient(Ranks(), model, order, settings, most, pads)
        assert total == pytest.approx(loss, rel=bound)
        assert difference(found, expected) <= bound


@cases({"qwen3": ("grpo",), "qwen3_5_moe_text": ("dapo",)})
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


def grouped(settings: RecipeSettings) -> list[Sampled]:
    """Two groups of three episodes: some of two turns, one of which forgets what was before; and two with the same answer."""
    draw, rows = random.Random(4), []

    def some(count: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(count)]

    for _ in range(2):
        prompt, same = some(9), some(4)
        for episode in range(3):
            answer = same if episode else some(6)
            first = prompt + answer
            second = (prompt if episode == 1 else first) + some(3)
            turns = [(prompt, answer), (second, some(5))][: 1 + (episode < 2)]
            rows += [token_row(before + said, (len(before), len(before) + len(said))) for before, said in turns]
    counts = [row.trained_tokens for row in rows]
    weights = row_weights(counts, settings.objective.normalisation)  # type: ignore[arg-type]
    return [
        Sampled(row, *(array("d", [draw.gauss(mean, 0.5) for _ in range(count)]) for mean in (-4.5, 0.2)), array("d", [weight] * count))
        for row, count, weight in zip(rows, counts, weights, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "dtype", "bound"), [CASES[0], CASES[2], pytest.param(*CASES[1], marks=pytest.mark.slow)]
)
def test_rows_that_share_their_beginnings_have_the_gradient_of_rows_alone(
    kind: str, dtype: torch.dtype, bound: float
) -> None:
    """Each row with weights of its own, as GRPO has them; on a hybrid turns are chained, and only a base that takes trees has trees."""
    _, flat = models(kind, dtype)
    rows = grouped(GRPO)
    expected, loss = update_gradient(Ranks(), flat, rows, GRPO, 10**6)
    trees = Scorer(flat, CPU, 1.0).takes_trees
    assert trees == (kind != "qwen3_5_text")
    joined = bundled(rows, trees, 60)
    assert sum(map(len, joined)) < 0.85 * sum(map(len, rows))
    assert max(map(len, joined)) <= 60
    for most in (60, 10**6):
        found, total = update_gradient(Ranks(), flat, joined, GRPO, most)
        assert total == pytest.approx(loss, rel=bound)
        assert difference(found, expected) <= bound


@given(st.randoms(use_true_random=False), st.booleans(), st.integers(4, 40))
def test_bundles_train_each_token_behind_what_it_was_sampled_behind(
    draw: random.Random, trees: bool, most: int
) -> None:
    """Token for token in the rows' own order, whatever the rows share."""
    rows = []
    for _ in range(draw.randint(1, 8)):
        begins = list(draw.choice(rows).row.ids) if rows and draw.random() < 0.7 else []  # type: ignore[union-attr]
        begins = begins[: draw.randint(0, len(begins))] + [draw.randrange(3) for _ in range(draw.randint(1, 3))]
        said = [draw.randrange(3) for _ in range(draw.randint(1, 4))]
        values = [array("d", [draw.random() for _ in said]) for _ in range(3)]
        rows.append(Sampled(token_row(begins + said, (len(begins), len(begins) + len(said))), *values))
    assert taught(bundled(rows, trees, most)) == taught(rows)


def taught(rows: list[Sampled]) -> list[tuple[tuple[int, ...], int, float, float, float]]:
    found = []
    for each in rows:
        layout = own_layout(each.row)
        paths = {at: path for run in layout.runs for at, path in seen(run)}
        for at, (place, target) in enumerate(zip(layout.predicts, layout.targets, strict=True)):
            before = tuple(layout.ids[token] for token in paths[place])
            found.append((before, target, each.rollout[at], each.advantages[at], each.weights[at]))
    return found


def seen(run: Run) -> list[tuple[int, list[int]]]:
    """Return each place of a run with the places that it sees."""
    before = [token for start, end in run.before for token in range(start, end)]
    return [(place, [*before, *range(run.start, place + 1)]) for place in range(run.start, run.end)]
