"""hack/sql-base: a base of random weights that learns the tasks' language: the same bytes each time, and nothing of what it is judged by."""

from __future__ import annotations

import dataclasses
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from hack.sqlbase.cli import is_there, put
from hack.sqlbase.language import careless, names, rows
from hack.sqlbase.recipe import Recipe
from hack.sqlbase.train import pair_of

from halo_trainer.data.load import load_template, load_tokenizer, local_base
from halo_trainer.environments.registry import checking_settings, environment_of
from halo_trainer.environments.sql_tasks import generate, split_of
from halo_trainer.rollouts.chat import Chat, stop_ids

TINY = Recipe(rows=96, hidden=64, intermediate=64, layers=1, heads=2, key_value_heads=1, head_dim=32, vocabulary=400)


def test_a_prompt_is_what_the_environment_asks() -> None:
    environment = environment_of(checking_settings("sql"))
    for task in generate(12, 5, "eval", "easy", "compact"):
        (message,) = environment.session(task).open().messages
        assert message["content"] == f"{names(str(task.payload['schema']))}\n{task.payload['question']}"


def test_it_reads_the_train_split_alone() -> None:
    for task in generate(300, 0, "train", "easy", "compact", checked=False):
        assert split_of(str(task.payload["gold"])) == "train"
    assert list(rows(50, 0, 0.2)) == list(rows(50, 0, 0.2))
    assert list(rows(50, 0, 0.2)) != list(rows(50, 1, 0.2))


def test_carelessness_makes_choices_anew_and_leaves_the_rest() -> None:
    schema = "CREATE TABLE pets (name TEXT NOT NULL, color TEXT, age INTEGER);"
    gold = "SELECT MAX(age) FROM pets WHERE color = 'red' AND age >= 7"
    assert careless(gold, schema, Random(0), 0.0) == gold
    words = careless(gold, schema, Random(0), 1.0).replace("(", " ( ").replace(")", " ) ").split()
    kept = [0, 2, 4, 5, 6, 7, 9, 10, 11]
    before = gold.replace("(", " ( ").replace(")", " ) ").split()
    assert [words[place] for place in kept] == [before[place] for place in kept]
    assert all(words[place] != before[place] for place in range(len(before)) if place not in kept)


def test_the_same_recipe_gives_the_same_bytes_which_the_trainer_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "a" / "sql-tiny", tmp_path / "b" / "sql-tiny"
    for folder in (first, second):
        folder.parent.mkdir()
        put(TINY, folder)
    assert is_there(TINY, first)
    assert not is_there(dataclasses.replace(TINY, seed=1), first)
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes(), file.name
        assert file.stat().st_mode & 0o777 == 0o644
    base, folder = local_base(str(first), "/volumes")
    template, tokenizer = load_template(base, folder), load_tokenizer(base, folder)
    stops = stop_ids(template, tokenizer, folder)
    chat = Chat(template, stops, "turn")
    assert not chat.takes_tools
    for row in islice(rows(4, 0, 0.0), 4):
        prompt, answer = pair_of(tokenizer, row)
        assert chat.open(row.messages).prompt.tolist() == prompt
        assert answer[-1] in stops
        assert template.decode(answer[:-1]) == row.answer
