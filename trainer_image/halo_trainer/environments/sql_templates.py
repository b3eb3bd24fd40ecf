"""What every template of a question is made of: the registry of templates, and the parts that they draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

from halo_trainer.environments.sql_scenes import CATEGORIES, Scene, SceneColumn, SceneTable

Difficulty = Literal["easy", "medium", "hard"]


@dataclass(frozen=True)
class Question:
    """Words that ask for what the query gives; `kind` names the template."""

    kind: str
    text: str
    gold: str


Template = Callable[[Scene, Random], Question]
TEMPLATES: dict[Difficulty, dict[str, Template]] = {"easy": {}, "medium": {}, "hard": {}}

_COMPARISONS = (
    (">", ("over", "above", "more than")),
    ("<", ("under", "below", "less than")),
    (">=", ("at least",)),
    ("<=", ("at most",)),
)
AGGREGATES = (
    ("MAX", ("highest", "largest")),
    ("MIN", ("lowest", "smallest")),
    ("SUM", ("total", "sum of all")),
    ("AVG", ("average", "mean")),
)


def templated(difficulty: Difficulty, kind: str) -> Callable[[Callable[[Scene, Random], tuple[str, str]]], Template]:
    """Add what gives words and query as a template of that kind."""

    def added(make: Callable[[Scene, Random], tuple[str, str]]) -> Template:
        def template(scene: Scene, random: Random) -> Question:
            text, gold = make(scene, random)
            return Question(kind, text, gold)

        TEMPLATES[difficulty][kind] = template
        return template

    return added


def a_category(table: SceneTable, random: Random) -> tuple[SceneColumn, str]:
    """Return a column of categories and one of them."""
    column = random.choice(table.of("category"))
    return column, random.choice(CATEGORIES[column.name])


def a_number(table: SceneTable, random: Random) -> SceneColumn:
    """Return a column of numbers."""
    return random.choice(table.of("number"))


def compared(column: SceneColumn, random: Random) -> tuple[str, str]:
    """Return a comparison of a number, in SQL and in words."""
    sign, words = random.choice(_COMPARISONS)
    value = random.randint(max(2, column.highest // 6), column.highest * 5 // 6)
    return f"{column.name} {sign} {value}", f"{column.name} {random.choice(words)} {value}"


def worded(random: Random, *wordings: str) -> str:
    """Return one of the wordings."""
    return random.choice(wordings)


def joined(parent: SceneTable, child: SceneTable) -> str:
    """Return the tables of a child with its parent."""
    return f"{child.name} JOIN {parent.name} ON {child.name}.{parent.one}_id = {parent.name}.id"
