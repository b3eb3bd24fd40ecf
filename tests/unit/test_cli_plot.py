"""kubectl halo plot: the curves that lie on a run's claim, joined over its attempts, as text and as pictures; and what is in the way."""

from __future__ import annotations

import itertools
import json
import os
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_api.metrics_history import METRICS_NAME, StepMetrics, is_kept, joined, stride
from halo_cli import plot_terminal
from halo_cli.__main__ import main
from halo_cli.plot_series import METRICS, Panel, Point, averaged, panels
from halo_operator.plan.freeze import freeze
from tests.unit import builders as b
from tests.unit.played_kubectl import Played

CLAIM = "halo-artifacts"


def step(number: int, attempt: int = 1, **changes: Any) -> StepMetrics:
    """A step whose loss and speed are its number's."""
    facts = {
        "attempt": attempt, "step": number, "at": 1.8e9 + number, "seconds": 0.5, "loss": 3.0 / number,
        "learning_rate": 1e-4, "grad_norm": 0.25, "tokens": 100, "tokens_per_second": 800.0 + number,
    }  # fmt: skip
    return StepMetrics(**facts | changes)


def run(name: str, attempt: int | None = 1, at: int = 0, waiting: str | None = None) -> dict[str, Any]:
    """A TrainingJob, `at` a step if any; its claim is the default one."""
    status: dict[str, Any] = {"waiting": waiting, "conditions": []}
    if attempt:
        status |= {"attempt": attempt, "frozen": freeze(b.world()).to_json()}
    if at:
        status["progress"] = {"step": at, "steps": 100, "percent": at, "updatedAt": "2026-11-29T11:00:00Z"}
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "status": status}


def write(played: Played, name: str, steps: Sequence[StepMetrics], attempt: int = 1, more: bytes = b"") -> Path:
    """Put the metrics of an attempt on the claim, as the trainer does."""
    file = played.state / "claims" / CLAIM / f"uid-{name}" / f"a{attempt}" / METRICS_NAME
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [one.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n" for one in steps]
    file.write_bytes(b"".join(lines) + more)
    return file


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """A cluster with the run `first`, which was relaunched from step 20, and this process below its folder."""
    played = Played(tmp_path / "cluster").on_path(monkeypatch)
    played.put(
        "configmap", "halo-operator-client", {"data": {"trainerImage": "t:1", "trainerImagePullPolicy": "Never"}}
    )
    played.put("persistentvolumeclaim", CLAIM, {})
    played.put("trainingjob", "first", run("first", attempt=2, at=40))
    # The node was lost amid a line.
    write(played, "first", [step(n, loss=9.0) for n in range(1, 26)], more=b'{"attempt": 1, "st')
    write(played, "first", [step(n, attempt=2, mfu=0.41) for n in range(21, 41)], attempt=2)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "80")
    return played


def test_the_curves_and_the_last_step_are_shown(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "first"]) == 0
    out = capsys.readouterr().out
    titles = [line for line in out.splitlines() if line in ("loss", "tokens/s", "gradient norm", "learning rate")]
    assert titles == ["loss", "tokens/s", "gradient norm", "learning rate"]
    assert max(len(line) for line in out.splitlines()[:-1]) <= 80
    assert out.splitlines()[-1] == (
        "first  step 40  loss 0.075  tokens/s 840  gradient norm 0.25  learning rate 1.00e-04  MFU 41.0%  "
        "attempt 2 from step 21"
    )
    (pod,) = (json.loads(line) for line in (played.state / "pods.jsonl").read_text().splitlines())
    assert [v["persistentVolumeClaim"] for v in pod["spec"]["volumes"][1:]] == [{"claimName": CLAIM, "readOnly": True}]
    assert played.all("pods") == {}


