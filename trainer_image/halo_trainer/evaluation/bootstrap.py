"""The paired bootstrap: how far the difference of two models' scores on the same tasks may be chance of which tasks were taken.

Tasks are drawn again with replacement, both models' scores of a task together, and the interval holds the middle of the means of
differences (percentile interval: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13; paired over test items:
Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation", https://aclanthology.org/W04-3250).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95
# Drawn at a time, so that memory stays small whatever the number of tasks.
DRAWN = 1 << 20

Verdict = Literal["better", "worse", "no difference beyond chance"]


@dataclass(frozen=True)
class Comparison:
    """The mean of after less before over n tasks, in the scores' unit, and the interval that holds it."""

    tasks: int
    before: float
    after: float
    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """What the interval says: a difference counts only where 0 is outside."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "no difference beyond chance"


def compared(
    before: Sequence[float],
    after: Sequence[float],
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> Comparison:
    """Compare two models' scores of the same tasks, in the same order; of several samples of a task, their mean.

    Raises ValueError for none, for two lengths, and for what is no number. The same arguments give the same interval.
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1 or not first.size:
        raise ValueError(f"found {first.size} and {second.size} scores; give one of each task for both")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError("found a score that is no number; leave its task out of both")
    means = resampled_means(second - first, resamples, seed)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Comparison(
        tasks=first.size,
        before=float(first.mean()),
        after=float(second.mean()),
        difference=float((second - first).mean()),
        low=float(low),
        high=float(high),
    )


def resampled_means(values: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Return [resamples] means of as many values as there are, drawn with replacement."""
    draw = np.random.default_rng(seed)
    rows = max(1, DRAWN // values.size)
    means = np.empty(resamples)
    for start in range(0, resamples, rows):
        end = min(start + rows, resamples)
        means[start:end] = values[draw.integers(0, values.size, size=(end - start, values.size))].mean(axis=1)
    return means
