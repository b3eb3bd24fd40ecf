"""Rows of episodes: the tokens, masks and log-probabilities that were sampled, and nothing else."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from halo_trainer.data.layout import packed
from halo_trainer.rollouts.episode import Episode, Turn
from halo_trainer.rollouts.rows import RolloutRow, RowRules, episode_rows, group_rows

TURN = RowRules("turn", None, "train")
TRAJECTORY = RowRules("trajectory", None, "train")
TOKENS = st.lists(st.integers(0, 400), min_size=1, max_size=5)


def turn(prompt: list[int], answer: list[int], policy: int = 0, finish: Literal["stop", "length"] = "stop") -> Turn:
    log_probs = array("d", (-(token + 1) / 1000 for token in answer))
    return Turn(array("i", prompt), array("i", answer), log_probs, policy, f"run-s{policy}", 0, finish)


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    """Episodes whose turns mostly go on from the one before; some forget something of it."""
    turns: list[Turn] = []
    history: list[int] = []
    for policy in range(draw(st.integers(1, 5))):
        forgets = bool(history) and draw(st.integers(0, 3)) == 0
        kept = history[: draw(st.integers(0, len(history) - 1))] if forgets else history
        prompt, answer = kept + draw(TOKENS), draw(TOKENS)
        turns.append(turn(prompt, answer, policy))
        history = prompt + answer
    return Episode("task", 0, tuple(turns), reward=1.0, passed=True)


def sampled(row: RolloutRow) -> list[tuple[tuple[int, ...], int, float]]:
    """Return what a row trains: each token with all that it sees, in the order of a layout's targets."""
    layout = packed([row.row])
    seen = [tuple(layout.ids[: place + 1]) for place in layout.predicts]
    return list(zip(seen, layout.targets, row.log_probs, strict=True))


@given(episodes(), st.sampled_from([TURN, TRAJECTORY]))
def test_what_trains_is_what_was_sampled_token_for_token(episode: Episode, rules: RowRules) -> None:
    expected = [
        ((*each.prompt, *each.answer[:at]), token, each.log_probs[at])
        for each in episode.turns
        for at, token in enumerate(each.answer)
    ]
    rows = episode_rows(episode, 3, 5, rules)
    assert [token for row in rows for token in sampled(row)] == expected
    told = [(answer.turn, answer.policy, answer.model) for row in rows for answer in row.answers]
    assert told == [(at, each.policy, each.model) for at, each in enumerate(episode.turns)]
    assert {(row.group, row.episode) for row in rows} == {(3, 5)}


def test_a_trajectory_is_one_row_until_a_prompt_forgets_something() -> None:
    first, second = turn([1, 2], [3]), turn([1, 2, 3, 4], [5, 6])
    whole = Episode("task", 0, (first, second), reward=1.0)
    (row,) = episode_rows(whole, 0, 0, TRAJECTORY)
    assert list(row.row.ids) == [1, 2, 3, 4, 5, 6]
    assert list(row.row.trained) == [0, 0, 1, 0, 1, 1]
    forgetful = replace(whole, turns=(first, turn([1, 9, 3, 4], [5, 6])))
    assert [list(each.row.trained) for each in episode_rows(forgetful, 0, 0, TRAJECTORY)] == [
        [0, 0, 1],
        [0, 0, 0, 0, 1, 1],
    ]


def test_a_masked_row_stays_in_its_group_and_trains_nothing() -> None:
    cut = Episode("task", 0, (turn([1], [2]), turn([1, 2, 3], [4, 5], finish="length")), reward=0.0, truncated=True)
    for rules, masked in (
        (RowRules("turn", None, "mask"), ["truncated", "truncated"]),
        (RowRules("turn", 4, "train"), [None, "overlength"]),
        (RowRules("trajectory", 4, "mask"), ["overlength"]),
        (RowRules("turn", 5, "train"), [None, None]),
    ):
        rows = episode_rows(cut, 0, 0, rules)
        assert [row.masked for row in rows] == masked
        for row in rows:
            assert (
                row.trained_tokens
                == sum(row.row.trained)
                == (0 if row.masked else len(row.row.ids) - row.answers[0].start)
            )


def test_an_unscored_episode_has_no_rows() -> None:
    lost = Episode("task", 1, (turn([1], [2]),), failure="ServerFailed")
    assert [row.episode for row in group_rows([lost, replace(lost, reward=0.0, failure=None)], 0, TURN)] == [1]
