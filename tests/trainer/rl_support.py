"""What the tests of online RL share: recipes, and rows with made-up log-probabilities and advantages."""

from __future__ import annotations

import contextlib
import random
from array import array
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import yaml
from tiny_models import VOCABULARY, gradient_of, tiny_model

from halo_api.recipe_settings import RecipeSettings
from halo_trainer.data.batches import rank_share
from halo_trainer.data.template import TokenRow
from halo_trainer.model import trained_parameters
from halo_trainer.objectives.policy import row_weights
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.rl.scoring import Sampled, Scorer, StepRows
from halo_trainer.rl.update import Kept, pass_loss

CPU = torch.device("cpu")
RECIPES = Path(__file__).resolve().parents[2] / "operator" / "halo_operator" / "recipes"


def recipe(name: str, **changes: Any) -> RecipeSettings:
    """Return a recipe's settings, some of them otherwise: objective__kl=0.1."""
    settings = yaml.safe_load((RECIPES / f"{name}.yaml").read_bytes())
    for path, value in changes.items():
        *parts, last = path.split("__")
        inner = settings
        for part in parts:
            inner = inner[part]
        inner[last] = value
    return RecipeSettings.model_validate(settings)


def sampled(count: int, normalisation: str = "batch-tokens", seed: int = 0) -> list[Sampled]:
    """Return rows of several lengths, some of two answers; their log-probabilities lie around those of a model of random weights."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        length = draw.randint(6, 30)
        trained = bytearray(length)
        first = draw.randint(1, length - 2)
        trained[first:] = b"\1" * (length - first)
        if draw.random() < 0.5:
            trained[draw.randint(first, length - 2)] = 0
        rows.append(TokenRow(array("i", [draw.randrange(VOCABULARY) for _ in range(length)]), trained))
    counts = [row.trained_tokens for row in rows]
    weights = row_weights(counts, normalisation)  # type: ignore[arg-type]
    return [
        Sampled(
            row,
            array("d", [draw.gauss(-4.6, 1.5) for _ in range(tokens)]),
            array("d", [advantage]) * tokens,
            array("d", [weight]) * tokens,
        )
        for row, tokens, weight in zip(rows, counts, weights, strict=True)
        for advantage in [draw.choice([-1.2, -0.3, 0.7, 1.5])]
    ]


def update_gradient(
    ranks: Ranks, model: Any, rows: list[Sampled], settings: RecipeSettings, most: int, padded: bool = False
) -> tuple[torch.Tensor, float]:
    """Do an update as the loop does, in passes of so many tokens, of rows side by side or padded; return its gradient and loss."""
    why = mock.patch("halo_trainer.rl.scoring.why_padded", return_value="a test wants it")
    with why if padded else contextlib.nullcontext():
        scorer = Scorer(model, CPU, settings.rollouts.temperature)
    step = StepRows(rows, scorer, most)
    share = rank_share(range(len(rows)), step.lengths, ranks.rank, ranks.world)
    total = torch.zeros((), dtype=torch.float64)
    for part in step.passes(share, 1):
        loss, _ = pass_loss(scorer, [rows[index] for index in part], settings.objective, kept(settings, rows, part))
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    ranks.sum_gradients(trained_parameters(model).values())
    return gradient_of(model), float(ranks.sum_values(total))


def kept(settings: RecipeSettings, rows: list[Sampled], part: list[int]) -> Kept:
    """Return a reference, where the recipe has one: made up too, from what the rows are."""
    if not settings.objective.kl:
        return Kept()
    values = [0.9 * value - 0.2 for index in part for value in rows[index].rollout]
    return Kept(reference_K=torch.tensor(values, dtype=torch.float64))


def ranked_gradient(
    ranks: Ranks, kind: str, dtype: torch.dtype, rows: list[Sampled], settings: RecipeSettings, most: int
) -> tuple[torch.Tensor, float]:
    """Do an update on a model of this rank's own."""
    return update_gradient(ranks, tiny_model(kind, dtype), rows, settings, most)
