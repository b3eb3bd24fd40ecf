"""The paired bootstrap against every resample there is, a loop by hand, and what must hold of any interval."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_trainer.evaluation import bootstrap
from halo_trainer.evaluation.bootstrap import compared, resampled_means

SCORES = st.floats(-1, 1, width=16)
PAIRS = st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=30)


@given(st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=4))
@settings(max_examples=25, deadline=None)
def test_the_interval_is_that_of_every_resample_there_is(pairs: list[tuple[float, float]]) -> None:
    """Of n tasks there are n^n resamples: all of them, each as likely, are what the drawn ones stand for."""
    differences = [after - before for before, after in pairs]
    every = np.array([np.mean(drawn) for drawn in itertools.product(differences, repeat=len(pairs))])
    found = compared([before for before, _ in pairs], [after for _, after in pairs])
    tolerance = 1e-9
    # Ends are quantiles: at most 2.5 % lie beyond each, and at least that much lies at or beyond it; 1 % is left to the draw.
    assert (every < found.low - tolerance).mean() <= 0.035
    assert (every <= found.low + tolerance).mean() >= 0.015
    assert (every > found.high + tolerance).mean() <= 0.035
    assert (every >= found.high - tolerance).mean() >= 0.015


@given(PAIRS, st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_the_means_are_those_of_a_loop(pairs: list[tuple[float, float]], seed: int) -> None:
    values = np.array([after - before for before, after in pairs])
    drawn = np.random.default_rng(seed).integers(0, len(pairs), size=(50, len(pairs)))
    by_hand = [sum(float(values[i]) for i in row) / len(pairs) for row in drawn]
    assert resampled_means(values, 50, seed) == pytest.approx(by_hand, abs=1e-12)


@given(PAIRS)
@settings(max_examples=20, deadline=None)
def test_the_other_way_round_it_is_the_same_difference(pairs: list[tuple[float, float]]) -> None:
    before, after = [b for b, _ in pairs], [a for _, a in pairs]
    found, back = compared(before, after, resamples=500), compared(after, before, resamples=500)
    assert (found.difference, found.low, found.high) == pytest.approx((-back.difference, -back.high, -back.low))
    # Means of draws lie within the values, and the interval within those.
    assert min(a - b for b, a in pairs) - 1e-9 <= found.low <= found.high <= max(a - b for b, a in pairs) + 1e-9


def test_pairs_tell_what_unpaired_scores_would_not() -> None:
    """A small gain on each of tasks that differ a lot is beyond chance; the same gain between shuffled tasks is not."""
    draw = random.Random(0)
    before = [draw.random() for _ in range(200)]
    found = compared(before, [score + 0.02 for score in before])
    assert found.verdict == "better"
    assert (found.low, found.high) == pytest.approx((0.02, 0.02))
    shuffled = [score + 0.02 for score in draw.sample(before, len(before))]
    assert compared(before, shuffled).verdict == "no difference beyond chance"
    assert compared([score + 0.02 for score in before], before).verdict == "worse"


def test_it_covers_the_truth_as_often_as_it_says() -> None:
    """Of 300 pairs of evaluations whose true difference is 0.1, 95 % of intervals hold it; three standard errors are 4 %."""
    draw = np.random.default_rng(1)
    held = 0
    for number in range(300):
        before, after = draw.random(100) < 0.2, draw.random(100) < 0.3
        found = compared(before.astype(float), after.astype(float), resamples=1000, seed=number)
        held += found.low <= 0.1 <= found.high
    assert 0.91 <= held / 300 <= 0.99


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ([], [], "found 0 and 0 scores"),
        ([1.0], [1.0, 0.0], "found 1 and 2 scores"),
        ([float("nan")], [1.0], "no number"),
    ],
)
def test_what_can_not_be_compared_is_one_sentence(before: list[float], after: list[float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        compared(before, after)


def test_many_tasks_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(10.0)
    whole = resampled_means(values, 100, 3)
    monkeypatch.setattr(bootstrap, "DRAWN", 70)
    assert resampled_means(values, 100, 3) == pytest.approx(whole)
