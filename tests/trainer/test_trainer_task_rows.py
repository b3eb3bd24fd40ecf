"""Tasks as a data set: every row that can't be scored is refused with its line, and the rest are counted."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from trainer_support import run_file, write_rows

from halo_api.conditions import Reason
from halo_trainer.cli import main
from halo_trainer.data.load import load_template
from halo_trainer.data.tasks import SHAPE, TaskLines, training_tasks
from halo_trainer.environments.base import EnvironmentFailed
from halo_trainer.environments.registry import checking_settings, environment_of
from halo_trainer.environments.sql_tasks import generate, task_line
from halo_trainer.failures import RunFailure
from halo_trainer.inspection import inspect
from halo_trainer.reporting import Reporting

DATA = {"name": "tasks", "kind": "tasks", "source": "pvc://data/tasks.jsonl"}
GOOD: dict[str, Any] = {
    "id": "t-1",
    "environment": "sql",
    "tags": ["easy"],
    "payload": {
        "schema": "CREATE TABLE pets (name TEXT UNIQUE, age INTEGER);",
        "rows": {"pets": [["Rex", 3], ["Tom", 5], ["Kim", 9]]},
        "question": "How many pets are older than 4?",
        "gold": "SELECT COUNT(*) FROM pets WHERE age > 4",
    },
}
IS_NONE = "is no task of environment sql: "


def row(inside: dict[str, Any] | None = None, **changes: Any) -> str:
    """Return a good row with changes, `inside` those of its payload; None leaves a key out."""
    value = copy.deepcopy(GOOD) | {"id": "t-2"} | changes
    if inside is not None:
        value["payload"] = {key: part for key, part in (value["payload"] | inside).items() if part is not None}
    return json.dumps({key: part for key, part in value.items() if part is not None})


CASES = {
    "no object": ("[]", f"is a list, not an object; {SHAPE}"),
    "no id": (row(id=None), f"has no id (found environment, tags, payload); {SHAPE}"),
    "an id twice": (row(id="t-1"), 'has the id "t-1" of line 1; give each task an id of its own'),
    "an id of two lines": (row(id="a\nb"), 'has the id "a\\nb"; use at most 200 printable characters'),
    "an empty id": (row(id=""), f"has id that is empty; {SHAPE}"),
    "a number as environment": (row(environment=3), f"has environment that is a number; {SHAPE}"),
    "an environment that is not there": (row(environment="support"), 'has the environment "support"; use sql'),
    "another field": (row(extra=1), 'has the field "extra"; a task has id, environment, payload, tags; put the rest into payload'),
    "tags no list": (row(tags="easy"), 'has tags that are no list of at most 16; write tags as ["easy", "joins"]'),
    "a tag of two words": (row(tags=["a b"]), 'has the tag "a b"; use up to 63 letters, digits, and . _ : / - between them'),
    "a payload that is text": (row(payload="x"), f"has payload that is a string; {SHAPE}"),
    "another field of the payload": (row({"sql": "x"}), IS_NONE + "payload: found the field 'sql'; it has schema, rows, question, gold, style"),
    "no gold": (row({"gold": None}), IS_NONE + 'payload.gold: found none; write {"schema": "CREATE TABLE ...", "rows": {"pets": [["Rex", 3]]}, "question": "...", "gold": "SELECT ..."} as payload'),
    "a style": (row({"style": "long"}), IS_NONE + 'payload.style: found "long"; use chat or compact, or leave it out'),
    "half a surrogate pair": (row({"question": "\ud800"}), IS_NONE + "payload.question: found half a surrogate pair; write the character whole"),
    "a gold that fails": (row({"gold": "SELECT legs FROM pets"}), IS_NONE + "payload.gold: SQLite refuses the query: no such column: legs; write a SELECT that the schema answers"),
    "a gold that writes": (row({"gold": "DELETE FROM pets"}), IS_NONE + "payload.gold: the query may only SELECT from the task's tables, and uses DELETE; write a SELECT that the schema answers"),
    "a schema that is none": (row({"schema": "CREATE TABLE pets"}), IS_NONE + "payload.schema: found what SQLite refuses (incomplete input); write CREATE TABLE and CREATE INDEX statements alone"),
    "a schema that inserts": (row({"schema": "CREATE TABLE pets (name, age); INSERT INTO pets VALUES (1, 2);"}), IS_NONE + "payload.schema: found more than CREATE TABLE and CREATE INDEX; write CREATE TABLE and CREATE INDEX statements alone"),
    "rows of no table": (row({"rows": {"dogs": []}}), IS_NONE + "payload.rows: found 'dogs', which is no table of the schema; name one of pets"),
    "a row that is short": (row({"rows": {"pets": [["Rex"]]}}), IS_NONE + "payload.rows: found in pets[0] 1 values; give one for each of its 2 columns"),
    "a row that breaks a constraint": (row({"rows": {"pets": [["Rex", 3], ["Rex", 4]]}}), IS_NONE + "payload.rows: found in pets[1] what SQLite refuses (UNIQUE constraint failed: pets.name); mend the row or the schema"),
    "a cell that is a list": (row({"rows": {"pets": [[[], 3]]}}), IS_NONE + "payload.rows.pets[0]: found a value that is neither text, a number nor null; write one of these"),
}  # fmt: skip


def inspected(root: Path, *lines: str) -> Any:
    (root / "data" / "tasks.jsonl").write_text("".join(line + "\n" for line in lines))
    run = run_file("inspect", data=DATA)
    return inspect(run, str(root), Reporting(root / "report.json", run))


@pytest.mark.parametrize(("line", "sentence"), CASES.values(), ids=CASES)
def test_a_bad_task_is_named(line: str, sentence: str, root: Path) -> None:
    with pytest.raises(RunFailure) as refused:
        inspected(root, json.dumps(GOOD), line, json.dumps(GOOD | {"id": "t-3"}))
    assert (refused.value.reason, str(refused.value)) == (Reason.BAD_ROW, f"line 2 {sentence}")


def test_an_inspection_counts_tasks_and_the_prompts_that_they_open_with(root: Path) -> None:
    tasks = list(generate(3, 0, "train", "easy", "compact"))
    outcome = inspected(root, json.dumps(GOOD), *map(task_line, tasks))
    counted = outcome.inspection
    template = load_template(run_file().base, root / "models" / "tiny")
    environment = environment_of(checking_settings("sql"))
    openings = [environment.session(task).open() for task in training_tasks_of(root)]
    prompts = [len(template.prompt_ids(list(one.messages), list(one.tools) or None)) for one in openings]
    assert (counted.rows, counted.tokens, counted.trained_tokens, counted.longest_row) == (
        4,
        sum(prompts),
        0,
        max(prompts),
    )
    assert [(one.name, one.rows) for one in counted.environments] == [("sql", 4)]
    assert (counted.tags[0].name, counted.tags[0].rows) == ("easy", 4)
    assert outcome.message.startswith(f"4 tasks (sql 4), {sum(prompts)} tokens of tiny in the prompts")
    assert len(outcome.termination_message()) < 4096


def training_tasks_of(root: Path) -> Any:
    run = run_file(data=DATA)
    assert run.data
    return training_tasks(run.data, root / "data" / "tasks.jsonl", checking_settings("sql"))


def test_another_file_than_the_inspected_one_is_refused(root: Path) -> None:
    write_rows(root / "data" / "tasks.jsonl", [GOOD])
    run = run_file(data=DATA | {"sha256": "sha256:" + "0" * 64})
    assert run.data
    with pytest.raises(RunFailure) as refused:
        list(training_tasks(run.data, root / "data" / "tasks.jsonl", checking_settings("sql")))
    assert refused.value.reason == Reason.DATASET_CHANGED


def test_the_example_is_right() -> None:
    lines = (Path(__file__).resolve().parents[2] / "examples" / "sql-tasks.jsonl").read_text().splitlines()
    check = TaskLines()
    assert [check.row(number, json.loads(line)).id for number, line in enumerate(lines, 1)]


def test_a_person_sees_what_a_task_opens_with(
    tiny_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(
        tmp_path / "tasks.jsonl", [GOOD, GOOD | {"id": "t-2", "payload": GOOD["payload"] | {"style": "compact"}}]
    )
    assert main(["inspect", "--base", str(tiny_base), str(path)]) == 0
    assert "tasks.jsonl: 2 tasks (sql 2)" in capsys.readouterr().out
    assert main(["inspect", "--base", str(tiny_base), "--rows", "2", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "task 2, t-2: opens with" in shown
    assert "pets(name, age)\nHow many pets are older than 4?" in shown


ORPHANS = "CREATE TABLE owners (id INTEGER, name TEXT); CREATE TABLE pets (name TEXT, owner INTEGER REFERENCES {});"
ROWS = {"owners": [[i, f"o{i}"] for i in range(1, 5)], "pets": [[f"p{i}", i % 4 + 1] for i in range(9)]}


@pytest.mark.parametrize("parent", ["owners(id)", "owners", "nobody(id)"])
def test_a_foreign_key_that_names_no_parent_key_is_skipped_by_sql_v3_and_leaves_sql_v2_without_a_score(
    parent: str,
) -> None:
    """sql_v2 asks for a key of the parent that there is not: no fault of an answer, so the episode is left out."""
    payload = {"schema": ORPHANS.format(parent), "rows": ROWS, "question": "?", "gold": "SELECT name, owner FROM pets"}
    task = TaskLines().shape(1, {"id": "t", "environment": "sql", "payload": payload})
    v3 = checking_settings("sql")
    v2 = v3.model_copy(update={"version": 2, "skip_orphan_foreign_keys": False})
    assert environment_of(v3).session(task).score("SELECT name, owner FROM pets").passed
    environment_of(v3).check(payload)
    with pytest.raises(EnvironmentFailed, match=r"the foreign key pets\(owner\) names no key of"):
        environment_of(v2).session(task)
    with pytest.raises(ValueError, match="the recipe's hidden variants do not skip such a one"):
        environment_of(v2).check(payload)
    keyed = payload | {"schema": ORPHANS.format("owners(id)").replace("id INTEGER,", "id INTEGER PRIMARY KEY,")}
    assert (
        environment_of(v2)
        .session(TaskLines().shape(1, {"id": "t", "environment": "sql", "payload": keyed}))
        .score("SELECT name, owner FROM pets")
        .passed
    )


def test_without_hidden_variants_the_shown_rows_alone_decide() -> None:
    task = TaskLines().row(1, GOOD)
    plain = checking_settings("sql").model_copy(update={"hidden_variants": False})
    assert environment_of(plain).session(task).score("SELECT 2").passed
    assert not environment_of(checking_settings("sql")).session(task).score("SELECT 2").passed
