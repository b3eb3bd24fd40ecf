"""Easy questions: of one table or a plain join, in few words and short SQL."""

from __future__ import annotations

from random import Random

from halo_trainer.environments.sql_scenes import Scene
from halo_trainer.environments.sql_templates import (
    AGGREGATES,
    a_category,
    a_number,
    compared,
    joined,
    templated,
    worded,
)

# The easy ones that need two tables.
PAIRED = {"count-of-parent", "list-with-parent"}


@templated("easy", "count")
def _count(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    text = worded(
        random, f"how many {table.name} are there?", f"count the {table.name}.", f"the number of {table.name}?"
    )
    return text, f"SELECT COUNT(*) FROM {table.name}"


@templated("easy", "count-category")
def _count_category(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    column, value = a_category(table, random)
    text = worded(
        random,
        f"how many {table.name} have {column.name} {value}?",
        f"count the {table.name} with {column.name} {value}.",
        f"the number of {table.name} of {column.name} {value}?",
    )
    return text, f"SELECT COUNT(*) FROM {table.name} WHERE {column.name} = '{value}'"


@templated("easy", "count-number")
def _count_number(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    condition, words = compared(a_number(table, random), random)
    text = worded(random, f"how many {table.name} have {words}?", f"count the {table.name} with {words}.")
    return text, f"SELECT COUNT(*) FROM {table.name} WHERE {condition}"


@templated("easy", "list-category")
def _list_category(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    column, value = a_category(table, random)
    shown = random.choice([c.name for c in table.columns if c is not column])
    text = worded(
        random,
        f"show the {shown} of {table.name} with {column.name} {value}.",
        f"which {shown} do {table.name} of {column.name} {value} have?",
        f"list the {shown} of all {table.name} that have {column.name} {value}.",
    )
    return text, f"SELECT {shown} FROM {table.name} WHERE {column.name} = '{value}'"


@templated("easy", "list-number")
def _list_number(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    condition, words = compared(a_number(table, random), random)
    text = worded(
        random, f"show the name of {table.name} with {words}.", f"list the name of all {table.name} that have {words}."
    )
    return text, f"SELECT name FROM {table.name} WHERE {condition}"


@templated("easy", "aggregate")
def _aggregate(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    column, (function, words) = a_number(table, random), random.choice(AGGREGATES)
    word = random.choice(words)
    text = worded(
        random, f"the {word} {column.name} of {table.name}?", f"what is the {word} {column.name} of all {table.name}?"
    )
    return text, f"SELECT {function}({column.name}) FROM {table.name}"


@templated("easy", "aggregate-category")
def _aggregate_category(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    column, (function, words) = a_number(table, random), random.choice(AGGREGATES)
    category, value = a_category(table, random)
    word = random.choice(words)
    text = worded(
        random,
        f"the {word} {column.name} of {table.name} with {category.name} {value}?",
        f"what is the {word} {column.name} of {table.name} that have {category.name} {value}?",
    )
    return text, f"SELECT {function}({column.name}) FROM {table.name} WHERE {category.name} = '{value}'"


@templated("easy", "distinct")
def _distinct(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    column, _ = a_category(table, random)
    text = worded(
        random, f"which different {column.name} do {table.name} have?", f"list each {column.name} of {table.name} once."
    )
    return text, f"SELECT DISTINCT {column.name} FROM {table.name}"


@templated("easy", "count-each")
def _count_each(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    column, _ = a_category(table, random)
    text = worded(
        random,
        f"each {column.name} of {table.name} with how many there are?",
        f"count the {table.name} of each {column.name}; show {column.name}, count.",
    )
    return text, f"SELECT {column.name}, COUNT(*) FROM {table.name} GROUP BY {column.name}"


@templated("easy", "count-both")
def _count_both(scene: Scene, random: Random) -> tuple[str, str]:
    (table,) = scene.tables
    column, value = a_category(table, random)
    condition, words = compared(a_number(table, random), random)
    text = worded(
        random,
        f"how many {table.name} have {column.name} {value} and {words}?",
        f"count the {table.name} with {column.name} {value} and {words}.",
    )
    return text, f"SELECT COUNT(*) FROM {table.name} WHERE {column.name} = '{value}' AND {condition}"


@templated("easy", "count-of-parent")
def _count_of_parent(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    column, value = a_category(parent, random)
    text = worded(
        random,
        f"how many {child.name} have a {parent.one} with {column.name} {value}?",
        f"count the {child.name} whose {parent.one} has {column.name} {value}.",
    )
    return text, f"SELECT COUNT(*) FROM {joined(parent, child)} WHERE {parent.name}.{column.name} = '{value}'"


@templated("easy", "list-with-parent")
def _list_with_parent(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    column = a_number(child, random)
    condition, words = compared(column, random)
    text = worded(
        random,
        f"show id and {parent.one} name of {child.name} with {words}.",
        f"list the id of {child.name} that have {words}, with the name of the {parent.one}.",
    )
    return (
        text,
        f"SELECT {child.name}.id, {parent.name}.name FROM {joined(parent, child)} WHERE {child.name}.{condition}",
    )
