"""Runs one SELECT that a model wrote, on a database that is thrown away: within limits of steps, rows, bytes and functions.

The limits that count steps and bytes come first: the same query always meets the same one. What still gets past them (one
instruction of SQLite's that takes for ever) ends with the process that `contained` runs it in.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from halo_trainer.environments.sql_schema import Value

# Instructions of SQLite's virtual machine, some 50 million a second: answers to the questions meant take thousands.
MOST_STEPS = 5_000_000
MOST_ROWS = 2000
# Of one string, and of all cells of a result.
LONGEST_VALUE = 1 << 16
MOST_BYTES = 1 << 20
LONGEST_QUERY = 1 << 14
HEAP_BYTES = 64 << 20
_STEPS_A_LOOK = 1000

_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: LONGEST_VALUE,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: LONGEST_QUERY,
    sqlite3.SQLITE_LIMIT_COLUMN: 256,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 32,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 256,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 1,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
# By name, so that a newer SQLite brings nothing in: pure functions of their arguments, aggregates and windows.
_NAMES = """
abs avg ceil ceiling char coalesce concat concat_ws count cume_dist date datetime dense_rank exp first_value floor format glob
group_concat hex ifnull iif instr julianday lag last_value lead length like likelihood likely ln log log10 log2 lower ltrim max
min mod nth_value ntile nullif percent_rank pi pow power printf quote rank replace round row_number rtrim sign sqrt strftime
string_agg substr substring sum time total trim trunc typeof unicode unixepoch unlikely upper
"""
FUNCTIONS = frozenset(_NAMES.split())
_TIME_FUNCTIONS = {"date": 0, "time": 0, "datetime": 0, "julianday": 0, "unixepoch": 0, "strftime": 1}
# Newer SQLites take the modifier alone for the present, to the millisecond.
_PRESENT = ("now", "subsec", "subsecond")
_CATALOG = {"sqlite_master", "sqlite_schema"}
_ACTIONS = {
    getattr(sqlite3, f"SQLITE_{name}"): words
    for name, words in {
        "ATTACH": "ATTACH, or VACUUM, which needs it",
        "DETACH": "DETACH",
        "PRAGMA": "PRAGMA",
        "TRANSACTION": "BEGIN, COMMIT or ROLLBACK",
        "SAVEPOINT": "SAVEPOINT",
        "INSERT": "INSERT",
        "UPDATE": "UPDATE",
        "DELETE": "DELETE",
        "ANALYZE": "ANALYZE",
        "REINDEX": "REINDEX",
        "ALTER_TABLE": "ALTER TABLE",
    }.items()
}


class QueryRefused(Exception):
    """The query gives no result, and that is its own fault: the sentence says why."""


@dataclass(frozen=True)
class Result:
    """What a query gave; `more` where the rows were cut."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    more: bool = False


@dataclass(frozen=True)
class Limits:
    """How much a query may take; the rest is the same for all."""

    steps: int = MOST_STEPS
    rows: int = MOST_ROWS
    # More rows are left off, in place of refusing the query.
    cut: bool = False


def select(database: bytes, query: str, limits: Limits | None = None) -> Result:
    """Return what one SELECT gives on a database; whatever else the query is or does raises QueryRefused."""
    limits = limits or Limits()
    if "\0" in query:
        raise QueryRefused("the query has a NUL character")
    if not query.strip():
        raise QueryRefused("there is no query")
    try:
        encoded = query.encode()
    except UnicodeEncodeError as error:
        raise QueryRefused("the query has half a surrogate pair") from error
    if len(encoded) > LONGEST_QUERY:
        raise QueryRefused(f"the query has more than {LONGEST_QUERY} bytes")
    connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=0)
    try:
        connection.deserialize(database)
        return _fetch(connection, query, limits)
    finally:
        connection.close()


def limit_heap() -> None:
    """Bound what SQLite may allocate in this process; nothing raises it again."""
    connection = sqlite3.connect(":memory:")
    connection.execute(f"PRAGMA hard_heap_limit = {HEAP_BYTES}")
    connection.close()


