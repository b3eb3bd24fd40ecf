"""Questions about a scene with the query that answers them: right by construction, each in several wordings.

The easy ones are of one table or a plain join, in few words and short SQL; the medium ones join, group and order; the hard
ones need a subquery, a window, or both sides of a comparison. Where rows come in an order, it is a total one.
"""

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
# The easy ones that need two tables.
PAIRED = {"count-of-parent", "list-with-parent"}

_COMPARISONS = (
    (">", ("over", "above", "more than")),
    ("<", ("under", "below", "less than")),
    (">=", ("at least",)),
    ("<=", ("at most",)),
)
_AGGREGATES = (
    ("MAX", ("highest", "largest")),
    ("MIN", ("lowest", "smallest")),
    ("SUM", ("total", "sum of all")),
    ("AVG", ("average", "mean")),
)


def _template(difficulty: Difficulty, kind: str) -> Callable[[Callable[[Scene, Random], tuple[str, str]]], Template]:
    def added(make: Callable[[Scene, Random], tuple[str, str]]) -> Template:
        def template(scene: Scene, random: Random) -> Question:
            text, gold = make(scene, random)
            return Question(kind, text, gold)

        TEMPLATES[difficulty][kind] = template
        return template

    return added


def _category(table: SceneTable, random: Random) -> tuple[SceneColumn, str]:
    column = random.choice(table.of("category"))
    return column, random.choice(CATEGORIES[column.name])


def _number(table: SceneTable, random: Random) -> SceneColumn:
    return random.choice(table.of("number"))


