"""Weights & Biases gets every metric of a run, and whatever is wrong there, the run trains to the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trainer_support import adapter_bytes, run_file, start, train_here

from halo_api.metrics_history import METRICS_NAME, StepMetrics
from halo_api.run_file import RunFile, WandbPlan
from halo_trainer.history import TAGS, lines
from halo_trainer.tracking import Tracker
from halo_trainer.wandb_run import begin

PLAN = WandbPlan(project="halo", id="uid-1", name="team/run", secret="wandb, key WANDB_API_KEY")
KEY = "0" * 40


def step(number: int, attempt: int = 1) -> StepMetrics:
    return StepMetrics(
        attempt=attempt,
        step=number,
        at=1.0,
        seconds=0.5,
        loss=2.0 / number,
        learning_rate=1e-3,
        grad_norm=0.25,
        tokens=64,
        tokens_per_second=128.0,
        memory_bytes=1 << 30,
    )


def metrics(of: StepMetrics) -> dict[str, float]:
    return {tag: value for name, tag in TAGS.items() if (value := getattr(of, name)) is not None}


def tell(plan: WandbPlan, steps: list[StepMetrics]) -> int:
    """Give steps to the process as a run does; return how it ended."""
    tracker = Tracker([sys.executable, "-m", "halo_trainer.wandb_run"], begin(plan, {"steps": len(steps)}))
    for each in steps:
        tracker.write(each.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n")
    tracker.close()
    assert tracker._process is not None
    return tracker._process.wait(300)


def records(path: Path) -> Iterator[Any]:
    """Yield what a file of W&B's holds: a header of 7 bytes, then records in pieces, in blocks of 32 KiB, as LevelDB's log has them."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, record = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (rest := 32768 - place % 32768) < 7:
            place += rest
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield Record.FromString(record)
            record = b""


def told(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the history and the beginning of the one offline run in a folder."""
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    history, begun = [], {}
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            history.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
        if record.WhichOneof("record_type") == "run":
            begun = {"id": record.run.run_id, "project": record.run.project, "name": record.run.display_name}
            begun |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    return history, begun


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that W&B writes to, in the environment of a process that a run would start."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    return tmp_path


def test_a_run_trains_to_the_same_bytes_and_tells_all_that_its_history_has(root: Path, beside: Path) -> None:
    run = run_file(output="told")
    process = start("train", run.model_copy(update={"wandb": PLAN}), root, WANDB_MODE="offline")
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output.decode()
    train_here(run_file(output="alone"), root)
    assert adapter_bytes(root, "told") == adapter_bytes(root, "alone")
    history, begun = told(beside)
    steps = list(lines(root / "artifacts" / "told" / METRICS_NAME))
    assert [each["_step"] for each in history] == [each.step for each in steps] == [1, 2, 3, 4, 5, 6]
    for found, expected in zip(history, map(metrics, steps), strict=True):
        assert {"train/loss", "train/grad_norm", "train/tokens_per_second", "train/memory_bytes"} <= expected.keys()
        assert {tag: found[tag] for tag in expected} == pytest.approx(expected, rel=1e-12)
    assert (begun["id"], begun["project"], begun["name"]) == ("uid-1", "halo", "team/run")
    assert begun["train"]["lora"]["rank"] == 4


def test_what_a_later_attempt_repeats_is_there_once(beside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert tell(PLAN, [step(1), step(2), step(2, attempt=2), step(3, attempt=2)]) == 0
    history, _ = told(beside)
    assert [(each["_step"], each["attempt"]) for each in history] == [(1, 1), (2, 1), (3, 2)]


@contextlib.contextmanager
def deaf_server(listens: bool) -> Iterator[str]:
    """Yield the address of a server that refuses connections, or takes them and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen(64)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("listens", [False, True], ids=["refuses", "never answers"])
def test_a_server_that_is_down_is_left_alone_at_the_end(
    listens: bool, beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with deaf_server(listens) as address:
        assert tell(PLAN.model_copy(update={"base_url": address}), [step(1), step(2)]) != 0


def test_a_key_that_is_missing_is_said(beside: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tell(PLAN, [step(1)]) == 1
    sentence = "W&B: WANDB_API_KEY is not set, so no metrics go there; create Secret wandb, key WANDB_API_KEY in the run's namespace"
    assert sentence in capfd.readouterr().err


def test_a_process_that_takes_nothing_or_is_gone_blocks_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    for command in (["sleep", "60"], ["false"], ["/no/such/program"]):
        tracker = Tracker(command, b"{}\n")
        for _ in range(1000):
            tracker.write(b"x" * 300 + b"\n")
        tracker.close()
        if tracker._process:
            tracker._process.kill()
        assert capfd.readouterr().err.count("W&B: steps will be missing there") == 1


@pytest.mark.slow
def test_a_server_that_is_down_is_asked_again_until_the_run_ends(beside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    code = (
        "import os, sys, halo_trainer.wandb_run as w; w.ANSWER_SECONDS = 5.0; w.AGAIN_SECONDS = 1.0; "
        "os._exit(w.main(sys.stdin.buffer))"
    )
    with deaf_server(False) as address:
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdin
        assert process.stderr
        process.stdin.write(begin(PLAN.model_copy(update={"base_url": address}), {}))
        process.stdin.flush()
        # It says each time which key it has.
        asked = 0
        for line in process.stderr:
            asked += b"Loaded credentials" in line
            if asked == 3:
                break
        process.stdin.close()
        said = process.stderr.read().decode()
    assert process.wait(60) == 1
    assert "in use" not in said


@pytest.mark.slow
@pytest.mark.parametrize("listens", [False, True], ids=["refuses", "never answers"])
def test_a_run_beside_a_server_that_is_down_ends_in_the_same_bytes(listens: bool, root: Path) -> None:
    train_here(run_file(output="alone"), root)
    with deaf_server(listens) as address:
        run: RunFile = run_file(output="told").model_copy(
            update={"wandb": PLAN.model_copy(update={"base_url": address})}
        )
        process = start("train", run, root, WANDB_API_KEY=KEY, WANDB_DIR=str(root))
        output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output.decode()
    assert "Traceback" not in output.decode()
    assert adapter_bytes(root, "told") == adapter_bytes(root, "alone")
