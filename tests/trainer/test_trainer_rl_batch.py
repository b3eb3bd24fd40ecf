"""From groups of episodes to the rows of a step: what is dropped, masked, left out, and what each token then weighs."""

from __future__ import annotations

import math
from array import array

import pytest
from rl_support import recipe

from halo_trainer.environments.base import Task
from halo_trainer.rl.batch import round_facts, sampled_rows, training_rows
from halo_trainer.rollouts.engine import Group, Wanted
from halo_trainer.rollouts.episode import Episode, Turn

GRPO, DAPO = recipe("sql_v3"), recipe("sql_v4_dapo_sync")


def turn(answer: int, prompt: int = 3) -> Turn:
    return Turn(
        array("i", range(prompt)), array("i", range(answer)), array("d", [-0.5] * answer), 4, "run-s4", 0, "stop"
    )


def episode(reward: float | None, *answers: int, truncated: bool = False, failure: str | None = None) -> Episode:
    turns = tuple(turn(answer) for answer in answers or (2,))
    return Episode("t", 0, turns, reward, reward and reward >= 1, failure, truncated=truncated)


def group(*episodes: Episode, place: int = 0) -> Group:
    scored, unscored = ([each for each in episodes if each.scored is wished] for wished in (True, False))
    return Group(Wanted(Task("t", "sql", {}), 0, place), tuple(scored), tuple(unscored))


def test_every_turn_has_its_episodes_advantage() -> None:
    rows = training_rows(group(episode(1.0, 2, 4), episode(0.0, 3)), 0, GRPO)
    assert [(row.trained_tokens, row.advantage) for row in rows] == [
        (tokens, pytest.approx(sign * math.sqrt(0.5))) for tokens, sign in ((2, 1), (4, 1), (3, -1))
    ]


def test_groups_of_equal_rewards_are_in_no_denominator() -> None:
    """Zero-variance groups are dropped: the tokens of the others weigh what they weigh without them."""
    teaching = group(episode(1.0, 2), episode(0.0, 6))
    equal = group(episode(1.0, 50), episode(1.0, 50))
    for settings, weights in ((DAPO, [1 / 8, 1 / 8]), (GRPO, [1 / 4, 1 / 12])):
        rows = sampled_rows([equal, teaching, equal], settings)
        assert [row.weights[0] for row in rows] == pytest.approx(weights)


def test_pitfall_4_a_truncated_answer_counts_in_its_group_and_in_no_denominator() -> None:
    """DAPO's overlong filtering: its reward moves the mean, and none of its tokens trains."""
    cut = group(episode(1.0, 2), episode(0.0, 8), episode(0.0, 40, truncated=True))
    masked, trained = (
        sampled_rows([cut], DAPO),
        sampled_rows([cut], recipe("sql_v4_dapo_sync", objective__truncatedAnswers="train")),
    )
    assert [len(row.rollout) for row in masked] == [2, 8]
    assert [row.weights[0] for row in masked] == pytest.approx([0.1, 0.1])
    assert [row.weights[0] for row in trained] == pytest.approx([1 / 50] * 3)
    # Advantages are those of three episodes: mean 1/3, std sqrt(1/3).
    assert [row.advantages[0] for row in masked] == pytest.approx([2 / math.sqrt(3), -1 / math.sqrt(3)])


def test_a_group_whose_every_row_is_masked_teaches_nothing() -> None:
    cut = group(episode(1.0, 2, truncated=True), episode(0.0, 3, truncated=True))
    assert training_rows(cut, 0, DAPO) == []
    assert len(training_rows(cut, 0, GRPO)) == 2


def test_a_row_that_is_too_long_is_masked_and_counts_in_its_group() -> None:
    settings = recipe("sql_v4_dapo_sync", rows__maxTokens=8)
    rows = training_rows(group(episode(1.0, 2), episode(0.0, 6)), 0, settings)
    assert [(row.trained_tokens, row.advantage) for row in rows] == [(2, pytest.approx(math.sqrt(0.5)))]


def test_an_unscored_episode_changes_nobodys_advantage_or_weight() -> None:
    lost = episode(None, 5, failure="ServerFailed")
    found, without = (
        [
            (row.advantages[0], row.weights[0])
            for row in sampled_rows([group(*others, episode(1.0), episode(0.0))], GRPO)
        ]
        for others in ([lost, lost], [])
    )
    assert found == without
    assert training_rows(group(lost, lost, episode(1.0)), 0, GRPO) == []


def test_what_was_not_scored_is_counted_and_no_zero() -> None:
    lost = episode(None, 5, failure="ServerFailed")
    facts = round_facts([group(episode(1.0, 2), episode(0.0, 3), lost), group(episode(0.5, 4, truncated=True))])
    assert facts.reward == pytest.approx(0.5)
    assert facts.pass_rate == pytest.approx(1 / 3)
    assert (facts.scored, facts.unscored, facts.unscored_reasons) == (3, 1, {"ServerFailed": 1})
    assert (facts.truncated, facts.sampled_tokens) == (1, 14)
    assert round_facts([group(lost)]).reward is None
