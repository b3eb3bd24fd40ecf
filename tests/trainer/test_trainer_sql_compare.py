"""When two results are the same, over random rows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_trainer.environments.sql_compare import difference, is_ordered, same_number
from halo_trainer.environments.sql_schema import Value

VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-3, 3),
    st.floats(allow_nan=False),
    st.sampled_from([0.1 + 0.2, 0.3, 1.0, 1 / 3, 2.5]),
    st.text(max_size=3),
    st.binary(max_size=2),
)
ROWS = st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[VALUES] * width), max_size=6))


def same(gold: list[tuple[Value, ...]], found: list[tuple[Value, ...]], ordered: bool = False) -> bool:
    widths = [len(rows[0]) if rows else 1 for rows in (gold, found)]
    return difference(gold, found, (widths[0], widths[1]), ordered) is None


@settings(max_examples=60, deadline=None)
@given(ROWS, st.randoms(use_true_random=False), st.booleans())
def test_rows_in_another_order_are_the_same_only_where_there_is_none(
    rows: list[tuple[Value, ...]], random, ordered
) -> None:  # type: ignore[no-untyped-def]
    shuffled = random.sample(rows, len(rows))
    assert same(rows, rows, ordered)
    assert same(rows, shuffled)
    if same(rows, shuffled, ordered=True):
        assert all(same([one], [other]) for one, other in zip(rows, shuffled, strict=True))


@settings(max_examples=60, deadline=None)
@given(ROWS, ROWS)
def test_it_is_the_same_from_both_sides(one: list[tuple[Value, ...]], other: list[tuple[Value, ...]]) -> None:
    assert same(one, other) == same(other, one)


@settings(max_examples=60, deadline=None)
@given(ROWS.filter(bool), st.data())
def test_duplicates_count(rows: list[tuple[Value, ...]], data: st.DataObject) -> None:
    again = data.draw(st.sampled_from(rows))
    assert not same(rows, [*rows, again])
    assert not same([*rows, again], rows)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_sums_in_another_order_are_the_same_number(values: list[float], random) -> None:  # type: ignore[no-untyped-def]
    exact = math.fsum(values)
    assert same_number(exact, sum(random.sample(values, len(values)))) or abs(exact) < 1e-3
    assert same([(exact, "a")], [(exact * (1 + 1e-12), "a")])


@pytest.mark.parametrize(
    ("gold", "found", "is_same"),
    [
        ([(1,)], [(1.0,)], True),
        ([(1,)], [("1",)], False),
        ([(None,)], [(0,)], False),
        ([(None,)], [(None,)], True),
        ([("",)], [(None,)], False),
        ([("Rome",)], [("rome",)], False),
        ([(b"a",)], [("a",)], False),
        ([(2**62,)], [(2**62 + 1,)], False),
        ([(1_700_000_000,)], [(1_700_000_001,)], False),
        ([(0.1 + 0.2,)], [(0.3,)], True),
        ([(1 / 3,)], [(0.333,)], False),
        ([(math.inf,)], [(1e308,)], False),
        ([(1, 2)], [(2, 1)], False),
        ([(0.3, "a"), (0.1 + 0.2, "b")], [(0.1 + 0.2, "a"), (0.3, "b")], True),
        ([(1, "a"), (1, "b")], [(1, "a"), (1, "a")], False),
        ([], [], True),
    ],
)
def test_values(gold: list[tuple[Value, ...]], found: list[tuple[Value, ...]], is_same: bool) -> None:
    assert same(gold, found) is is_same


def test_what_differs_is_told() -> None:
    assert difference([(1,)], [(1, 2)], (1, 2), False) == "2 columns instead of 1"
    assert difference([(1,)], [], (1, 1), False) == "0 rows instead of 1"
    assert difference([(1,), (2,)], [(2,), (1,)], (1, 1), True) == "another order"


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("SELECT a FROM t order\n by a LIMIT 1", True),
        ("SELECT a FROM t", False),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT 3)", False),
        ("SELECT SUM(a) OVER (ORDER BY b) FROM t", False),
        ("SELECT 'ORDER BY' FROM t -- ORDER BY a", False),
        ('SELECT "order by" FROM t /* ORDER BY */', False),
        ("WITH x AS (SELECT 1 ORDER BY 1) SELECT * FROM x ORDER BY 1", True),
    ],
)
def test_an_order_is_that_of_the_query_itself(query: str, ordered: bool) -> None:
    assert is_ordered(query) is ordered
