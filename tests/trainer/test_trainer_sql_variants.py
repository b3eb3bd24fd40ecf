"""Hidden variants: the same for a seed, legal for the schema, and like the rows that are shown."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_trainer.environments.sql_case import case_of, sql_task
from halo_trainer.environments.sql_schema import Value, empty_database, fill, tables_of
from halo_trainer.environments.sql_variants import NoVariant, fill_variant, shown_rows

SCHEMA = """
CREATE TABLE owners (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, city TEXT, born TEXT);
CREATE TABLE pets (
    id INTEGER PRIMARY KEY, owner_id INTEGER NOT NULL REFERENCES owners, mother INTEGER REFERENCES pets(id),
    weight REAL CHECK (weight > 0), vaccinated INTEGER, old INTEGER GENERATED ALWAYS AS (weight > 9)
);
CREATE TABLE visits (pet INTEGER, day TEXT, PRIMARY KEY (pet, day), FOREIGN KEY (pet) REFERENCES pets(id)) WITHOUT ROWID;
CREATE UNIQUE INDEX one_name ON owners(name, city);
"""
SHOWN: dict[str, list[list[Value]]] = {
    "owners": [[i, f"name {i}", ["rome", "oslo"][i % 2], f"19{60 + i}-05-0{i}"] for i in range(1, 7)],
    "pets": [[i, i % 6 + 1, None if i < 4 else i - 3, i * 1.25, i % 2] for i in range(1, 13)],
    "visits": [[i, f"2024-01-{10 + i}"] for i in range(1, 13)],
}


def variant(seed: str, gold: str = "", schema: str = SCHEMA, shown: Any = SHOWN) -> sqlite3.Connection:
    first = empty_database(schema)
    tables = tables_of(first)
    fill(first, tables, shown)
    second = empty_database(schema)
    fill_variant(second, tables, shown_rows(first, tables), gold, seed)
    return second


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=8))
def test_every_seed_gives_rows_that_the_schema_takes_and_that_look_like_those_shown(seed: str) -> None:
    made = variant(seed)
    assert variant(seed).serialize() == made.serialize()
    assert made.execute("PRAGMA foreign_key_check").fetchall() == []
    assert made.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert all(made.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] > 2 for table in SHOWN)
    assert {city for (city,) in made.execute("SELECT DISTINCT city FROM owners")} <= {"rome", "oslo"}
    assert {value for (value,) in made.execute("SELECT DISTINCT vaccinated FROM pets")} <= {0, 1}
    assert made.execute(
        "SELECT COUNT(*) FROM owners WHERE born NOT GLOB '19[5-7][0-9]-[01][0-9]-[0-3][0-9]'"
    ).fetchone() == (0,)
    assert made.execute("SELECT COUNT(*) FROM pets WHERE weight IS NULL OR weight = 0").fetchone() == (0,)
    # What is distinct among the rows shown stays so, constraint or not.
    assert made.execute("SELECT COUNT(*) - COUNT(DISTINCT born) FROM owners").fetchone() == (0,)


def test_numbers_are_drawn_from_beside_those_of_the_gold_query() -> None:
    """Where > and >= differ, some variant has the very number."""
    schema = "CREATE TABLE t (x INTEGER);"
    shown = {"t": [[i % 7 * 100] for i in range(20)]}
    found = [variant(str(n), "SELECT COUNT(*) FROM t WHERE x > 345", schema, shown) for n in range(10)]
    assert sum(bool(one.execute("SELECT COUNT(*) FROM t WHERE x = 345").fetchone()[0]) for one in found) >= 5


def test_nearly_right_answers_are_told_from_right_ones() -> None:
    task = {
        "schema": "CREATE TABLE t (x INTEGER, kind TEXT);",
        "rows": {"t": [[i, "ab"[i % 2]] for i in range(0, 40, 4)]},
        "question": "?",
        "gold": "SELECT COUNT(*) FROM t WHERE x > 17",
    }
    case = case_of(sql_task(task), hidden_variants=True, skip_orphans=True)
    assert case.telling == 3
    wrong = case_of(sql_task(task | {"gold": "SELECT COUNT(*) FROM t WHERE x > 17"}), True, True)
    assert [one.database for one in wrong.held] == [one.database for one in case.held]


def test_two_tables_that_need_each_others_keys_have_no_variant() -> None:
    schema = (
        "CREATE TABLE a (x INTEGER PRIMARY KEY, z INTEGER NOT NULL REFERENCES b(y));"
        "CREATE TABLE b (y INTEGER PRIMARY KEY, z INTEGER NOT NULL REFERENCES a(x));"
    )
    with pytest.raises(NoVariant, match="table a needs keys of b, which has no rows yet"):
        variant("0", "", schema, {"a": [[1, 1], [2, 1]], "b": [[1, 1], [2, 2]]})
    assert variant("0", "", schema.replace("NOT NULL", "", 1), {"a": [[1, 1], [2, 1]], "b": [[1, 1], [2, 2]]})
