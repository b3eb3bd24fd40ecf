"""Generates SQL tasks by seed: `generate` yields the same tasks for the same arguments, byte for byte.

Which split a task is in is decided by its gold query alone, whatever its schema, rows and wording, so that no seed of one split
ever gives a query that the other asks for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Literal

from halo_trainer.environments.base import Task
from halo_trainer.environments.sql_case import case_of, sql_task
from halo_trainer.environments.sql_questions import PAIRED, TEMPLATES, Difficulty, Question
from halo_trainer.environments.sql_scenes import Scene, drawn_rows, pair_scene, single_scene
from halo_trainer.environments.sql_variants import NoVariant

Split = Literal["train", "eval"]
Style = Literal["chat", "compact"]
# Part of every draw: another version gives other tasks.
VERSION = 1
# One task in five is the eval split's.
EVAL_OF = 5
# Candidates for each task that is wanted, before there are taken to be no more.
MOST_DRAWS = 200
ENVIRONMENT = "sql"


class TooFewTasks(ValueError):
    """There are not as many different tasks as were asked for."""


def generate(
    count: int,
    seed: int = 0,
    split: Split = "train",
    difficulty: Difficulty | Literal["mixed"] = "mixed",
    style: Style = "chat",
    kinds: Sequence[str] = (),
    checked: bool = True,
) -> Iterator[Task]:
    """Yield `count` tasks of a split, no two of which ask the same.

    `kinds` keeps only these question templates. Unless `checked` is false (much quicker, for the text of a first model
    alone), each task's gold query gives rows, and other rows on two hidden variants or more.
    """
    choices = _choices(difficulty, kinds)
    seen: set[str] = set()
    for number in range(count * MOST_DRAWS):
        if len(seen) == count:
            return
        # The split is no part of the draw: both walk the same candidates, and each keeps its own.
        random = Random(f"halo sql {VERSION} {seed} {difficulty} {' '.join(kinds)} {number}")
        level, kind = random.choice(choices)
        scene = single_scene(random) if level == "easy" and kind not in PAIRED else pair_scene(random, level != "easy")
        question = TEMPLATES[level][kind](scene, random)
        key = content_key(scene.schema, question.gold)
        if key in seen or split_of(question.gold) != split:
            continue
        task = _task(scene, question, level, style, random)
        if checked and not _tells(task):
            continue
        seen.add(key)
        yield task
    if len(seen) < count:
        raise TooFewTasks(
            f"found {len(seen)} different tasks of difficulty {difficulty}, fewer than the {count} asked for; ask for fewer"
            f"{', or for more kinds' if kinds else ''}"
        )


def content_key(*texts: str) -> str:
    """Return the digest of texts, however they are spaced or spelled in capitals."""
    words = " ".join(" ".join(texts).lower().split())
    return hashlib.sha256(words.encode()).hexdigest()


def split_of(gold: str) -> Split:
    """Return the split of the tasks that this query answers."""
    return "eval" if int(content_key(gold), 16) % EVAL_OF == 0 else "train"


def task_line(task: Task) -> str:
    """Return a task as its line in a data set."""
    value = {"id": task.id, "environment": task.environment, "tags": list(task.tags), "payload": task.payload}
    return json.dumps(value, ensure_ascii=False)


def all_kinds() -> dict[str, Difficulty]:
    """Return the name of every question template, with its difficulty."""
    return {kind: level for level, templates in TEMPLATES.items() for kind in templates}


def _choices(difficulty: Difficulty | Literal["mixed"], kinds: Sequence[str]) -> list[tuple[Difficulty, str]]:
    found = [
        (level, kind)
        for kind, level in all_kinds().items()
        if (difficulty in ("mixed", level)) and (not kinds or kind in kinds)
    ]
    if unknown := sorted(set(kinds) - {kind for _, kind in found}):
        known = ", ".join(kind for _, kind in _choices(difficulty, ()))
        raise ValueError(f"kind: found {unknown[0]!r}, which difficulty {difficulty} does not have; use one of {known}")
    return found


def _task(scene: Scene, question: Question, level: Difficulty, style: Style, random: Random) -> Task:
    text = question.text if style == "compact" else question.text[0].upper() + question.text[1:]
    payload = {
        "schema": scene.schema,
        "rows": drawn_rows(scene, random),
        "question": text,
        "gold": question.gold,
        "style": style,
    }
    content = json.dumps(payload, ensure_ascii=False).encode()
    return Task(f"sql-{hashlib.sha256(content).hexdigest()[:16]}", ENVIRONMENT, payload, (level, question.kind))


def _tells(task: Task) -> bool:
    """Whether the task tells right from wrong: its gold query gives values, and others on two hidden variants or more."""
    try:
        case = case_of(sql_task(task.payload), hidden_variants=True, skip_orphans=True)
    except NoVariant:
        return False
    gold = case.held[0].gold.rows
    return any(value not in (None, 0) for row in gold for value in row) and case.telling >= 2
