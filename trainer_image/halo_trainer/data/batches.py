"""Which rows a step trains, and in which forward passes. Pure: the step and the seed alone decide it.

The rows of a step are those of its place in an endless stream of epochs, each shuffled by (seed, epoch). So the data
cursor is the step itself, a resumed run can't skip or repeat a row, and neither ranks nor micro-batches change what a step sees.
"""

from __future__ import annotations

import functools
import random
from array import array
from collections.abc import Callable, Sequence

from halo_trainer.seeds import derived_seed


def step_rows(rows: int, batch: int, seed: int, step: int) -> list[int]:
    """Return the indices of the `batch` rows of step `step` (from 0)."""
    return stream_rows(rows, seed, step * batch, batch)


def stream_rows(rows: int, seed: int, first: int, count: int) -> list[int]:
    """Return the indices at `count` places of the stream, from place `first` on."""
    return [_epoch(rows, seed, place // rows)[place % rows] for place in range(first, first + count)]


def rank_share(indices: Sequence[int], lengths: Sequence[int], rank: int, world: int) -> list[int]:
    """Return a rank's rows of a step, longest first; dealt out by length, so that the ranks' work is alike."""
    by_length = sorted(range(len(indices)), key=lambda place: (-lengths[indices[place]], place))
    return [indices[place] for place in by_length[rank::world]]


def micro_batches(share: Sequence[int], size: int) -> list[list[int]]:
    """Cut a rank's rows, sorted by length, into forward passes of rows of like length: the least padding."""
    return [list(share[start : start + size]) for start in range(0, len(share), size)]


def packs(share: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Cut a rank's rows into forward passes of at most `budget` tokens, by first-fit decreasing.

    With a budget of m times the longest row, there are no more passes than micro-batches of m rows: a pass of fewer than m rows
    has room for any other.
    """
    found: list[list[int]] = []
    room: list[int] = []
    for index in sorted(share, key=lambda index: -lengths[index]):
        place = next((place for place, left in enumerate(room) if left >= lengths[index]), len(room))
        if place == len(room):
            found.append([])
            room.append(budget)
        found[place].append(index)
        room[place] -= lengths[index]
    return found


def lockstep(
    indices: Sequence[int],
    lengths: Sequence[int],
    rank: int,
    world: int,
    cut: Callable[[list[int]], list[list[int]]],
) -> list[list[int] | None]:
    """Return a rank's forward passes of a step, as `cut` makes them of its rows, and None for each that it makes for the others.

    So they are as many on every rank, for a base whose every pass waits for all of them.
    """
    passes = [cut(rank_share(indices, lengths, each, world)) for each in range(world)]
    return [*passes[rank]] + [None] * (max(map(len, passes)) - len(passes[rank]))


@functools.lru_cache(maxsize=2)
def _epoch(rows: int, seed: int, epoch: int) -> Sequence[int]:
    order = array("i", range(rows))
    random.Random(derived_seed(seed, "data", epoch)).shuffle(order)
    return order