def test_a_picture_is_the_same_bytes_each_time(played: Played) -> None:
    assert main(["plot", "first", "--svg", "a.svg", "--png", "a.png"]) == 0
    assert main(["plot", "first", "--svg", "b.svg", "--png", "b.png"]) == 0
    assert sorted(os.listdir(".")) == ["a.png", "a.svg", "b.png", "b.svg"]
    assert Path("a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert ET.parse("a.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    for form in ("svg", "png"):
        assert Path(f"a.{form}").read_bytes() == Path(f"b.{form}").read_bytes()


def test_a_picture_goes_down_a_pipe(played: Played, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["plot", "first", "--svg", "-"]) == 0
    assert ET.fromstring(capsysbinary.readouterr().out).tag.endswith("svg")


def test_several_runs_are_drawn_over_each_other(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    other = run("second", at=9)
    other["status"]["frozen"]["artifactsClaim"] = "elsewhere"
    played.put("trainingjob", "second", other)
    played.put("persistentvolumeclaim", "elsewhere", {})
    played.state.joinpath("claims", "elsewhere").mkdir(parents=True)
    write(played, "second", [step(n, reward_margin=0.1 * n) for n in range(1, 10)])
    played.state.joinpath("claims", CLAIM, "uid-second").rename(played.state / "claims" / "elsewhere" / "uid-second")
    assert main(["plot", "first", "second", "first"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "loss   a first   b second" in out
    assert "reward margin" in out
    assert [line.split("  ")[:2] for line in out[-2:]] == [["first", "step 40"], ["second", "step 9"]]
    (pod,) = (json.loads(line) for line in (played.state / "pods.jsonl").read_text().splitlines())
    assert [v["persistentVolumeClaim"]["claimName"] for v in pod["spec"]["volumes"][1:]] == [CLAIM, "elsewhere"]


def test_of_a_run_that_samples_episodes_the_reward_comes_first(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    played.put("trainingjob", "online", run("online", at=9))
    told = {"reward": 0.5, "pass_rate": 0.25, "mismatch": 2e-4, "kl": 0.01, "tokens_per_second": 900.0}
    write(played, "online", [step(n, rollouts=told | {"staleness": n % 2}) for n in range(1, 10)])
    assert main(["plot", "online"]) == 0
    out = capsys.readouterr().out.splitlines()
    titles = [line for line in out if line in {metric.title for metric in METRICS.values()}]
    assert titles[:6] == ["reward", "pass rate", "KL a token", "mismatch", "loss", "tokens/s"]
    assert "online  step 9  reward 0.5  pass rate 25.0%  KL a token 0.01  mismatch 2.00e-04  " in out[-1]
    assert main(["plot", "online", "--metric", "staleness"]) == 0
    assert capsys.readouterr().out.startswith("staleness\n")


def test_other_metrics_are_drawn_where_there_are_any(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "first", "--metric", "mfu"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "MFU"
    assert "loss\n" not in out
    assert main(["plot", "first", "--metric", "memory"]) == 1
    assert capsys.readouterr().err.endswith(
        "--metric: found memory, which no step of first has; use loss, throughput, gradNorm, learningRate, mfu\n"
    )


def lost_claim(played: Played) -> None:
    played.path("persistentvolumeclaim", CLAIM).unlink()


def lost_folder(played: Played) -> None:
    (played.state / "claims" / CLAIM / "uid-first").rename(played.state / "gone")


def led_away(played: Played) -> None:
    lost_folder(played)
    (played.state / "claims" / CLAIM / "uid-first").symlink_to(played.state / "gone")


def not_begun(played: Played) -> None:
    played.put("trainingjob", "first", run("first", attempt=None, waiting="8 h100 are in use"))


def no_step_yet(played: Played) -> None:
    lost_folder(played)
    played.put("trainingjob", "first", run("first", waiting="pod first-trainer-0-a1 pulls its image"))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (not_begun, "first has no step yet: 8 h100 are in use"),
        (no_step_yet, "first has no step yet: pod first-trainer-0-a1 pulls its image"),
        (lost_claim, f"there is no PersistentVolumeClaim {CLAIM} in namespace team-a; see kubectl get pvc"),
        (
            lost_folder,
            f"first is at step 40, and found no {METRICS_NAME} of it below pvc://{CLAIM}/uid-first: "
            "its folder was removed, or an image from before plots trained it",
        ),
        (
            led_away,
            f"the metrics of first can't be read: pvc://{CLAIM}/uid-first leads out of the claims of this pod",
        ),
    ],
)
def test_what_is_in_the_way_is_one_sentence(
    harm: Any, says: str, played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    harm(played)
    assert main(["plot", "first"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"kubectl halo: {says}"
    assert played.all("pods") == {}


def test_a_run_that_is_not_there_costs_no_pod(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "first", "none"]) == 1
    assert "there is no TrainingJob none in namespace team-a; see kubectl get trainingjobs" in capsys.readouterr().err
    assert not (played.state / "pods.jsonl").exists()


def test_nor_does_a_library_that_is_not_there(
    played: Played, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["plot", "first", "--png", "x.png"]) == 1
    assert (
        "drawing takes the package matplotlib, which the extra plot of this package brings" in capsys.readouterr().err
    )
    assert not (played.state / "pods.jsonl").exists()


def test_a_link_out_of_the_claim_is_not_followed(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    file = played.state / "claims" / CLAIM / "uid-first" / "a2" / METRICS_NAME
    file.rename(played.state / "elsewhere")
    file.symlink_to(played.state / "elsewhere")
    assert main(["plot", "first"]) == 0
    assert "first  step 25  " in capsys.readouterr().out


STEPS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 4)), max_size=60)


@given(STEPS)
def test_of_each_step_the_latest_attempt_counts(pairs: list[tuple[int, int]]) -> None:
    found = joined(step(number, attempt, at=float(place)) for place, (number, attempt) in enumerate(pairs))
    assert [one.step for one in found] == sorted({number for number, _ in pairs})
    for one in found:
        same = [(attempt, place) for place, (number, attempt) in enumerate(pairs) if number == one.step]
        assert (one.attempt, one.at) == max(same)


@given(st.integers(1, 10**6), st.integers(2, 30))
def test_a_long_run_is_thinned_to_what_was_asked_for_and_ends_with_its_last_step(last: int, most: int) -> None:
    every = stride(last, most)
    kept = [n for n in itertools.chain(range(every, last, every), [last]) if is_kept(n, last, every)]
    assert len(kept) <= most
    assert kept[-1] == last
    assert every == 1 or last > most


@given(st.lists(st.floats(-1e6, 1e6), max_size=200), st.integers(1, 50))
def test_points_that_are_too_many_are_averaged(values: list[float], most: int) -> None:
    points = [Point(number, value) for number, value in enumerate(values, 1)]
    found = averaged(points, most)
    assert len(found) <= most
    if len(points) <= most:
        assert found == points
    else:
        assert found[-1].step == points[-1].step
        assert all(min(values) - 1e-6 <= point.value <= max(values) + 1e-6 for point in found)


def test_a_curve_of_one_step_is_drawn_too() -> None:
    for value in (0.0, -3.0, 5.0):
        panel = Panel(METRICS["loss"], {"x": [Point(1, value)]})
        assert "step" in plot_terminal.drawn([panel], 80, coloured=False)


def test_curves_have_colours_on_a_terminal_and_letters_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    # plotille looks for a terminal itself.
    monkeypatch.setenv("FORCE_COLOR", "1")
    charts = panels({"x": [step(1), step(2)], "y": [step(1), step(2)]}, ["loss"])
    assert "\x1b[" in plot_terminal.drawn(charts, 80, coloured=True)
    plain = plot_terminal.drawn(charts, 80, coloured=False)
    assert "\x1b[" not in plain
    assert plain.startswith("loss   a x   b y\n")
