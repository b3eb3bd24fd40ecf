"""Rows on local disk are the rows that were put there, and take memory by their number and not by their tokens."""

from __future__ import annotations

import json
import os
import tracemalloc
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_support import colour_rows, run_file, start

from halo_api.conditions import Reason
from halo_trainer.data.bundle import Segment, Tree
from halo_trainer.data.preference import TokenPair
from halo_trainer.data.row_store import RowStore
from halo_trainer.data.template import TokenRow
from halo_trainer.failures import RunFailure
from halo_trainer.flops import Works, rows_work

Tokens = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans()), min_size=1, max_size=8)


def token_row(tokens: list[tuple[int, bool]]) -> TokenRow:
    return TokenRow(array("i", [token for token, _ in tokens]), bytearray(trains for _, trains in tokens))


def tree(parts: list[tuple[list[tuple[int, bool]], int]]) -> Tree:
    rows = [token_row(tokens) for tokens, _ in parts]
    parents = [choice % at if at and choice else None for at, (_, choice) in enumerate(parts)]
    return Tree(tuple(Segment(row.ids, row.trained, parent) for row, parent in zip(rows, parents, strict=True)))


Kinds = st.one_of(
    st.lists(st.builds(token_row, Tokens)),
    st.lists(st.builds(TokenPair, st.builds(token_row, Tokens), st.builds(token_row, Tokens))),
    st.lists(st.builds(tree, st.lists(st.tuples(Tokens, st.integers(0, 5)), min_size=1, max_size=5))),
)


@given(Kinds)
def test_rows_are_read_as_they_were_written_in_any_order(rows: list[Any]) -> None:
    store: RowStore[Any] = RowStore(iter(rows))
    assert len(store) == len(rows)
    assert list(store) == rows
    assert [store[place] for place in reversed(range(len(rows)))] == rows[::-1]
    with pytest.raises(IndexError):
        store[len(rows)]


def test_memory_grows_with_the_rows_and_not_with_their_tokens() -> None:
    """Of 4 million tokens, which alone are 20 MB."""
    rows, tokens = 20_000, 200
    ids, trained = array("i", range(tokens)), bytearray(tokens)
    tracemalloc.start()
    store = RowStore(TokenRow(ids[:], trained[:]) for _ in range(rows))
    works = Works(rows_work([len(row)], row.trained_tokens) for row in store)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert works[rows - 1] == (tokens, tokens * (tokens + 1) // 2, 0, False)
    # The buffer of the file, and 8 and 24 bytes a row.
    assert peak < (1 << 20) + rows * 40


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_run_on_a_million_rows_takes_little_more_memory_than_one_on_a_hundred_thousand(root: Path) -> None:
    small, large = (peak_of_a_run(root, rows) for rows in (100_000, 1_000_000))
    # Beside those of the test above, 8 bytes a row for the order of an epoch while it is drawn.
    assert large - small < 900_000 * 64


def peak_of_a_run(root: Path, rows: int) -> int:
    """Train two steps of a data set of so many rows as a pod would; return the most memory that took, in bytes."""
    block = "".join(json.dumps(row) + "\n" for row in colour_rows(1000))
    with (root / "data" / "chat.jsonl").open("w") as file:
        file.writelines(block for _ in range(rows // 1000))
    process = start("train", run_file(steps=2), root)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0
    return used.ru_maxrss * 1024


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: open("/dev/full", "wb"))  # noqa: SIM115
    with pytest.raises(RunFailure) as refused:
        RowStore([token_row([(1, True)])])
    assert refused.value.reason == Reason.DISK_FULL
    assert str(refused.value).startswith("the data set's tokens, 17 bytes so far, don't fit into ")


def test_it_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = RowStore([token_row([(1, True)])])
    assert store[0].ids[0] == 1
    assert list(tmp_path.iterdir()) == []
