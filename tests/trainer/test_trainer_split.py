"""Context parallel by arithmetic: the ranks' parts tile a pass, and each token sees on its rank what it sees in its row."""

from __future__ import annotations

import collections
import dataclasses
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_layouts import Segment, seen, segments, token_rows

from halo_trainer.data.layout import Layout, joined, row_layout, tree_layout
from halo_trainer.data.split import Shard, group_packs, is_split, placed, room, shard, slices

SLOWLY = settings(max_examples=150, deadline=None)
RANKS = st.sampled_from([2, 4, 8])


def layouts() -> st.SearchStrategy[list[Layout]]:
    """Rows and trees, several to a pass."""
    rows = token_rows(40).map(row_layout)
    return st.lists(rows | segments().map(tree_layout), max_size=5)


def numbered(layout: Layout) -> Layout:
    """The same with each token's place for its id, so that one can tell which is which."""
    return dataclasses.replace(layout, ids=array("i", range(len(layout))))


def gathered(parts: list[Shard], rank: int) -> list[int | None]:
    """The tokens whose keys a rank has: the shared ones of all ranks, each padded to the most, and its own others."""
    found: list[int | None] = []
    for part in parts:
        found += [*part.ids[: part.shared], *[None] * (part.most - part.shared)]
    return [*found, *parts[rank].ids[parts[rank].shared :]]


@SLOWLY
@given(rows=layouts(), ranks=RANKS, whole=st.integers(1, 60))
def test_the_parts_tile_a_pass_and_see_what_their_rows_see(rows: list[Layout], ranks: int, whole: int) -> None:
    places = placed(map(len, rows), ranks, whole)
    # All rows side by side are what the parts must add up to; the split ones come first, as they are cut together.
    kinds = [[row for row, at in zip(rows, places, strict=True) if at == kind] for kind in (None, *range(ranks))]
    whole_pass = numbered(joined(row for kind in kinds for row in kind))
    bounds = [0]
    for kind in kinds:
        bounds.append(bounds[-1] + sum(map(len, kind)))
    cut = joined(kinds[0])
    parts = []
    for rank in range(ranks):
        part = shard(numbered(cut), list(map(len, kinds[0])), joined(kinds[1 + rank]), ranks, rank)
        first = bounds[1 + rank]
        if not kinds[0] and not kinds[1 + rank]:
            assert (len(part), list(part.targets), part.queries, part.keys, part.most) == (1, [], (1,), (((0, 1),),), 0)
            continue
        ids = array("i", [*part.ids[: part.shared], *range(first, first + len(part) - part.shared)])
        parts.append(dataclasses.replace(part, ids=ids))

    assert sorted(token for part in parts for token in part.ids) == list(range(len(whole_pass)))
    expected = seen(whole_pass)
    for rank, part in enumerate(parts):
        # Where nothing is split a rank sees its own alone, whoever it is.
        assert list(part.positions) == [len(expected[token]) - 1 for token in part.ids]
        assert sum(part.queries) == len(part)
        source, start = gathered(parts, rank), 0
        for queries, slices_ in zip(part.queries, part.keys, strict=True):
            keys = [source[place] for first, last in slices_ for place in range(first, last)]
            for at in range(queries):
                token = part.ids[start + at]
                assert keys[: len(keys) - queries + at + 1] == expected[token]
            start += queries
    pairs = [
        (part.ids[place], target) for part in parts for place, target in zip(part.predicts, part.targets, strict=True)
    ]
    assert sorted(pairs) == sorted(zip(whole_pass.predicts, whole_pass.targets, strict=True))
    assert {part.most > 0 for part in parts} <= {None in places}
    assert len({part.most for part in parts}) <= 1
    assert all(part.most == 0 or 0 < part.shared <= part.most for part in parts)


@SLOWLY
@given(lengths=st.lists(st.integers(16, 3000), min_size=1, max_size=5), ranks=RANKS)
def test_each_rank_has_the_same_work_of_a_split_row(lengths: list[int], ranks: int) -> None:
    """The same tokens to one a row, and pairs of a query and a key that it sees to a few a token of them."""
    found = slices(lengths, ranks)
    tokens = [sum(end - start for start, end in each) for each in found]
    assert max(tokens) <= sum(-(-length // ranks) for length in lengths)
    assert max(tokens) - min(tokens) <= 2 * len(lengths)
    starts = [sum(lengths[:at]) for at in range(len(lengths))]
    row_of = [max(start for start in starts if start <= place) for place in range(sum(lengths))]
    pairs = [sum(place - row_of[place] + 1 for start, end in each for place in range(start, end)) for each in found]
    assert max(pairs) - min(pairs) <= 2 * sum(lengths)


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 100), min_size=1, max_size=20),
    ranks=RANKS,
    whole=st.integers(8, 60),
    size=st.integers(1, 3),
)
def test_passes_hold_every_row_once_and_no_rank_gets_too_much(
    lengths: list[int], ranks: int, whole: int, size: int
) -> None:
    budget = room(size, max(lengths), ranks, max(whole, 2 * ranks))
    passes = group_packs(range(len(lengths)), lengths, ranks, max(whole, 2 * ranks), budget)
    assert collections.Counter(index for part in passes for index in part) == collections.Counter(range(len(lengths)))
    for part in passes:
        places = placed([lengths[index] for index in part], ranks, max(whole, 2 * ranks))
        for rank in range(ranks):
            own = sum(lengths[index] for index, place in zip(part, places, strict=True) if place == rank)
            cut = [lengths[index] for index, place in zip(part, places, strict=True) if place is None]
            assert own + sum(end - start for start, end in slices(cut, ranks)[rank]) <= budget


def test_by_hand() -> None:
    """Of ten tokens rank 0 has the first and the last pieces, rank 1 those between; the short rows lie whole beside them."""
    assert slices([10], 2) == [[(0, 3), (8, 10)], [(3, 8)]]
    assert placed([10, 4, 3, 3], 2, 8) == [None, 0, 1, 1]
    assert group_packs([0, 1, 2, 3, 4], [4, 10, 3, 3, 8], 2, 8, 9) == [[1, 0, 2], [4, 3]]
    assert (room(2, 10, 2, 8), room(1, 100, 4, 8), room(1, 5, 2, 8)) == (16, 25, 5)


@pytest.mark.parametrize(("length", "whole", "found"), [(8, 8, False), (9, 8, True), (3, 2, False), (4, 2, True)])
def test_a_row_is_split_if_it_is_too_long_and_each_rank_gets_two_tokens(length: int, whole: int, found: bool) -> None:
    assert is_split(length, 2, whole) == found


def test_a_rank_may_have_nothing_that_trains() -> None:
    """The first half of a row's pieces is its prompt, and a one-token answer lies on one rank alone."""
    tree = [Segment(array("i", range(8)), bytearray([0] * 7 + [1]), None)]
    parts = [shard(tree_layout(tree), [8], joined([]), 2, rank) for rank in range(2)]
    assert [(list(part.predicts), list(part.targets)) for part in parts] == [([2], [7]), ([], [])]
