"""From the groups of a round to the rows of an update: advantages, what trains and what not, and each token's weight. Pure."""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from halo_api.recipe_settings import RecipeSettings
from halo_trainer.objectives.advantages import group_advantages
from halo_trainer.objectives.policy import row_weights
from halo_trainer.rl.scoring import Sampled
from halo_trainer.rollouts.engine import Group
from halo_trainer.rollouts.rows import RolloutRow, RowRules, group_rows


def advantages_of(group: Group, settings: RecipeSettings) -> Tensor | None:
    """Return the advantages of a group's scored episodes, None of a group that is dropped."""
    objective = settings.objective
    rewards = torch.tensor([episode.reward for episode in group.episodes], dtype=torch.float64)
    scored = torch.ones(len(rewards), dtype=torch.bool)
    return group_advantages(rewards, scored, objective.advantage_scale, objective.advantage_std_floor)


def training_rows(group: Group, number: int, settings: RecipeSettings) -> list[RolloutRow]:
    """Return those rows of a group that train, with their advantages; none of a group that teaches nothing.

    This is the predicate of dynamic sampling too: a group of equal rewards is sampled again with another task (DAPO,
    arXiv:2503.14476, 3.2: 0 < correct < G, for rewards of any value), and so is one whose every row is masked.
    """
    advantages = advantages_of(group, settings)
    if advantages is None:
        return []
    rows = group_rows(group.episodes, number, RowRules.of(settings))
    told = [dataclasses.replace(row, advantage=float(advantages[row.episode])) for row in rows]
    return [row for row in told if row.trained_tokens]


def sampled_rows(groups: Sequence[Group], settings: RecipeSettings) -> list[Sampled]:
    """Return the rows of a step: those that train of all its groups, each token with what it weighs in the whole step."""
    rows = [row for number, group in enumerate(groups) for row in training_rows(group, number, settings)]
    normalisation = settings.objective.normalisation
    if normalisation == "answer":
        raise ValueError("normalisation answer is GSPO's, which is not built yet")
    weights = row_weights([row.trained_tokens for row in rows], normalisation)
    return [
        Sampled(
            row.row,
            row.log_probs,
            array("d", [row.advantage]) * row.trained_tokens,
            array("d", [weight]) * row.trained_tokens,
        )
        for row, weight in zip(rows, weights, strict=True)
    ]


@dataclass(frozen=True)
class RoundFacts:
    """What a round's episodes were like, dropped groups among them."""

    reward: float | None
    pass_rate: float | None
    scored: int
    unscored: int
    unscored_reasons: dict[str, int]
    truncated: int
    sampled_tokens: int


def round_facts(groups: Sequence[Group]) -> RoundFacts:
    """Count what was sampled; means are those of scored episodes alone."""
    scored = [episode for group in groups for episode in group.episodes]
    unscored = [episode for group in groups for episode in group.unscored]
    episodes = [*scored, *unscored]
    reasons = Counter(episode.failure or "Unknown" for episode in unscored)
    return RoundFacts(
        reward=sum(episode.reward or 0.0 for episode in scored) / len(scored) if scored else None,
        pass_rate=sum(episode.passed is True for episode in scored) / len(scored) if scored else None,
        scored=len(scored),
        unscored=len(unscored),
        unscored_reasons=dict(reasons.most_common(16)),
        truncated=sum(episode.truncated for episode in episodes),
        sampled_tokens=sum(episode.sampled_tokens for episode in episodes),
    )
