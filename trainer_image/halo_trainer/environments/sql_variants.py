"""Hidden variants of a SQL task's database: the same schema with other rows, drawn by seed, that look like the ones shown.

An answer with hard-coded values, or one that is right for the rows shown alone, gives other rows than the gold query there.
Values are drawn column by column: categories from those shown, numbers and days from about their range, and often from beside
a number of the gold query, where `>` and `>=` differ. What is distinct among the rows shown stays distinct, NULL stays about as
frequent, and keys of a parent table are drawn from its rows, some of which get no child.
"""

from __future__ import annotations

import datetime
import re
import sqlite3
from collections.abc import Sequence
from random import Random

from halo_trainer.environments.sql_schema import Column, ForeignKey, Table, Value, insertion, quoted

MOST_ROWS = 60
_TRIES = 30
_NEAR_GOLD = 0.2
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}$")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")


class NoVariant(Exception):
    """No rows of this kind can be drawn for the schema; the sentence says which table or key is in the way."""


def fill_variant(
    connection: sqlite3.Connection,
    tables: Sequence[Table],
    shown: dict[str, list[tuple[Value, ...]]],
    gold: str,
    seed: str,
) -> None:
    """Insert rows into an empty database; `shown` has each table's rows of the visible one. Same arguments, same rows.

    A foreign key without parent_columns is an orphan: its columns are drawn as if it weren't there.
    """
    random = Random(seed)
    numbers = [float(text) if "." in text else int(text) for text in _NUMBER.findall(gold)]
    made: dict[str, list[dict[str, Value]]] = {}
    for table in _parents_first(tables):
        rows = shown[table.name]
        if rows:
            made[table.name.lower()] = _fill_table(connection, table, rows, numbers, made, random)


def orphan(tables: Sequence[Table]) -> tuple[Table, ForeignKey] | None:
    """Return the first foreign key that names no key of a parent."""
    return next(((table, key) for table in tables for key in table.foreign_keys if key.parent_columns is None), None)


def _parents_first(tables: Sequence[Table]) -> list[Table]:
    """Return the tables so that each comes after those it has keys of, as far as there is such an order."""
    left, done = list(tables), set[str]()
    ordered: list[Table] = []
    names = {table.name.lower() for table in tables}
    while left:
        ready = next((t for t in left if not _parents(t, names) - done - {t.name.lower()}), left[0])
        left.remove(ready)
        done.add(ready.name.lower())
        ordered.append(ready)
    return ordered


def _parents(table: Table, names: set[str]) -> set[str]:
    return {key.parent.lower() for key in table.foreign_keys if key.parent_columns is not None} & names


def _fill_table(
    connection: sqlite3.Connection,
    table: Table,
    rows: Sequence[tuple[Value, ...]],
    numbers: Sequence[float],
    made: dict[str, list[dict[str, Value]]],
    random: Random,
) -> list[dict[str, Value]]:
    count = max(1, min(MOST_ROWS, round(len(rows) * random.uniform(0.7, 1.7)) + random.randint(0, 2)))
    pools = [
        _Pool(column, [row[index] for row in rows], numbers, count, random)
        for index, column in enumerate(table.columns)
    ]
    done: list[dict[str, Value]] = []
    # A table may have keys of its own rows.
    made = {**made, table.name.lower(): done}
    statement = insertion(table)
    problem = "no row"
    for _ in range(count):
        for _ in range(_TRIES):
            if any(pool.is_empty for pool in pools):
                break
            row = {column.name: pool.draw(random) for column, pool in zip(table.columns, pools, strict=True)}
            for key in table.foreign_keys:
                row |= _drawn_key(table, key, made, row, random)
            try:
                connection.execute(statement, list(row.values()))
            except (sqlite3.Error, OverflowError) as error:
                # A key that is there already, or a CHECK.
                problem = str(error)
                continue
            done.append(row)
            break
    if not done:
        raise NoVariant(f"no row could be drawn for table {table.name} that its constraints take ({problem})")
    return done