def _compared(column: SceneColumn, random: Random) -> tuple[str, str]:
    """Return a comparison of a number, in SQL and in words."""
    sign, words = random.choice(_COMPARISONS)
    value = random.randint(max(2, column.highest // 6), column.highest * 5 // 6)
    return f"{column.name} {sign} {value}", f"{column.name} {random.choice(words)} {value}"


def _ask(random: Random, *wordings: str) -> str:
    return random.choice(wordings)


@_template("easy", "count")
def _count(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    text = _ask(random, f"how many {table.name} are there?", f"count the {table.name}.", f"the number of {table.name}?")
    return text, f"SELECT COUNT(*) FROM {table.name}"


@_template("easy", "count-category")
def _count_category(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    column, value = _category(table, random)
    text = _ask(
        random,
        f"how many {table.name} have {column.name} {value}?",
        f"count the {table.name} with {column.name} {value}.",
        f"the number of {table.name} of {column.name} {value}?",
    )
    return text, f"SELECT COUNT(*) FROM {table.name} WHERE {column.name} = '{value}'"


@_template("easy", "count-number")
def _count_number(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    condition, words = _compared(_number(table, random), random)
    text = _ask(random, f"how many {table.name} have {words}?", f"count the {table.name} with {words}.")
    return text, f"SELECT COUNT(*) FROM {table.name} WHERE {condition}"


@_template("easy", "list-category")
def _list_category(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    column, value = _category(table, random)
    shown = random.choice([c.name for c in table.columns if c is not column])
    text = _ask(
        random,
        f"show the {shown} of {table.name} with {column.name} {value}.",
        f"which {shown} do {table.name} of {column.name} {value} have?",
        f"list the {shown} of all {table.name} that have {column.name} {value}.",
    )
    return text, f"SELECT {shown} FROM {table.name} WHERE {column.name} = '{value}'"


@_template("easy", "list-number")
def _list_number(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    condition, words = _compared(_number(table, random), random)
    text = _ask(
        random, f"show the name of {table.name} with {words}.", f"list the name of all {table.name} that have {words}."
    )
    return text, f"SELECT name FROM {table.name} WHERE {condition}"


@_template("easy", "aggregate")
def _aggregate(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    column, (function, words) = _number(table, random), random.choice(_AGGREGATES)
    word = random.choice(words)
    text = _ask(
        random, f"the {word} {column.name} of {table.name}?", f"what is the {word} {column.name} of all {table.name}?"
    )
    return text, f"SELECT {function}({column.name}) FROM {table.name}"


@_template("easy", "aggregate-category")
def _aggregate_category(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    column, (function, words) = _number(table, random), random.choice(_AGGREGATES)
    category, value = _category(table, random)
    word = random.choice(words)
    text = _ask(
        random,
        f"the {word} {column.name} of {table.name} with {category.name} {value}?",
        f"what is the {word} {column.name} of {table.name} that have {category.name} {value}?",
    )
    return text, f"SELECT {function}({column.name}) FROM {table.name} WHERE {category.name} = '{value}'"


@_template("easy", "distinct")
def _distinct(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    column, _ = _category(table, random)
    text = _ask(
        random, f"which different {column.name} do {table.name} have?", f"list each {column.name} of {table.name} once."
    )
    return text, f"SELECT DISTINCT {column.name} FROM {table.name}"


@_template("easy", "count-each")
def _count_each(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    column, _ = _category(table, random)
    text = _ask(
        random,
        f"each {column.name} of {table.name} with how many there are?",
        f"count the {table.name} of each {column.name}; show {column.name}, count.",
    )
    return text, f"SELECT {column.name}, COUNT(*) FROM {table.name} GROUP BY {column.name}"


@_template("easy", "count-both")
def _count_both(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    column, value = _category(table, random)
    condition, words = _compared(_number(table, random), random)
    text = _ask(
        random,
        f"how many {table.name} have {column.name} {value} and {words}?",
        f"count the {table.name} with {column.name} {value} and {words}.",
    )
    return text, f"SELECT COUNT(*) FROM {table.name} WHERE {column.name} = '{value}' AND {condition}"


@_template("easy", "count-of-parent")
def _count_of_parent(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    column, value = _category(parent, random)
    text = _ask(
        random,
        f"how many {child.name} have a {parent.one} with {column.name} {value}?",
        f"count the {child.name} whose {parent.one} has {column.name} {value}.",
    )
    return text, f"SELECT COUNT(*) FROM {_joined(parent, child)} WHERE {parent.name}.{column.name} = '{value}'"


@_template("easy", "list-with-parent")
def _list_with_parent(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    column = _number(child, random)
    condition, words = _compared(column, random)
    text = _ask(
        random,
        f"show id and {parent.one} name of {child.name} with {words}.",
        f"list the id of {child.name} that have {words}, with the name of the {parent.one}.",
    )
    return (
        text,
        f"SELECT {child.name}.id, {parent.name}.name FROM {_joined(parent, child)} WHERE {child.name}.{condition}",
    )


@_template("medium", "having")
def _having(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    least = random.randint(2, 4)
    text = _ask(
        random,
        f"Which {parent.name} have at least {least} {child.name}? Give their name.",
        f"Give the name of every {parent.one} that {least} or more {child.name} belong to.",
    )
    return text, (
        f"SELECT {parent.name}.name FROM {_joined(parent, child)} GROUP BY {parent.name}.id HAVING COUNT(*) >= {least}"
    )


@_template("medium", "count-with-none")
def _count_with_none(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    text = _ask(
        random,
        f"For each {parent.one}, give its name and how many {child.name} it has, 0 where there are none.",
        f"How many {child.name} does every {parent.one} have, also those without any? Give name and count.",
    )
    return text, (
        f"SELECT {parent.name}.name, COUNT({child.name}.id) FROM {parent.name} LEFT JOIN {child.name} ON "
        f"{child.name}.{parent.one}_id = {parent.name}.id GROUP BY {parent.name}.id"
    )


@_template("medium", "sum-each")
def _sum_each(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    number, (group, _) = _number(child, random), _category(parent, random)
    text = _ask(
        random,
        f"What is the total {number.name} of the {child.name} for each {group.name} of their {parent.one}? Give {group.name} and total.",
        f"Give each {group.name} of {parent.name} that have {child.name}, with the total {number.name} of those {child.name}.",
    )
    return text, (
        f"SELECT {parent.name}.{group.name}, SUM({child.name}.{number.name}) FROM {_joined(parent, child)} GROUP BY {parent.name}.{group.name}"
    )


@_template("medium", "without")
def _without(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    column, value = _category(child, random)
    text = _ask(
        random,
        f"Which {parent.name} have no {child.one} with {column.name} {value}? Give their name.",
        f"Give the name of every {parent.one} without any {child.one} of {column.name} {value}.",
    )
    return text, (
        f"SELECT name FROM {parent.name} WHERE NOT EXISTS (SELECT 1 FROM {child.name} WHERE "
        f"{child.name}.{parent.one}_id = {parent.name}.id AND {child.name}.{column.name} = '{value}')"
    )


@_template("medium", "above-average")
def _above_average(scene: Scene, random: Random) -> tuple[str, str]:
    table = random.choice(scene.tables)
    number = _number(table, random)
    text = _ask(
        random,
        f"Give the id of the {table.name} whose {number.name} is above the average of all {table.name}.",
        f"Which {table.name} have a {number.name} higher than the average {number.name}? Give their id.",
    )
    return text, f"SELECT id FROM {table.name} WHERE {number.name} > (SELECT AVG({number.name}) FROM {table.name})"


@_template("medium", "top")
def _top(scene: Scene, random: Random) -> tuple[str, str]:
    table = random.choice(scene.tables)
    number, most = _number(table, random), random.randint(2, 4)
    text = _ask(
        random,
        f"Give id and {number.name} of the {most} {table.name} with the highest {number.name}, the highest first; of equal ones, the lower id first.",
        f"Which {most} {table.name} have the highest {number.name}? Give id and {number.name}, ordered by {number.name} from high to low, then by id.",
    )
    return text, f"SELECT id, {number.name} FROM {table.name} ORDER BY {number.name} DESC, id LIMIT {most}"


@_template("medium", "missing")
def _missing(scene: Scene, random: Random) -> tuple[str, str]:
    _, child = scene.tables
    number = _number(child, random)
    (group, _) = _category(child, random)
    text = _ask(
        random,
        f"For each {group.name} of {child.name}, how many have a {number.name} (one that is not NULL)? Give {group.name} and count.",
        f"Count, by {group.name}, the {child.name} whose {number.name} is known (not NULL). Give every {group.name} and its count, 0 too.",
    )
    return text, f"SELECT {group.name}, COUNT({number.name}) FROM {child.name} GROUP BY {group.name}"


@_template("medium", "days")
def _days(scene: Scene, random: Random) -> tuple[str, str]:
    _, child = scene.tables
    year, month = random.choice((2024, 2025)), random.randint(2, 11)
    text = _ask(
        random,
        f"Give id and day of the {child.name} from {year}-{month:02}-01 on, the earliest first, then by id.",
        f"Which {child.name} have a day on or after {year}-{month:02}-01? Give id and day, ordered by day and id.",
    )
    return text, f"SELECT id, day FROM {child.name} WHERE day >= '{year}-{month:02}-01' ORDER BY day, id"


@_template("hard", "best-child")
def _best_child(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    number = _number(child, random)
    text = _ask(
        random,
        f"For each {parent.one} that has {child.name}, give its name and the id of its {child.one} with the highest {number.name}; of equal ones, that of the lowest id. Leave out {child.name} without a {number.name}.",
        f"Which {child.one} has the highest {number.name} of each {parent.one}? Give the {parent.one}'s name and the {child.one}'s id, the lowest id of equal ones; a NULL {number.name} does not count.",
    )
    return text, (
        f"SELECT name, child FROM (SELECT {parent.name}.name AS name, {child.name}.id AS child, ROW_NUMBER() OVER (PARTITION BY "
        f"{parent.name}.id ORDER BY {child.name}.{number.name} DESC, {child.name}.id) AS place FROM {_joined(parent, child)} "
        f"WHERE {child.name}.{number.name} IS NOT NULL) WHERE place = 1"
    )


@_template("hard", "second")
def _second(scene: Scene, random: Random) -> tuple[str, str]:
    table = random.choice(scene.tables)
    number = _number(table, random)
    text = _ask(
        random,
        f"What is the second highest different {number.name} among the {table.name}?",
        f"Give the highest {number.name} of {table.name} that is below the very highest.",
    )
    return text, (
        f"SELECT MAX({number.name}) FROM {table.name} WHERE {number.name} < (SELECT MAX({number.name}) FROM {table.name})"
    )


@_template("hard", "all-over")
def _all_over(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    number = _number(child, random)
    value = random.randint(2, max(3, number.highest // 3))
    text = _ask(
        random,
        f"Which {parent.name} have {child.name}, and none of them with {number.name} under {value}? Give their name.",
        f"Give the name of every {parent.one} that has at least one {child.one} but no {child.one} with {number.name} below {value}.",
    )
    return text, (
        f"SELECT name FROM {parent.name} WHERE id IN (SELECT {parent.one}_id FROM {child.name}) AND id NOT IN "
        f"(SELECT {parent.one}_id FROM {child.name} WHERE {number.name} < {value})"
    )


@_template("hard", "running-total")
def _running_total(scene: Scene, random: Random) -> tuple[str, str]:
    table = scene.tables[0]
    number = _number(table, random)
    text = _ask(
        random,
        f"Give, ordered by id, each {table.one}'s id and the total {number.name} of all {table.name} up to and with that id.",
        f"List the running total of {number.name} over the {table.name} by id: id and total so far, lowest id first.",
    )
    return text, f"SELECT id, SUM({number.name}) OVER (ORDER BY id) FROM {table.name} ORDER BY id"


@_template("hard", "better-groups")
def _better_groups(scene: Scene, random: Random) -> tuple[str, str]:
    table = random.choice(scene.tables)
    number, (group, _) = _number(table, random), _category(table, random)
    text = _ask(
        random,
        f"Which {group.name} of {table.name} have an average {number.name} above the average of all {table.name}? Give the {group.name}.",
        f"Give every {group.name} whose {table.name} have a higher average {number.name} than the {table.name} altogether.",
    )
    return text, (
        f"SELECT {group.name} FROM {table.name} GROUP BY {group.name} HAVING AVG({number.name}) > (SELECT AVG({number.name}) FROM {table.name})"
    )


@_template("hard", "pairs")
def _pairs(scene: Scene, random: Random) -> tuple[str, str]:
    table = scene.tables[0]
    group, _ = _category(table, random)
    text = _ask(
        random,
        f"Give every two {table.name} of the same {group.name}, as the two names, that of the lower id first.",
        f"Which pairs of {table.name} share a {group.name}? Give both names, each pair once, the lower id's name first.",
    )
    return text, (
        f"SELECT a.name, b.name FROM {table.name} AS a JOIN {table.name} AS b ON a.{group.name} = b.{group.name} AND a.id < b.id"
    )


@_template("hard", "share")
def _share(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    column, value = _category(child, random)
    text = _ask(
        random,
        f"For each {parent.one} that has {child.name}, give its name and which share of its {child.name} (0 to 1) has {column.name} {value}.",
        f"What part of every {parent.one}'s {child.name}, from 0 to 1, are of {column.name} {value}? Give name and part, of those with {child.name} alone.",
    )
    return text, (
        f"SELECT {parent.name}.name, AVG(CASE WHEN {child.name}.{column.name} = '{value}' THEN 1.0 ELSE 0.0 END) FROM {_joined(parent, child)} GROUP BY {parent.name}.id"
    )


def _joined(parent: SceneTable, child: SceneTable) -> str:
    return f"{child.name} JOIN {parent.name} ON {child.name}.{parent.one}_id = {parent.name}.id"