def _fetch(connection: sqlite3.Connection, query: str, limits: Limits) -> Result:
    tables = {
        str(name).lower() for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    virtual = {str(name).lower() for (name,) in connection.execute("PRAGMA module_list")}
    watch = _Watch(tables | _CATALOG, virtual, limits.steps)
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA query_only = ON")
    connection.text_factory = lambda text: text.decode("utf-8", "backslashreplace")
    for name, format_first in _TIME_FUNCTIONS.items():
        connection.create_function(name, -1, functools.partial(_told_time, name, format_first), deterministic=True)
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    connection.set_authorizer(watch.authorize)
    connection.set_progress_handler(watch.step, _STEPS_A_LOOK)
    try:
        cursor = connection.execute(query)
        if cursor.description is None:
            raise QueryRefused("the query is no SELECT")
        columns = tuple(str(column[0]) for column in cursor.description)
        return _rows(cursor, columns, limits)
    except MemoryError as error:
        raise QueryRefused(f"the query needs more than {HEAP_BYTES >> 20} MiB of memory") from error
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        raise QueryRefused(watch.words(error)) from error
    finally:
        # A cursor that goes later must not ask them.
        connection.set_progress_handler(None, 0)
        connection.set_authorizer(None)


def _rows(cursor: sqlite3.Cursor, columns: tuple[str, ...], limits: Limits) -> Result:
    rows: list[tuple[Value, ...]] = []
    size = 0
    for row in cursor:
        size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
        if len(rows) == limits.rows or size > MOST_BYTES:
            if limits.cut:
                return Result(columns, tuple(rows), more=True)
            what = f"{MOST_BYTES >> 20} MiB of values" if size > MOST_BYTES else f"{limits.rows} rows"
            raise QueryRefused(f"the query gives more than {what}")
        rows.append(row)
    return Result(columns, tuple(rows))


class _Watch:
    """Says what SQLite may do for a query, and stops it; remembers why."""

    def __init__(self, tables: set[str], virtual: set[str], steps: int) -> None:
        self._tables = tables
        self._virtual = virtual
        self._left = self._steps = steps
        self._denied = ""

    def authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ:
            if self._may_read((first or "").lower(), second or ""):
                return sqlite3.SQLITE_OK
            denied = f"{first}, which is no table of the task"
        elif action == sqlite3.SQLITE_FUNCTION:
            if (second or "").lower() in FUNCTIONS:
                return sqlite3.SQLITE_OK
            denied = f"the function {second}"
        elif first in _CATALOG or first == "sqlite_temp_master":
            denied = "a table, view or index that it makes, or a virtual table"
        else:
            denied = _ACTIONS.get(action, "a statement that changes the database")
        self._denied = self._denied or denied
        return sqlite3.SQLITE_DENY

    def _may_read(self, table: str, column: str) -> bool:
        # Without a column it may be the name of a subquery, which COUNT(*) reads nothing of.
        own = not column and table not in self._virtual and not table.startswith(("pragma_", "sqlite_"))
        return own or table in self._tables

    def step(self) -> int:
        self._left -= _STEPS_A_LOOK
        return int(self._left <= 0)

    def words(self, error: Exception) -> str:
        """Return why the query was refused, in words."""
        text = str(error)
        if self._denied:
            return f"the query may only SELECT from the task's tables, and uses {self._denied}"
        if self._left <= 0:
            return f"the query takes more than {self._steps} steps"
        if "one statement" in text:
            return "there is more than one statement"
        if "too big" in text or "too large" in text:
            return f"the query makes a value of more than {LONGEST_VALUE} bytes"
        return f"SQLite refuses the query: {' '.join(text.split())[:300]}"


@functools.cache
def _clock() -> Callable[..., Value]:
    """Return SQLite's own time functions."""
    connection = sqlite3.connect(":memory:")

    def told(name: str, arguments: tuple[Value, ...]) -> Value:
        marks = ", ".join("?" * len(arguments))
        row: tuple[Value, ...] = connection.execute(f"SELECT {name}({marks})", arguments).fetchone()
        return row[0]

    return told


def _told_time(name: str, format_first: int, *arguments: Value) -> Value:
    """Return what SQLite's time function of this name does; what asks for the present is NULL: no score may depend on it."""
    value = arguments[format_first] if len(arguments) > format_first else "now"
    if isinstance(value, str) and value.strip().lower() in _PRESENT:
        return None
    return _clock()(name, arguments)
