"""Medium questions, which join, group and order; and hard ones, which need a subquery, a window, or both sides of a comparison."""

from __future__ import annotations

from random import Random

from halo_trainer.environments.sql_scenes import Scene
from halo_trainer.environments.sql_templates import a_category, a_number, joined, templated, worded


@templated("medium", "having")
def _having(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    least = random.randint(2, 4)
    text = worded(
        random,
        f"Which {parent.name} have at least {least} {child.name}? Give their name.",
        f"Give the name of every {parent.one} that {least} or more {child.name} belong to.",
    )
    return text, (
        f"SELECT {parent.name}.name FROM {joined(parent, child)} GROUP BY {parent.name}.id HAVING COUNT(*) >= {least}"
    )


@templated("medium", "count-with-none")
def _count_with_none(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    text = worded(
        random,
        f"For each {parent.one}, give its name and how many {child.name} it has, 0 where there are none.",
        f"How many {child.name} does every {parent.one} have, also those without any? Give name and count.",
    )
    return text, (
        f"SELECT {parent.name}.name, COUNT({child.name}.id) FROM {parent.name} LEFT JOIN {child.name} ON "
        f"{child.name}.{parent.one}_id = {parent.name}.id GROUP BY {parent.name}.id"
    )


@templated("medium", "sum-each")
def _sum_each(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    number, (group, _) = a_number(child, random), a_category(parent, random)
    text = worded(
        random,
        f"What is the total {number.name} of the {child.name} for each {group.name} of their {parent.one}? Give {group.name} and total.",
        f"Give each {group.name} of {parent.name} that have {child.name}, with the total {number.name} of those {child.name}.",
    )
    return text, (
        f"SELECT {parent.name}.{group.name}, SUM({child.name}.{number.name}) FROM {joined(parent, child)} GROUP BY {parent.name}.{group.name}"
    )


@templated("medium", "without")
def _without(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    column, value = a_category(child, random)
    text = worded(
        random,
        f"Which {parent.name} have no {child.one} with {column.name} {value}? Give their name.",
        f"Give the name of every {parent.one} without any {child.one} of {column.name} {value}.",
    )
    return text, (
        f"SELECT name FROM {parent.name} WHERE NOT EXISTS (SELECT 1 FROM {child.name} WHERE "
        f"{child.name}.{parent.one}_id = {parent.name}.id AND {child.name}.{column.name} = '{value}')"
    )


@templated("medium", "above-average")
def _above_average(scene: Scene, random: Random) -> tuple[str, str]:
    table = random.choice(scene.tables)
    number = a_number(table, random)
    text = worded(
        random,
        f"Give the id of the {table.name} whose {number.name} is above the average of all {table.name}.",
        f"Which {table.name} have a {number.name} higher than the average {number.name}? Give their id.",
    )
    return text, f"SELECT id FROM {table.name} WHERE {number.name} > (SELECT AVG({number.name}) FROM {table.name})"


@templated("medium", "top")
def _top(scene: Scene, random: Random) -> tuple[str, str]:
    table = random.choice(scene.tables)
    number, most = a_number(table, random), random.randint(2, 4)
    text = worded(
        random,
        f"Give id and {number.name} of the {most} {table.name} with the highest {number.name}, the highest first; of equal ones, the lower id first.",
        f"Which {most} {table.name} have the highest {number.name}? Give id and {number.name}, ordered by {number.name} from high to low, then by id.",
    )
    return text, f"SELECT id, {number.name} FROM {table.name} ORDER BY {number.name} DESC, id LIMIT {most}"


@templated("medium", "missing")
def _missing(scene: Scene, random: Random) -> tuple[str, str]:
    _, child = scene.tables
    number = a_number(child, random)
    (group, _) = a_category(child, random)
    text = worded(
        random,
        f"For each {group.name} of {child.name}, how many have a {number.name} (one that is not NULL)? Give {group.name} and count.",
        f"Count, by {group.name}, the {child.name} whose {number.name} is known (not NULL). Give every {group.name} and its count, 0 too.",
    )
    return text, f"SELECT {group.name}, COUNT({number.name}) FROM {child.name} GROUP BY {group.name}"


@templated("medium", "days")
def _days(scene: Scene, random: Random) -> tuple[str, str]:
    _, child = scene.tables
    year, month = random.choice((2024, 2025)), random.randint(2, 11)
    text = worded(
        random,
        f"Give id and day of the {child.name} from {year}-{month:02}-01 on, the earliest first, then by id.",
        f"Which {child.name} have a day on or after {year}-{month:02}-01? Give id and day, ordered by day and id.",
    )
    return text, f"SELECT id, day FROM {child.name} WHERE day >= '{year}-{month:02}-01' ORDER BY day, id"


@templated("hard", "best-child")
def _best_child(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    number = a_number(child, random)
    text = worded(
        random,
        f"For each {parent.one} that has {child.name}, give its name and the id of its {child.one} with the highest {number.name}; of equal ones, that of the lowest id. Leave out {child.name} without a {number.name}.",
        f"Which {child.one} has the highest {number.name} of each {parent.one}? Give the {parent.one}'s name and the {child.one}'s id, the lowest id of equal ones; a NULL {number.name} does not count.",
    )
    return text, (
        f"SELECT name, child FROM (SELECT {parent.name}.name AS name, {child.name}.id AS child, ROW_NUMBER() OVER (PARTITION BY "
        f"{parent.name}.id ORDER BY {child.name}.{number.name} DESC, {child.name}.id) AS place FROM {joined(parent, child)} "
        f"WHERE {child.name}.{number.name} IS NOT NULL) WHERE place = 1"
    )


@templated("hard", "second")
def _second(scene: Scene, random: Random) -> tuple[str, str]:
    table = random.choice(scene.tables)
    number = a_number(table, random)
    text = worded(
        random,
        f"What is the second highest different {number.name} among the {table.name}?",
        f"Give the highest {number.name} of {table.name} that is below the very highest.",
    )
    return text, (
        f"SELECT MAX({number.name}) FROM {table.name} WHERE {number.name} < (SELECT MAX({number.name}) FROM {table.name})"
    )


@templated("hard", "all-over")
def _all_over(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    number = a_number(child, random)
    value = random.randint(2, max(3, number.highest // 3))
    text = worded(
        random,
        f"Which {parent.name} have {child.name}, and none of them with {number.name} under {value}? Give their name.",
        f"Give the name of every {parent.one} that has at least one {child.one} but no {child.one} with {number.name} below {value}.",
    )
    return text, (
        f"SELECT name FROM {parent.name} WHERE id IN (SELECT {parent.one}_id FROM {child.name}) AND id NOT IN "
        f"(SELECT {parent.one}_id FROM {child.name} WHERE {number.name} < {value})"
    )


@templated("hard", "running-total")
def _running_total(scene: Scene, random: Random) -> tuple[str, str]:
    table = scene.tables[0]
    number = a_number(table, random)
    text = worded(
        random,
        f"Give, ordered by id, each {table.one}'s id and the total {number.name} of all {table.name} up to and with that id.",
        f"List the running total of {number.name} over the {table.name} by id: id and total so far, lowest id first.",
    )
    return text, f"SELECT id, SUM({number.name}) OVER (ORDER BY id) FROM {table.name} ORDER BY id"


@templated("hard", "better-groups")
def _better_groups(scene: Scene, random: Random) -> tuple[str, str]:
    table = random.choice(scene.tables)
    number, (group, _) = a_number(table, random), a_category(table, random)
    text = worded(
        random,
        f"Which {group.name} of {table.name} have an average {number.name} above the average of all {table.name}? Give the {group.name}.",
        f"Give every {group.name} whose {table.name} have a higher average {number.name} than the {table.name} altogether.",
    )
    return text, (
        f"SELECT {group.name} FROM {table.name} GROUP BY {group.name} HAVING AVG({number.name}) > (SELECT AVG({number.name}) FROM {table.name})"
    )


@templated("hard", "pairs")
def _pairs(scene: Scene, random: Random) -> tuple[str, str]:
    table = scene.tables[0]
    group, _ = a_category(table, random)
    text = worded(
        random,
        f"Give every two {table.name} of the same {group.name}, as the two names, that of the lower id first.",
        f"Which pairs of {table.name} share a {group.name}? Give both names, each pair once, the lower id's name first.",
    )
    return text, (
        f"SELECT a.name, b.name FROM {table.name} AS a JOIN {table.name} AS b ON a.{group.name} = b.{group.name} AND a.id < b.id"
    )


@templated("hard", "share")
def _share(scene: Scene, random: Random) -> tuple[str, str]:
    parent, child = scene.tables
    column, value = a_category(child, random)
    text = worded(
        random,
        f"For each {parent.one} that has {child.name}, give its name and which share of its {child.name} (0 to 1) has {column.name} {value}.",
        f"What part of every {parent.one}'s {child.name}, from 0 to 1, are of {column.name} {value}? Give name and part, of those with {child.name} alone.",
    )
    return text, (
        f"SELECT {parent.name}.name, AVG(CASE WHEN {child.name}.{column.name} = '{value}' THEN 1.0 ELSE 0.0 END) FROM {joined(parent, child)} GROUP BY {parent.name}.id"
    )
