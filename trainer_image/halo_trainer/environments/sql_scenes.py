"""Made-up databases for generated SQL tasks: tables of everyday things, with rows drawn by seed.

A scene is one table, or a parent table and a child table that has its key. All names and values are common words.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from random import Random
from typing import Literal

from halo_trainer.environments.sql_schema import Value

Kind = Literal["id", "key", "name", "category", "number", "day"]

_NAMES = """
anna ben clara david emma felix greta hugo ida jonas kira leo mia nico olga paul rosa sam tina uwe vera willi yara zoe
"""
NAMES = tuple(_NAMES.split())
CATEGORIES: dict[str, tuple[str, ...]] = {
    "city": ("rome", "paris", "oslo", "berlin", "madrid", "vienna"),
    "color": ("red", "blue", "green", "black", "white"),
    "country": ("italy", "france", "norway", "spain", "japan"),
    "kind": ("small", "big", "old", "new", "rare"),
    "level": ("low", "middle", "high"),
    "season": ("spring", "summer", "autumn", "winter"),
    "state": ("open", "closed", "waiting", "lost"),
}
# The highest value; the lowest is 1.
NUMBERS = {"age": 20, "price": 50, "size": 30, "weight": 40, "score": 100, "stock": 60, "pages": 90, "rank": 30}
# Table and one of its rows, in words.
TABLES = {
    "pets": "pet",
    "books": "book",
    "cars": "car",
    "shops": "shop",
    "songs": "song",
    "trees": "tree",
    "boats": "boat",
    "games": "game",
    "teams": "team",
    "toys": "toy",
    "lamps": "lamp",
    "rooms": "room",
}
# Parent, child: a child belongs to one parent.
PAIRS = (
    ("customers", "customer", "orders", "order"),
    ("authors", "author", "books", "book"),
    ("teams", "team", "players", "player"),
    ("owners", "owner", "pets", "pet"),
    ("schools", "school", "classes", "class"),
    ("shops", "shop", "sales", "sale"),
    ("bands", "band", "songs", "song"),
    ("farms", "farm", "animals", "animal"),
)
_SQL_KINDS = {
    "id": "INTEGER PRIMARY KEY",
    "key": "INTEGER",
    "name": "TEXT NOT NULL",
    "category": "TEXT",
    "number": "INTEGER",
    "day": "TEXT",
}


@dataclass(frozen=True)
class SceneColumn:
    """A column, and the values that rows draw from."""

    name: str
    kind: Kind
    values: tuple[str, ...] = ()
    highest: int = 0
    # The share of rows that have NULL.
    missing: float = 0.0


@dataclass(frozen=True)
class SceneTable:
    """A table; `one` is the word for one of its rows."""

    name: str
    one: str
    columns: tuple[SceneColumn, ...]
    parent: str = ""

    def of(self, kind: Kind) -> list[SceneColumn]:
        """Return the columns of one kind."""
        return [column for column in self.columns if column.kind == kind]

    @property
    def create(self) -> str:
        """The statement that makes the table."""
        lines = [f"{column.name} {_SQL_KINDS[column.kind]}" for column in self.columns]
        lines = [
            f"{line} REFERENCES {self.parent}(id)" if c.kind == "key" else line
            for line, c in zip(lines, self.columns, strict=True)
        ]
        return f"CREATE TABLE {self.name} ({', '.join(lines)});"


@dataclass(frozen=True)
class Scene:
    """Tables, parents first."""

    tables: tuple[SceneTable, ...]

    @property
    def schema(self) -> str:
        """The statements that make the tables."""
        return "\n".join(table.create for table in self.tables)


def single_scene(random: Random) -> Scene:
    """Return one table of a name, one or two categories and one or two numbers."""
    name = random.choice(list(TABLES))
    categories = [_category(c) for c in random.sample(sorted(CATEGORIES), random.randint(1, 2))]
    numbers = [_number(n) for n in random.sample(sorted(NUMBERS), random.randint(1, 2))]
    return Scene((SceneTable(name, TABLES[name], (SceneColumn("name", "name"), *categories, *numbers)),))


def pair_scene(random: Random, rich: bool = True) -> Scene:
    """Return a parent and a child table; a rich one has days and missing values too."""
    parents, parent, children, child = random.choice(PAIRS)
    categories = random.sample(sorted(CATEGORIES), 2)
    numbers = random.sample(sorted(NUMBERS), 2)
    days = (SceneColumn("day", "day"),) if rich else ()
    missing = random.choice((0.0, 0.2)) if rich else 0.0
    # An order has no name of its own; its id is what tells it.
    above = SceneTable(
        parents,
        parent,
        (SceneColumn("id", "id"), SceneColumn("name", "name"), _category(categories[0]), _number(numbers[0])),
    )
    below = SceneTable(
        children,
        child,
        (
            SceneColumn("id", "id"),
            SceneColumn(f"{parent}_id", "key"),
            _category(categories[1]),
            SceneColumn(numbers[1], "number", highest=NUMBERS[numbers[1]], missing=missing),
            *days,
        ),
        parent=parents,
    )
    return Scene((above, below))


def drawn_rows(scene: Scene, random: Random) -> dict[str, list[list[Value]]]:
    """Draw the rows of every table: a handful of parents, two or three times as many children."""
    rows: dict[str, list[list[Value]]] = {}
    for table in scene.tables:
        count = random.randint(12, 20) if table.parent else random.randint(6, 9)
        parents = [row[0] for row in rows[table.parent]] if table.parent else []
        columns = [_drawn_column(column, count, parents, random) for column in table.columns]
        rows[table.name] = [list(row) for row in zip(*columns, strict=True)]
    return rows


def _drawn_column(column: SceneColumn, count: int, parents: list[Value], random: Random) -> list[Value]:
    match column.kind:
        case "id":
            return list(range(1, count + 1))
        case "key":
            # One parent at least stays without a child.
            return [random.choice(parents[:-1]) for _ in range(count)]
        case "name":
            return list(random.sample(NAMES, count))
        case "category":
            return [random.choice(column.values) for _ in range(count)]
        case "number":
            drawn: list[Value] = [random.randint(1, column.highest) for _ in range(count)]
            return [None if random.random() < column.missing else value for value in drawn]
        case "day":
            first = datetime.date(2024, 1, 1).toordinal()
            return [datetime.date.fromordinal(first + random.randrange(700)).isoformat() for _ in range(count)]


def _category(name: str) -> SceneColumn:
    return SceneColumn(name, "category", values=CATEGORIES[name])


def _number(name: str) -> SceneColumn:
    return SceneColumn(name, "number", highest=NUMBERS[name])
