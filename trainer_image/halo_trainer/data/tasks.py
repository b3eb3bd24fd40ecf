"""Task rows, for online RL: which JSON objects are one, each checked by the environment that it names."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from halo_api.recipe_settings import TaskEnvironment
from halo_api.run_file import DataRef
from halo_trainer.data.jsonl import JsonLines, bad_row
from halo_trainer.data.load import same_file
from halo_trainer.data.rows import json_kind, shown, some_keys
from halo_trainer.environments.base import Environment, EnvironmentFailed, Opening, Task
from halo_trainer.environments.registry import NAMES, checking_settings, environment_of

SHAPE = 'write {"id": "t-1", "environment": "sql", "payload": {...}}'
FIELDS = ("id", "environment", "payload", "tags")
LONGEST_ID = 200
MOST_TAGS = 16
_TAG = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._:/]{0,62}")


class TaskLines:
    """The check of the lines of one file, which are given to it in their order: no id may come twice."""

    def __init__(self, settings: TaskEnvironment | None = None) -> None:
        """With a recipe's settings only its environment's tasks will do; else those of every environment that there is."""
        self._settings = settings
        self._environments: dict[str, Environment] = {}
        self._lines: dict[str, int] = {}

    def shape(self, line: int, value: Any) -> Task:
        """Check all of a row but its payload; what is wrong is said with the line, what was found and what would do."""
        task = task_shape(line, value)
        self.environment(line, task)
        if before := self._lines.get(task.id):
            raise bad_row(line, f"has the id {shown(task.id)} of line {before}", "give each task an id of its own")
        self._lines[task.id] = line
        return task

    def row(self, line: int, value: Any) -> Task:
        """Check one row, and with it whether its environment can score answers to it."""
        task = self.shape(line, value)
        try:
            self.environment(line, task).check(task.payload)
        except ValueError as problem:
            found, _, cure = str(problem).rpartition("; ")
            found, cure = (found, cure) if found else (cure, "mend the task, or leave it out")
            raise bad_row(line, f"is no task of environment {task.environment}: {found}", cure) from problem
        return task

    def opening(self, line: int, task: Task) -> Opening:
        """Return how the task's episodes begin."""
        try:
            session = self.environment(line, task).session(task)
            try:
                return session.open()
            finally:
                session.close()
        except EnvironmentFailed as failure:
            raise bad_row(line, f"can't be opened ({failure})", "mend the task, or leave it out") from failure

    def environment(self, line: int, task: Task) -> Environment:
        """Return the environment that a task names."""
        known = NAMES if self._settings is None else (self._settings.name,)
        if task.environment not in known:
            raise bad_row(line, f"has the environment {shown(task.environment)}", f"use {' or '.join(known)}")
        if task.environment not in self._environments:
            settings = self._settings or checking_settings(task.environment)
            self._environments[task.environment] = environment_of(settings)
        return self._environments[task.environment]


def task_shape(line: int, value: Any) -> Task:
    """Return the task that a row is, whatever its payload."""
    if not isinstance(value, dict):
        raise bad_row(line, f"is {json_kind(value)}, not an object", SHAPE)
    for name, kind in (("id", str), ("environment", str), ("payload", dict)):
        if name not in value:
            raise bad_row(line, f"has no {name} (found {some_keys(value)})", SHAPE)
        if not isinstance(value[name], kind) or not value[name]:
            found = "that is empty" if isinstance(value[name], kind) else f"that is {json_kind(value[name])}"
            raise bad_row(line, f"has {name} {found}", SHAPE)
    if unknown := [key for key in value if key not in FIELDS]:
        raise bad_row(
            line, f"has the field {shown(unknown[0])}", f"a task has {', '.join(FIELDS)}; put the rest into payload"
        )
    if len(value["id"]) > LONGEST_ID or not value["id"].isprintable():
        raise bad_row(line, f"has the id {shown(value['id'])}", f"use at most {LONGEST_ID} printable characters")
    tags = value.get("tags", [])
    if not isinstance(tags, list) or len(tags) > MOST_TAGS:
        raise bad_row(line, "has tags that are no list of at most 16", 'write tags as ["easy", "joins"]')
    for tag in tags:
        if not isinstance(tag, str) or not _TAG.fullmatch(tag):
            raise bad_row(line, f"has the tag {shown(tag)}", "use up to 63 letters, digits, and . _ : / - between them")
    return Task(value["id"], value["environment"], value["payload"], tuple(dict.fromkeys(tags)))


def training_tasks(data: DataRef, path: Path, settings: TaskEnvironment) -> Iterator[Task]:
    """Yield the tasks of the very file that was inspected, in its order: which is why no gold query is run again."""
    lines = JsonLines(path)
    yield from itertools.starmap(TaskLines(settings).shape, lines)
    same_file(data, path, lines.digest)


class TaskCounts:
    """How many tasks there are of each environment, and with each tag."""

    def __init__(self) -> None:
        self.environments: Counter[str] = Counter()
        self.tags: Counter[str] = Counter()

    def add(self, task: Task) -> None:
        """Count one task."""
        self.environments[task.environment] += 1
        self.tags.update(task.tags)
