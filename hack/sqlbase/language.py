"""What the small base reads: SQL tasks of the train split with answers that are often wrong in some way, as a careless person's.

Of the tasks that a run's held-out ones come from it sees none: those are of the eval split, whatever the seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from halo_trainer.environments.sql_tasks import generate

WORDS = re.compile(r"'[^']*'|\w+|[<>]=?|\s+|.")
FUNCTIONS = ("MAX", "MIN", "SUM", "AVG", "COUNT")
SIGNS = (">", "<", ">=", "<=")


@dataclass(frozen=True)
class Row:
    """A conversation's beginning, and the answer that is learnt."""

    messages: tuple[dict[str, Any], ...]
    answer: str


def careless(gold: str, schema: str, random: Random, rate: float) -> str:
    """Return the query with each choice in it (column, table, function, comparison, number) made anew at that rate."""
    tables = re.findall(r"CREATE TABLE (\w+)", schema)
    columns = re.findall(r"(?:\(|, )(\w+) (?:INTEGER|TEXT|REAL)", schema)
    return "".join(
        _other(word, random, (tables, columns)) if random.random() < rate else word for word in WORDS.findall(gold)
    )


def _other(word: str, random: Random, names: Sequence[Sequence[str]]) -> str:
    """Return another word of the same kind, or the same where there is no choice."""
    if word.isdecimal():
        return str(max(1, int(word) + random.choice((-10, -1, 1, 10))))
    for kind in (*names, FUNCTIONS, SIGNS):
        if word in kind and len(kind) > 1:
            return random.choice([other for other in kind if other != word])
    return word


def rows(count: int, seed: int, rate: float) -> Iterator[Row]:
    """Yield so many rows of easy tasks, the same for the same arguments."""
    random = Random(f"careless {seed}")
    for task in generate(count, seed, "train", "easy", "compact", checked=False):
        schema = str(task.payload["schema"])
        content = f"{names(schema)}\n{task.payload['question']}"
        yield Row(({"role": "user", "content": content},), careless(str(task.payload["gold"]), schema, random, rate))


def names(schema: str) -> str:
    """Return the tables as names alone, as the environment shows them in the compact style."""
    found = re.findall(r"CREATE TABLE (\w+) \((.*)\);", schema)
    return "\n".join(
        f"{table}({', '.join(part.split()[0] for part in columns.split(', '))})" for table, columns in found
    )
