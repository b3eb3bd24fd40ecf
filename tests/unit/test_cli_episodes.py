"""kubectl halo episodes: what was sampled, as a person reads it, from a run's claim; and what is in the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from halo_api.transcript import EpisodeSeen, seen
from halo_cli.__main__ import main
from halo_cli.episodes import ranges
from halo_cli.episodes_view import Paint, shown
from tests.unit.played_kubectl import Played
from tests.unit.test_cli_plot import CLAIM, run

CALL = {"type": "function", "function": {"name": "run_sql", "arguments": {"query": "SELECT 1"}}}
MESSAGES = [
    {"role": "user", "content": "pets(name)\nhow many pets are there?"},
    {"role": "assistant", "content": "Let me see.", "reasoning_content": "Count them.", "tool_calls": [CALL]},
    {"role": "tool", "name": "run_sql", "content": "1"},
    {"role": "assistant", "content": "SELECT COUNT(*) FROM pets"},
]
PASSED = {
    "step": 40, "task": "sql-1", "sample": 3, "reward": 1.0, "passed": True, "reason": "the rows are right",
    "checks": {"shown": True}, "policies": [39], "servers": [0, 1], "turns": 2, "tokens": 31, "seconds": 1.25,
    "truncated": False, "messages": MESSAGES,
}  # fmt: skip
FAILED = PASSED | {"task": "sql-2", "reward": 0.0, "passed": False, "reason": "other rows", "checks": {"shown": True, "variant 1": False}}  # fmt: skip
LOST = {"step": 40, "task": "sql-2", "sample": 4, "failure": "ServerFailed", "detail": "no answer within 9 s", "truncated": False}  # fmt: skip


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """A cluster with the run `online`, whose second attempt sampled step 40 again."""
    played = Played(tmp_path / "cluster").on_path(monkeypatch)
    played.put(
        "configmap", "halo-operator-client", {"data": {"trainerImage": "t:1", "trainerImagePullPolicy": "Never"}}
    )
    played.put("persistentvolumeclaim", CLAIM, {})
    body = run("online", attempt=2, at=40)
    body["status"]["frozen"]["rlvr"] = {"recipe": "sql_v3", "rolloutGpus": 1, "dataset": "sql"}
    played.put("trainingjob", "online", body)
    write(played, 1, 39, PASSED | {"step": 39})
    write(played, 1, 40, PASSED | {"task": "of the attempt before"})
    write(played, 2, 40, PASSED, FAILED, LOST, cut='{"step": 40, "ta')
    return played


def write(played: Played, attempt: int, step: int, *lines: dict[str, Any], cut: str = "") -> None:
    folder = played.state / "claims" / CLAIM / "uid-online" / f"a{attempt}" / "episodes"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"step-{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + cut)


TEXT = """\
━━ PASSED  task sql-1  sample 3  reward 1  2 turns  31 tokens  1.2 s  policy 39  server 0 and 1
user
  pets(name)
  how many pets are there?
assistant
  thinks: Count them.
  Let me see.
  → run_sql {"query": "SELECT 1"}
tool run_sql
  1
assistant
  SELECT COUNT(*) FROM pets
checks  ✓ shown
the rows are right"""


def test_an_episode_reads_from_its_question_to_its_score() -> None:
    assert shown(EpisodeSeen.model_validate(PASSED), Paint(False)) == TEXT
    lost = shown(EpisodeSeen.model_validate(LOST), Paint(False)).splitlines()
    assert lost == [
        "━━ NOT SCORED  task sql-2  sample 4  0 turns  0 tokens  0.0 s",
        "ServerFailed: no answer within 9 s",
    ]
    assert "✗ variant 1\nother rows" in shown(EpisodeSeen.model_validate(FAILED), Paint(False))


def test_what_a_model_says_moves_no_terminal() -> None:
    hostile = PASSED | {
        "task": "\x1b]0;title\x07", "reason": "\x1b[2J", "checks": {"\x9b1m": True},
        "messages": [{"role": "assistant", "content": "\x1b[31mred\r\u202egnorw", "tool_calls": ["odd", {"function": {"name": "\x1b"}}]}],
    }  # fmt: skip
    text = shown(EpisodeSeen.model_validate(hostile), Paint(False))
    assert not set(text) & {"\x1b", "\x07", "\x9b", "\r", "\u202e"}
    assert "␛[31mred␍" in text
    painted = shown(EpisodeSeen.model_validate(hostile), Paint(True))
    assert "\x1b[1;32mPASSED\x1b[0m" in painted
    assert "\x1b[2J" not in painted


def test_the_last_step_of_the_latest_attempt_is_shown(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["episodes", "online"]) == 0
    out = capsys.readouterr().out
    assert [line[3:9] for line in out.splitlines() if line.startswith("━━")] == ["PASSED", "FAILED", "NOT SC"]
    assert out.splitlines()[-1] == "step 40 of online: 3 episodes, 1 passed, 1 failed, 1 not scored"
    assert "attempt before" not in out
    (pod,) = (json.loads(line) for line in (played.state / "pods.jsonl").read_text().splitlines())
    assert [v["persistentVolumeClaim"] for v in pod["spec"]["volumes"][1:]] == [{"claimName": CLAIM, "readOnly": True}]
    assert played.all("pods") == {}


def test_those_that_are_asked_for_come_as_json(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["episodes", "online", "--failed", "--task", "sql-2", "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [FAILED]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--step", "7"], "--step: found 7; online has episodes of steps 39 to 40"),
        (
            ["--task", "none"],
            "none of those are asked for; step 40 of online: 3 episodes, 1 passed, 1 failed, 1 not scored",
        ),
    ],
)
def test_what_is_not_there_is_one_sentence(
    arguments: list[str], says: str, played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["episodes", "online", *arguments]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"kubectl halo: {says}"


def test_a_run_that_samples_none_costs_no_pod(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    played.put("trainingjob", "first", run("first", at=4))
    assert main(["episodes", "first"]) == 1
    assert capsys.readouterr().err == "kubectl halo: first samples no episodes: its base is not halo_rlvr\n"
    assert not (played.state / "pods.jsonl").exists()


def test_steps_are_told_in_ranges_and_no_line_is_no_episode() -> None:
    assert ranges([0]) == "step 0"
    assert ranges([1, 2, 3, 7, 9, 10]) == "steps 1 to 3, 7, 9 to 10"
    assert seen('{"task": "x", "sample"') is None