def _drawn_key(
    table: Table, key: ForeignKey, made: dict[str, list[dict[str, Value]]], row: dict[str, Value], random: Random
) -> dict[str, Value]:
    """Return values of the key's columns: those of one of the parent's rows; the last fifth of these has no child."""
    if key.parent_columns is None:
        return {}
    by_name = {column.name.lower(): column for column in table.columns}
    columns = [by_name[name.lower()] for name in key.columns if name.lower() in by_name]
    if len(columns) < len(key.columns) or any(row[column.name] is None for column in columns):
        return {}
    parents = made.get(key.parent.lower(), [])
    if not parents:
        if all(column.nullable for column in columns):
            return {column.name: None for column in columns}
        if key.parent.lower() == table.name.lower():
            # The first row of all can only be its own parent.
            names = {name.lower(): value for name, value in row.items()}
            return {c.name: names.get(named.lower()) for c, named in zip(columns, key.parent_columns, strict=True)}
        raise NoVariant(f"table {table.name} needs keys of {key.parent}, which has no rows yet")
    parent = parents[random.randrange(max(1, len(parents) - len(parents) // 5))]
    names = {name.lower(): value for name, value in parent.items()}
    return {c.name: names.get(named.lower()) for c, named in zip(columns, key.parent_columns, strict=True)}


class _Pool:
    """The values that one column of one variant draws from."""

    def __init__(
        self, column: Column, shown: Sequence[Value], numbers: Sequence[float], count: int, random: Random
    ) -> None:
        present: list[Value] = [value for value in shown if value is not None]
        distinct: list[Value] = list(dict.fromkeys(present))
        self._nulls = (len(shown) - len(present)) / len(shown) if column.nullable or not present else 0.0
        self._distinct = len(distinct) == len(present) and len(present) > 2
        self._near: list[Value] = []
        if not present:
            self._values: list[Value] = [None]
        elif not self._distinct and (len(distinct) <= 3 or not _vary(distinct)):
            self._values = distinct
        else:
            self._values, self._near = _values(distinct, numbers, count)
        if self._distinct:
            # Drawn without putting back.
            self._values = random.sample(self._values, len(self._values))

    def draw(self, random: Random) -> Value:
        if self._nulls and random.random() < self._nulls:
            return None
        if not self._distinct:
            pool = self._near if self._near and random.random() < _NEAR_GOLD else self._values
            return random.choice(pool)
        return self._values.pop()

    @property
    def is_empty(self) -> bool:
        """Whether a distinct column has run out of values: constraints throw some away."""
        return not self._values


def _vary(distinct: Sequence[Value]) -> bool:
    """Whether other values than those shown make sense: numbers and days; a category's are what they are."""
    return all(isinstance(v, int | float) for v in distinct) or _are_days(distinct)


def _are_days(values: Sequence[Value]) -> bool:
    return all(isinstance(value, str) and _DAY.match(value) for value in values)


def _values(distinct: Sequence[Value], numbers: Sequence[float], count: int) -> tuple[list[Value], list[Value]]:
    """Return enough values like those shown for `count` distinct ones, and those beside a number of the gold query."""
    if _are_days(distinct):
        try:
            return _days([str(value) for value in distinct], count), []
        except ValueError:
            pass
    if all(isinstance(value, int) for value in distinct):
        return _whole([value for value in distinct if isinstance(value, int)], numbers, count)
    if all(isinstance(value, int | float) for value in distinct):
        return _real([value for value in distinct if isinstance(value, int | float)], numbers, count)
    texts = [value for value in distinct if isinstance(value, str)]
    return [*distinct, *(f"{text} {tail}" for tail in _tails(count // max(1, len(texts)) + 1) for text in texts)], []


def _tails(count: int) -> list[str]:
    return [chr(ord("A") + index % 26) + str(index // 26 or "") for index in range(count)]


def _days(distinct: Sequence[str], count: int) -> list[Value]:
    days = sorted(datetime.date.fromisoformat(value).toordinal() for value in distinct)
    span = max(days[-1] - days[0], 4 * count)
    first = max(1, days[0] - span // 8)
    return [
        datetime.date.fromordinal(day).isoformat()
        for day in range(first, days[-1] + span // 4 + 1, max(1, span // 400))
    ]


def _whole(distinct: Sequence[int], numbers: Sequence[float], count: int) -> tuple[list[Value], list[Value]]:
    low, high = min(distinct), max(distinct)
    span = max(high - low, 4, 2 * count)
    first = low - span // 4
    first = max(first, min(low, 1)) if low >= 0 else first
    last = min(high + span // 4 + (2 * count if high - low < 2 * count else 0), 2**63 - 1)
    first = max(first, -(2**63))
    step = max(1, (last - first) // 4000)
    near = [
        int(n) + by for n in numbers if low - span <= n <= high + span for by in (-1, 0, 1) if first <= n + by <= last
    ]
    return list(range(first, last + 1, step)), list(near)


def _real(distinct: Sequence[float], numbers: Sequence[float], count: int) -> tuple[list[Value], list[Value]]:
    places = min(4, max(len(repr(float(value)).partition(".")[2].rstrip("0")) for value in distinct))
    low, high = min(distinct), max(distinct)
    span = max(high - low, 4 * count / 10**places)
    first = max(low - span / 4, 0.0) if low >= 0 else low - span / 4
    steps = max(400, 4 * count)
    drawn = dict.fromkeys(round(first + (high + span / 4 - first) * at / steps, places) for at in range(steps + 1))
    unit = 10.0**-places
    near = [round(n + by * unit, places) for n in numbers if low - span <= n <= high + span for by in (-1, 0, 1)]
    return list(drawn), list(near)


def shown_rows(connection: sqlite3.Connection, tables: Sequence[Table]) -> dict[str, list[tuple[Value, ...]]]:
    """Return the rows of each table, in the order of their columns."""
    return {
        table.name: connection.execute(
            f"SELECT {', '.join(quoted(column.name) for column in table.columns)} FROM {quoted(table.name)}"
        ).fetchall()
        for table in tables
    }
