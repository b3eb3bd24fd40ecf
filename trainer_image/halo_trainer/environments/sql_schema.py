"""The schema of a SQL task as SQLite reads it, and a database with rows in it, as bytes that are never written again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Value = int | float | str | bytes | None
Rows = Mapping[str, Sequence[Sequence[Value]]]

MOST_TABLES = 32
MOST_ROWS = 5000
# What a schema may do: tables and indexes with all their constraints, but nothing that runs a query or a program.
_SCHEMA_ACTIONS = {
    sqlite3.SQLITE_CREATE_TABLE,
    sqlite3.SQLITE_CREATE_INDEX,
    sqlite3.SQLITE_REINDEX,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_TRANSACTION,
}
_CATALOG = ("sqlite_master", "sqlite_sequence")


class SchemaProblem(ValueError):
    """The schema or its rows make no database; the sentence says what was found and what would do."""


@dataclass(frozen=True)
class Column:
    """A column that rows give a value for."""

    name: str
    # INTEGER, REAL, TEXT, ... as declared; may be empty.
    declared: str
    nullable: bool


@dataclass(frozen=True)
class ForeignKey:
    """Columns whose values are a key of the parent table."""

    columns: tuple[str, ...]
    parent: str
    # Unset for an orphan: the parent is no table, or what is named of it is no key (neither its PRIMARY KEY nor UNIQUE).
    parent_columns: tuple[str, ...] | None


@dataclass(frozen=True)
class Table:
    """A table, its names as they were declared."""

    name: str
    columns: tuple[Column, ...]
    foreign_keys: tuple[ForeignKey, ...]
    # Each set of columns that holds no tuple twice.
    keys: tuple[tuple[str, ...], ...]


def quoted(name: str) -> str:
    """Return a name as SQL writes it whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def empty_database(schema: str) -> sqlite3.Connection:
    """Return a database in memory that has the schema's tables and no rows."""
    if "\0" in schema:
        raise SchemaProblem("payload.schema: found a NUL character; remove it")
    connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=256)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)

    def authorize(action: int, first: str | None, *_: str | None) -> int:
        if action in (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE) and first not in _CATALOG:
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK if action in _SCHEMA_ACTIONS else sqlite3.SQLITE_DENY

    connection.set_authorizer(authorize)
    try:
        connection.executescript(schema)
    except sqlite3.Error as error:
        connection.close()
        denied = "not authorized" in str(error) or "prohibited" in str(error)
        found = "more than CREATE TABLE and CREATE INDEX" if denied else f"what SQLite refuses ({error})"
        raise SchemaProblem(
            f"payload.schema: found {found}; write CREATE TABLE and CREATE INDEX statements alone"
        ) from error
    connection.set_authorizer(None)
    return connection


def tables_of(connection: sqlite3.Connection) -> tuple[Table, ...]:
    """Return every table of the database, in the order of creation."""
    made = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite@_%' ESCAPE '@'"
    )
    names = [str(name) for (name,) in made]
    if not names or len(names) > MOST_TABLES:
        raise SchemaProblem(f"payload.schema: found {len(names)} tables; create 1 to {MOST_TABLES}")
    keys = {name.lower(): _keys(connection, name) for name in names}
    return tuple(
        Table(name, _columns(connection, name), _foreign_keys(connection, name, keys), tuple(keys[name.lower()]))
        for name in names
    )


def fill(connection: sqlite3.Connection, tables: Iterable[Table], rows: Rows) -> None:
    """Insert the rows that a task shows."""
    known = {table.name.lower(): table for table in tables}
    if sum(map(len, rows.values())) > MOST_ROWS:
        raise SchemaProblem(
            f"payload.rows: found {sum(map(len, rows.values()))} rows; keep at most {MOST_ROWS} in all tables"
        )
    for name, values in rows.items():
        table = known.get(name.lower())
        if table is None:
            raise SchemaProblem(
                f"payload.rows: found {name!r}, which is no table of the schema; name one of {', '.join(known)}"
            )
        for index, row in enumerate(values):
            if len(row) != len(table.columns):
                raise SchemaProblem(
                    f"payload.rows: found in {name}[{index}] {len(row)} values; give one for each of its {len(table.columns)} columns"
                )
            try:
                connection.execute(insertion(table), row)
            except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
                words = (
                    f"payload.rows: found in {name}[{index}] what SQLite refuses ({error}); mend the row or the schema"
                )
                raise SchemaProblem(words) from error


def insertion(table: Table) -> str:
    """Return the statement that inserts one row."""
    names = ", ".join(quoted(column.name) for column in table.columns)
    return f"INSERT INTO {quoted(table.name)} ({names}) VALUES ({', '.join('?' * len(table.columns))})"


def _columns(connection: sqlite3.Connection, table: str) -> tuple[Column, ...]:
    found = connection.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
    # The last is 2 or 3 for a generated column, which takes no value.
    return tuple(
        Column(str(name), str(declared).upper(), not required and not key)
        for _, name, declared, required, _, key, hidden in found
        if not hidden
    )


def _keys(connection: sqlite3.Connection, table: str) -> list[tuple[str, ...]]:
    """Return the columns of the PRIMARY KEY first, if there is one, and then of each UNIQUE."""
    info = connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    primary = tuple(str(row[1]) for row in sorted(info, key=lambda row: row[5]) if row[5])
    found = [primary] if primary else []
    for _, index, unique, _, partial in connection.execute(f"PRAGMA index_list({quoted(table)})").fetchall():
        names = tuple(row[2] for row in connection.execute(f"PRAGMA index_info({quoted(index)})"))
        if unique and not partial and None not in names and names not in found:
            found.append(names)
    return found


def _foreign_keys(
    connection: sqlite3.Connection, table: str, keys: Mapping[str, list[tuple[str, ...]]]
) -> tuple[ForeignKey, ...]:
    parts: dict[int, list[tuple[int, str, str, str | None]]] = {}
    for number, order, parent, column, named, *_ in connection.execute(f"PRAGMA foreign_key_list({quoted(table)})"):
        parts.setdefault(number, []).append((order, parent, column, named))
    found = []
    for number in sorted(parts, reverse=True):
        ordered = sorted(parts[number])
        columns = tuple(column for _, _, column, _ in ordered)
        parent = ordered[0][1]
        found.append(
            ForeignKey(columns, parent, _parent_key([named for *_, named in ordered], keys.get(parent.lower())))
        )
    return tuple(found)


def _parent_key(named: list[str | None], keys: list[tuple[str, ...]] | None) -> tuple[str, ...] | None:
    """Return the key of the parent that is meant, as SQLite finds it: what is named, else its PRIMARY KEY."""
    if not keys:
        return None
    if None in named:
        return keys[0] if len(keys[0]) == len(named) else None
    wanted = tuple(str(name) for name in named)
    same = {name.lower() for name in wanted}
    return wanted if any({name.lower() for name in key} == same for key in keys) else None
