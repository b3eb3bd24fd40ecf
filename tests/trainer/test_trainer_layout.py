"""Layouts: every token sees what it sees in its own row, at the same position, and predicts the same targets."""

from __future__ import annotations

import collections
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_layouts import Segment, path, seen, segments, token_rows

from halo_trainer.data.batches import micro_batches, packs, rank_share
from halo_trainer.data.layout import joined, packed, row_layout, tree_layout
from halo_trainer.data.template import TokenRow


@given(tree=segments())
def test_a_token_of_a_tree_sees_its_own_row(tree: list[Segment]) -> None:
    layout = tree_layout(tree)
    sight = seen(layout)
    at = 0
    for place, segment in enumerate(tree):
        row = [token for part in path(tree, place) for token in part.ids]
        for offset in range(len(segment.ids)):
            own = row[: len(row) - len(segment.ids) + offset + 1]
            assert [layout.ids[key] for key in sight[at]] == own
            assert layout.positions[at] == len(own) - 1
            at += 1


@given(tree=segments())
def test_a_trained_token_is_predicted_by_the_one_before_it_on_its_path(tree: list[Segment]) -> None:
    layout = tree_layout(tree)
    sight = seen(layout)
    trained = [trains for segment in tree for trains in segment.trained]
    expected = [(sight[at][-2], layout.ids[at]) for at in range(len(layout)) if trained[at] and len(sight[at]) > 1]
    assert list(zip(layout.predicts, layout.targets, strict=True)) == expected


@given(tree=segments())
def test_runs_attend_to_what_their_tokens_see(tree: list[Segment]) -> None:
    """Queries are the last of their run's keys, each seeing the keys up to itself."""
    layout = tree_layout(tree)
    attended = []
    for run in layout.runs:
        keys = [key for start, end in run.keys for key in range(start, end)]
        first = len(keys) - (run.end - run.start)
        attended += [keys[: first + query + 1] for query in range(run.end - run.start)]
    assert attended == seen(layout)


@given(rows=st.lists(token_rows(), min_size=1, max_size=6))
def test_packed_rows_see_themselves_alone(rows: list[TokenRow]) -> None:
    layout = packed(rows)
    sight = iter(seen(layout))
    expected = collections.Counter()
    start = 0
    for row in rows:
        for offset in range(len(row)):
            assert next(sight) == list(range(start, start + offset + 1))
            assert layout.positions[start + offset] == offset
            if offset and row.trained[offset]:
                expected[start + offset - 1, row.ids[offset]] += 1
        start += len(row)
    assert collections.Counter(zip(layout.predicts, layout.targets, strict=True)) == expected
    assert [(run.start, run.end, run.before) for run in layout.runs] == [
        (span.start, span.end, ()) for span in layout.spans
    ]


@given(trees=st.lists(segments(3), min_size=1, max_size=3))
def test_joined_trees_are_one_tree_of_all(trees: list[list[Segment]]) -> None:
    together: list[Segment] = []
    for tree in trees:
        first = len(together)
        together += [
            Segment(part.ids, part.trained, None if part.parent is None else part.parent + first) for part in tree
        ]
    assert joined(map(tree_layout, trees)) == tree_layout(together)


def test_a_chain_is_the_row() -> None:
    row = TokenRow(array("i", [1, 2, 3, 4, 5]), bytearray([1, 0, 1, 1, 0]))
    chain = tree_layout([Segment(row.ids[:2], row.trained[:2], None), Segment(row.ids[2:], row.trained[2:], 0)])
    alone = row_layout(row)
    assert [(run.start, run.end, run.before) for run in chain.runs] == [(0, 5, ())]
    assert (chain.ids, chain.positions, chain.runs) == (alone.ids, alone.positions, alone.runs)
    assert (chain.predicts, chain.targets) == (alone.predicts, alone.targets)
    assert list(zip(alone.predicts, alone.targets, strict=True)) == [(1, 3), (2, 4)]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ([Segment(array("i"), bytearray(), None)], "segment 0 has 0 tokens and marks 0"),
        ([Segment(array("i", [1, 2]), bytearray([1]), None)], "segment 0 has 2 tokens and marks 1"),
        ([Segment(array("i", [1]), bytearray([1]), 0)], "segment 0 follows segment 0, which is not before it"),
        ([Segment(array("i", [1]), bytearray([1]), -1)], "segment 0 follows segment -1, which is not before it"),
    ],
)
def test_what_is_no_tree_is_refused(tree: list[Segment], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tree_layout(tree)


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    world=st.integers(1, 4),
    size=st.integers(1, 5),
    beyond=st.integers(0, 60),
)
def test_packs_need_neither_more_memory_nor_more_passes_than_padding(
    lengths: list[int], world: int, size: int, beyond: int
) -> None:
    """The longest row of the data set may be in no step at all."""
    budget = size * max(*lengths, beyond, 1)
    indices = list(range(len(lengths)))[::-1]
    for rank in range(world):
        share = rank_share(indices, lengths, rank, world)
        passes = packs(share, lengths, budget)
        assert collections.Counter(index for part in passes for index in part) == collections.Counter(share)
        assert all(sum(lengths[index] for index in part) <= budget for part in passes)
        assert all(passes)
        assert len(passes) <= len(micro_batches(share, size))
        assert passes == packs(share, lengths, budget)


def test_packs_by_hand() -> None:
    """First-fit decreasing: 6 and 4 fill one pass of ten, then 5, 3 and 2; equal rows keep their order."""
    assert packs([0, 1, 2, 3, 4], [6, 3, 5, 4, 2], 10) == [[0, 3], [2, 1, 4]]
    assert packs([2, 0, 1], [5, 5, 5], 10) == [[2, 0], [1]]
