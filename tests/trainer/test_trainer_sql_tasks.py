"""Generated tasks: the same for a seed, no query in both splits, each told apart from what is nearly right."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import pytest

from halo_trainer.cli import main
from halo_trainer.environments.base import Task
from halo_trainer.environments.registry import checking_settings, environment_of
from halo_trainer.environments.sql_tasks import all_kinds, content_key, generate, split_of, task_line

ENVIRONMENT = environment_of(checking_settings("sql"))


def lines(**arguments: object) -> str:
    return "".join(task_line(task) + "\n" for task in generate(25, **arguments))  # type: ignore[arg-type]


def test_a_seed_gives_the_same_bytes_on_every_machine() -> None:
    """The digest is of this version of the generator: a change of what it writes is a new VERSION."""
    text = lines(seed=7, split="train")
    assert text == lines(seed=7, split="train")
    assert text != lines(seed=8, split="train")
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "f4c264fcd2447d524ac77d2d67f38a818d3969d6f873db336b3b73a9f2d338eb"
    )


def test_no_seed_of_one_split_gives_a_query_of_the_other() -> None:
    splits = {}
    for split in ("train", "eval"):
        found = [t for seed in range(8) for t in generate(150, seed, split, "easy", checked=False)]  # type: ignore[arg-type]
        splits[split] = {content_key(task.payload["gold"]) for task in found}
        assert len(splits[split]) > 100
    assert not splits["train"] & splits["eval"]
    assert split_of("SELECT  name\nFROM pets") == split_of("select name from PETS")


@pytest.mark.parametrize("kind", all_kinds())
def test_gold_passes_and_a_constant_or_one_row_less_does_not(kind: str) -> None:
    for task in generate(2, 3, "train", all_kinds()[kind], kinds=[kind]):
        session = ENVIRONMENT.session(task)
        gold = task.payload["gold"]
        assert session.score(f"```sql\n{gold}\n```").passed
        assert session.score(hard_coded(task)).reward == 0.0
        assert not session.score(f"SELECT * FROM ({gold}) LIMIT (SELECT COUNT(*) - 1 FROM ({gold}))").passed


def hard_coded(task: Task) -> str:
    """Return a query that writes down the rows that the gold query gives on the database that is shown."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(task.payload["schema"])
    for table, rows in task.payload["rows"].items():
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    found = connection.execute(task.payload["gold"]).fetchall()
    quote = lambda value: connection.execute("SELECT quote(?)", (value,)).fetchone()[0]  # noqa: E731
    return " UNION ALL ".join(f"SELECT {', '.join(map(quote, row))}" for row in found)


def test_easy_golds_are_what_python_counts() -> None:
    """A second reading of the questions, by hand."""
    for task in generate(6, 5, "eval", "easy", kinds=["count-category"]):
        words = task.payload["gold"].split()
        table, column, value = words[3], words[5], words[7].strip("'")
        names = task.payload["schema"].split("(", 1)[1]
        at = [part.split()[0] for part in names.split(",")].index(column)
        count = sum(row[at] == value for row in task.payload["rows"][table])
        assert (
            ENVIRONMENT.session(task).call("run_sql", {"query": task.payload["gold"]}).content == f"COUNT(*)\n{count}"
        )


def test_a_compact_task_opens_with_names_and_the_question_alone() -> None:
    (task,) = generate(1, 0, "train", "easy", "compact")
    opening = ENVIRONMENT.session(task).open()
    assert opening.tools == ()
    (message,) = opening.messages
    assert message["content"].splitlines()[-1] == task.payload["question"]
    assert len(message["content"]) < 120


def test_the_command_writes_a_file_or_says_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "data" / "sql.jsonl"
    asked = ["tasks", "sql", "--count", "25", "--seed", "7", "--split", "train", "--volumes", str(tmp_path)]
    assert main([*asked, "--out", "pvc://data/sql.jsonl"]) == 0
    assert out.read_text() == lines(seed=7, split="train")
    monkeypatch.setattr("halo_trainer.environments.sql_tasks.MOST_DRAWS", 1)
    assert main([*asked, "--out", str(out), "--kind", "count", "--difficulty", "easy"]) == 1
    said = capsys.readouterr().err
    assert "different tasks of difficulty easy, fewer than the 25 asked for; ask for fewer, or for more kinds" in said
    assert [path.name for path in out.parent.iterdir()] == ["sql.jsonl"]
