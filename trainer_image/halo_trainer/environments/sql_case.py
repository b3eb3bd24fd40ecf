"""A SQL task as its data set has it, and what answers to it are held to: gold results on the database shown and on variants."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from halo_trainer.environments.sql_compare import difference, is_ordered
from halo_trainer.environments.sql_sandbox import QueryRefused, Result, select
from halo_trainer.environments.sql_schema import (
    SchemaProblem,
    Table,
    Value,
    empty_database,
    fill,
    tables_of,
)
from halo_trainer.environments.sql_variants import NoVariant, fill_variant, orphan, shown_rows

VARIANTS = 3
# So many are drawn at most, until three tell answers apart.
DRAWS = 9
LONGEST_QUESTION = 4000
FIELDS = ("schema", "rows", "question", "gold", "style")
SHAPE = 'write {"schema": "CREATE TABLE ...", "rows": {"pets": [["Rex", 3]]}, "question": "...", "gold": "SELECT ..."} as payload'


@dataclass(frozen=True)
class SqlTask:
    """A question about a database, and a query that answers it."""

    schema: str
    rows: dict[str, list[list[Value]]]
    question: str
    gold: str
    # compact: names and the question alone, in few tokens, one turn without tools.
    style: Literal["chat", "compact"] = "chat"


@dataclass(frozen=True)
class Held:
    """One database that answers are run on, and the gold query's rows there."""

    name: str
    database: bytes
    gold: Result


@dataclass(frozen=True)
class Case:
    """What an answer is held to: the database that is shown first, then the hidden variants."""

    tables: tuple[Table, ...]
    shown: dict[str, list[tuple[Value, ...]]]
    held: tuple[Held, ...]
    ordered: bool

    def difference(self, held: Held, found: Result) -> str | None:
        """Say in what way a result is not the gold one."""
        return _difference(held.gold, found, self.ordered)

    @property
    def telling(self) -> int:
        """How many variants have another gold result than the database that is shown."""
        return sum(_difference(self.held[0].gold, one.gold, self.ordered) is not None for one in self.held[1:])


def sql_task(payload: dict[str, Any]) -> SqlTask:
    """Return the task that a payload is; ValueError says in one sentence why it is none."""
    if unknown := sorted(payload.keys() - set(FIELDS)):
        raise ValueError(f"payload: found the field {unknown[0][:40]!r}; it has {', '.join(FIELDS)}")
    texts = {}
    for name in ("schema", "question", "gold"):
        value = payload.get(name)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"payload.{name}: found {'none' if value is None else 'no text'}; {SHAPE}")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"payload.{name}: found half a surrogate pair; write the character whole") from error
        texts[name] = value
    if len(texts["question"]) > LONGEST_QUESTION:
        raise ValueError(f"payload.question: found {len(texts['question'])} characters; use at most {LONGEST_QUESTION}")
    style = payload.get("style", "chat")
    if style not in ("chat", "compact"):
        raise ValueError(f"payload.style: found {json.dumps(style)[:40]}; use chat or compact, or leave it out")
    return SqlTask(**texts, rows=_rows(payload.get("rows")), style=style)


def case_of(task: SqlTask, hidden_variants: bool, skip_orphans: bool) -> Case:
    """Build the databases and run the gold query on each.

    ValueError says what is wrong with the task. NoVariant says why it has no variants, which is no fault of an answer: of
    a foreign key that names no parent key and is not skipped, or of constraints that no drawn rows hold.
    """
    connection = empty_database(task.schema)
    try:
        tables = tables_of(connection)
        fill(connection, tables, task.rows)
        shown = shown_rows(connection, tables)
        first = Held("shown", connection.serialize(), _gold(connection.serialize(), task.gold))
    finally:
        connection.close()
    held = (first, *_variants(task, tables, shown, first, skip_orphans)) if hidden_variants else (first,)
    return Case(tables, shown, held, is_ordered(task.gold))


def _variants(
    task: SqlTask, tables: Sequence[Table], shown: dict[str, list[tuple[Value, ...]]], first: Held, skip_orphans: bool
) -> list[Held]:
    """Return three variants: those that tell answers apart before those whose gold result one could have guessed."""
    found = orphan(tables)
    if found is not None and not skip_orphans:
        table, key = found
        raise NoVariant(
            f"the foreign key {table.name}({', '.join(key.columns)}) names no key of {key.parent}, "
            "and the recipe's hidden variants do not skip such a one"
        )
    ordered = is_ordered(task.gold)
    telling: list[Held] = []
    others: list[Held] = []
    problem = ""
    for number in range(DRAWS):
        if len(telling) == VARIANTS:
            break
        connection = empty_database(task.schema)
        try:
            fill_variant(connection, tables, shown, task.gold, seed=f"{task.schema}\n{task.gold}\n{number}")
            one = Held(f"variant {number + 1}", connection.serialize(), _gold(connection.serialize(), task.gold))
        except (NoVariant, ValueError) as error:
            problem = str(error)
            continue
        finally:
            connection.close()
        before = [first, *telling]
        new = one.gold.rows and all(_difference(other.gold, one.gold, ordered) for other in before)
        (telling if new else others).append(one)
    chosen = [*telling, *others][:VARIANTS]
    if not chosen:
        raise NoVariant(problem)
    return chosen


def _gold(database: bytes, query: str) -> Result:
    try:
        return select(database, query)
    except QueryRefused as refused:
        raise ValueError(f"payload.gold: {refused}; write a SELECT that the schema answers") from refused


def _difference(gold: Result, found: Result, ordered: bool) -> str | None:
    return difference(gold.rows, found.rows, (len(gold.columns), len(found.columns)), ordered)


def _rows(value: Any) -> dict[str, list[list[Value]]]:
    if not isinstance(value, dict):
        raise ValueError(f"payload.rows: found {'none' if value is None else 'no object'}; {SHAPE}")
    for table, rows in value.items():
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            raise ValueError(
                f"payload.rows.{table[:40]}: found no list of rows; write a list of lists, a value a column"
            )
        for index, row in enumerate(rows):
            if any(cell is not None and not isinstance(cell, int | float | str) for cell in row):
                found = "a value that is neither text, a number nor null"
                raise SchemaProblem(f"payload.rows.{table[:40]}[{index}]: found {found}; write one of these")
    return value
