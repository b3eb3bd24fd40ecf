"""Context parallel: which rank of a group has which tokens of a forward pass, and what they see. Pure.

A row of more tokens than one rank takes whole is split over the ranks of a group; any other row lies whole on one of them. For
G ranks a split row is cut into 2 G pieces of like length, and rank r has pieces r and 2 G - 1 - r: late tokens see more than
early ones, and so the ranks' work is the same (as in Llama 3, arXiv:2407.21783, section 3.3.2). Keys of split rows are gathered
from all ranks; each query then sees the keys that it sees in its row, so that nothing but the place of the work changes.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from halo_trainer.data.layout import Layout

Slice = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of a pass: a flat sequence of T tokens, and K pairs as a layout has them, of its own predicting places.

    It is made of runs: `queries` has the number of each one's tokens, which lie one behind the other, `keys` the slices that it
    sees; its queries are the last of its keys. The slices are places in what all ranks of the group gather, `most` tokens of
    each rank, followed by this rank's own tokens behind its first `shared`, which are the ones that it gives. Where `most` is 0
    nothing is gathered.
    """

    ids: array[int]
    positions: array[int]
    predicts: array[int]
    targets: array[int]
    queries: tuple[int, ...]
    keys: tuple[tuple[Slice, ...], ...]
    shared: int
    most: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def whole(self) -> tuple[int, ...]:
        """The tokens of each run behind those that it shares: of its own rows, where they don't fork."""
        ends = itertools.accumulate(self.queries)
        return tuple(queries for queries, end in zip(self.queries, ends, strict=True) if end > self.shared)


def is_split(length: int, ranks: int, whole: int) -> bool:
    """Whether a row of that many tokens is split; one of fewer than two tokens a rank never is, so that each has some."""
    return length > whole and length >= 2 * ranks


def placed(lengths: Iterable[int], ranks: int, whole: int) -> list[int | None]:
    """Return the rank that has each row of a pass, None of a split one: each goes where the fewest tokens are."""
    load = [0] * ranks
    found: list[int | None] = []
    for length in lengths:
        found.append(None if is_split(length, ranks, whole) else load.index(min(load)))
        load = _with(load, length, whole)
    return found


def group_packs(share: Sequence[int], lengths: Sequence[int], ranks: int, whole: int, budget: int) -> list[list[int]]:
    """Cut a group's rows into passes in which `placed` gives no rank more than `budget` tokens, by first-fit decreasing."""
    found: list[list[int]] = []
    loads: list[list[int]] = []
    for index in sorted(share, key=lambda index: -lengths[index]):
        added = [_with(load, lengths[index], whole) for load in loads]
        place = next((place for place, load in enumerate(added) if max(load) <= budget), len(found))
        if place == len(found):
            found.append([])
            loads.append([0] * ranks)
            added.append(_with(loads[place], lengths[index], whole))
        found[place].append(index)
        loads[place] = added[place]
    return found


def room(size: int, longest: int, ranks: int, whole: int) -> int:
    """Return the tokens of a pass on each rank that take no more memory than `size` rows that a rank has whole, or its part of the longest."""
    return size * max(min(longest, whole), -(-longest // ranks))


def _with(load: list[int], length: int, whole: int) -> list[int]:
    """Return the tokens that each rank has with one more row."""
    if is_split(length, len(load), whole):
        return [tokens + -(-length // len(load)) for tokens in load]
    least = load.index(min(load))
    return [tokens + length * (rank == least) for rank, tokens in enumerate(load)]


def slices(lengths: Iterable[int], ranks: int) -> list[list[Slice]]:
    """Return what each rank has of rows that lie one behind the other and are all split, in their order."""
    found: list[list[Slice]] = [[] for _ in range(ranks)]
    start = 0
    for length in lengths:
        # The first pieces are a token longer, so that no rank has more than the ceiling of its share.
        each, longer = divmod(length, 2 * ranks)
        ends = [start + piece * each + min(piece, longer) for piece in range(2 * ranks + 1)]
        for rank, mine in enumerate(found):
            mine += [(ends[piece], ends[piece + 1]) for piece in (rank, 2 * ranks - 1 - rank)]
        start += length
    return [_merged(mine) for mine in found]


def shard(split: Layout, lengths: Sequence[int], own: Layout, ranks: int, rank: int) -> Shard:
    """Return a rank's part of a pass: of the rows that are `split`, of these lengths, and of its `own`, which it has whole."""
    every = slices(lengths, ranks)
    counts = [sum(end - start for start, end in each) for each in every]
    most = max(counts)
    homes: list[tuple[int, int, int]] = []
    for other, each in enumerate(every):
        place = other * most
        for start, end in each:
            homes.append((start, end, place))
            place += end - start
    homes.sort()

    ids, positions, predicts, targets = (array("i") for _ in range(4))
    local = array("i", [-1]) * len(split)
    for start, end in every[rank]:
        local[start:end] = array("i", range(len(ids), len(ids) + end - start))
        ids.extend(split.ids[start:end])
        positions.extend(split.positions[start:end])
    for place, target in zip(split.predicts, split.targets, strict=True):
        if local[place] >= 0:
            predicts.append(local[place])
            targets.append(target)
    runs = [
        (min(end, run.end) - max(start, run.start), _moved((*run.before, (run.start, min(end, run.end))), homes))
        for start, end in every[rank]
        for run in split.runs
        if max(start, run.start) < min(end, run.end)
    ]

    shift = ranks * most
    runs += [(run.end - run.start, tuple((start + shift, end + shift) for start, end in run.keys)) for run in own.runs]
    ids.extend(own.ids)
    positions.extend(own.positions)
    predicts.extend(place + counts[rank] for place in own.predicts)
    targets.extend(own.targets)
    if not ids:
        # A token that sees itself and predicts nothing: with that a rank can go through the pass like the others.
        ids, positions, runs = array("i", [0]), array("i", [0]), [(1, ((0, 1),))]
    queries, keys = zip(*runs, strict=True)
    return Shard(ids, positions, predicts, targets, queries, keys, counts[rank], most)


def _moved(keys: Iterable[Slice], homes: Sequence[tuple[int, int, int]]) -> tuple[Slice, ...]:
    """Return where slices of the split rows lie in what is gathered."""
    return tuple(
        _merged(
            (place + max(first, start) - start, place + min(last, end) - start)
            for first, last in keys
            for start, end, place in homes
            if max(first, start) < min(last, end)
        )
    )


def _merged(parts: Iterable[Slice]) -> list[Slice]:
    """Join slices that follow each other at once."""
    found: list[Slice] = []
    for start, end in parts:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found
