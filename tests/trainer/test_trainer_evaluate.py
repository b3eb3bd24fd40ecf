"""halo-trainer evaluate: episodes of held-out tasks by a model here or by a server, their results, and what two of them say."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_support import make_tokenizer

from halo_trainer.cli import main
from halo_trainer.environments.base import Task
from halo_trainer.environments.sql_tasks import generate, task_line
from halo_trainer.evaluation.samplers import Gumbel

TASKS = list(generate(6, 1, "eval", "easy", "compact"))


def write_tasks(path: Path, tasks: list[Task]) -> Path:
    path.write_text("".join(task_line(task) + "\n" for task in tasks))
    return path


class Knowing(BaseHTTPRequestHandler):
    """A server of vLLM's that knows the answers of the first four tasks, and has lost its mind at the last."""

    asked: list[dict[str, Any]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        tokenizer = make_tokenizer()
        prompt = tokenizer.decode(body["prompt"])
        number = next(n for n, task in enumerate(TASKS) if task.payload["question"] in prompt)
        answer = TASKS[number].payload["gold"] if number < 4 else "SELECT 1 / 0"
        ids = [*tokenizer(answer)["input_ids"], tokenizer.eos_token_id]
        logprobs = {"token_logprobs": [-0.5] * (len(ids) - (number == 5))}
        choice = {"prompt_token_ids": body["prompt"], "token_ids": ids, "finish_reason": "stop", "logprobs": logprobs}
        said = json.dumps({"model": body["model"], "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    """The URL of such a server."""
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Knowing)
    Knowing.asked = []
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    serving.server_close()


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_servers_episodes_are_scored_and_what_failed_is_no_zero(
    server: str, tiny_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halo_trainer.evaluation.samplers.PAUSE_SECONDS", 0.0)
    tasks, out = write_tasks(tmp_path / "tasks.jsonl", TASKS), tmp_path / "after.jsonl"
    where = ["--base", str(tiny_base), "--server", server, "--model", "policy-3", "--tasks", str(tasks)]
    assert main(["evaluate", *where, "--out", str(out), "--samples", "2", "--greedy", "--max-new-tokens", "200"]) == 0
    said = capsys.readouterr().out
    assert said == (
        "greedy: passed 4 of 5 (80.0%), reward 0.8000 of 5 tasks; sampled: passed 8 of 10 (80.0%), reward 0.8000 of 5 tasks; "
        "6 not scored\n"
    )
    first, *episodes = lines_of(out)
    assert first["evaluation"] | {"model": "policy-3", "samples": 2, "temperature": 1.0} == first["evaluation"]
    assert {each["failure"] for each in episodes if "reward" not in each} == {"ServerFailed"}
    assert {body["model"] for body in Knowing.asked} == {"policy-3"}
    assert {body["temperature"] for body in Knowing.asked} == {0.0, 1.0}
    # No two samples draw alike, and a try that failed draws the same again.
    seeds = Counter(body["seed"] for body in Knowing.asked if body["temperature"])
    assert set(seeds.values()) == {1, 4}


def test_a_model_here_draws_the_same_whatever_is_answered_beside_it(tiny_base: Path, tmp_path: Path) -> None:
    tasks = write_tasks(tmp_path / "tasks.jsonl", TASKS[:3])
    found = []
    for batch in (1, 5):
        out = tmp_path / f"{batch}.jsonl"
        how = ["--greedy", "--samples", "2", "--max-new-tokens", "8", "--batch", str(batch), "--workers", "1"]
        assert main(["evaluate", "--base", str(tiny_base), "--tasks", str(tasks), "--out", str(out), *how]) == 0
        found.append([(each["way"], each["task"], each["sample"], each["messages"]) for each in lines_of(out)[1:]])
    assert found[0] == found[1]
    said = [messages[-1]["content"] for way, _, _, messages in found[0] if way == "sampled"]
    assert len(found[0]) == 9
    assert len(set(said)) > 1


def test_the_noise_makes_the_highest_logit_a_sample() -> None:
    """Of 3,000 draws each token comes as often as its softmax says, within four standard errors."""
    logits, temperature, count = torch.tensor([[1.0, 0.0, 2.0, -1.0]]), 0.7, 3000
    drawn = Counter(int(Gumbel([seed], temperature)(torch.empty(0), logits).argmax()) for seed in range(count))
    for token, share in enumerate(torch.softmax(logits[0] / temperature, 0).tolist()):
        assert abs(drawn[token] / count - share) < 4 * math.sqrt(share * (1 - share) / count)


def result(path: Path, rewards: dict[str, list[float | None]], **settings: Any) -> Path:
    episodes = [
        {"way": "sampled", "task": task, "sample": sample}
        | ({"failure": "TimedOut"} if reward is None else {"reward": reward, "passed": reward == 1.0})
        for task, found in rewards.items()
        for sample, reward in enumerate(found)
    ]
    lines = [{"evaluation": {"tasks": "sha256:1"} | settings}, *episodes]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_two_results_are_compared_over_the_tasks_that_both_have_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {f"t{n}": [0.0, 1.0 if n % 4 == 0 else 0.0] for n in range(200)} | {"lost": [None, None]}
    after = {f"t{n}": [1.0 if n % 2 else 0.0, 0.0] for n in range(200)} | {"lost": [1.0, 1.0]}
    paths = result(tmp_path / "after", after, seed=1), result(tmp_path / "before", before, seed=0)
    assert main(["evaluate", "--out", str(paths[0]), "--against", str(paths[1])]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[0] == "sampled: passed 102 of 402 (25.4%), reward 0.2537 of 201 tasks"
    line = told.out.splitlines()[1]
    assert line.startswith("sampled: reward 0.1250 → 0.2500, difference +0.1250, 95 % interval [+0.0")
    assert line.endswith(" over 200 tasks: better")
    assert told.err == "not the same in both: seed 0 and 1\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--out", "none"], "none: can't be read (No such file or directory)"),
        (["--out", "tasks"], "tasks is no file of results, whose first line says how they were made; name what --out wrote"),
        (["--out", "a", "--against", "b"], "b and a have no scored task in common; evaluate both on the same tasks"),
        (["--out", "x", "--base", "BASE"], "--tasks is missing; name the JSONL file of the tasks to play"),
        (["--out", "x", "--base", "BASE", "--tasks", "tasks"], "found neither --greedy nor --samples K; ask for one or both"),
        (["--out", "x", "--base", "BASE", "--tasks", "a", "--greedy"], "line 1 has no id (found evaluation); write {\"id\": \"t-1\", \"environment\": \"sql\", \"payload\": {...}}"),
    ],
)  # fmt: skip
def test_what_is_in_the_way_is_one_sentence(
    arguments: list[str], says: str, tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    write_tasks(Path("tasks"), TASKS)
    result(Path("a"), {"one": [1.0]})
    result(Path("b"), {"other": [1.0]})
    assert main(["evaluate", *[str(tiny_base) if word == "BASE" else word for word in arguments]]) == 1
    assert capsys.readouterr().err == f"halo-trainer: {says}\n"
