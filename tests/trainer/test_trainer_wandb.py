"""Weights & Biases gets every metric of a run, and whatever is wrong there, the run trains to the same bytes."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trainer_support import adapter_bytes, run_file, start

from halo_api.metrics_history import METRICS_NAME
from halo_api.run_file import RunFile, WandbPlan
from halo_trainer.history import TAGS, lines

KEY = "0" * 40


def tracked(output: str, **plan: Any) -> RunFile:
    facts = {"project": "halo", "id": "uid-1", "name": "team/run", "secret": "wandb, key WANDB_API_KEY"}
    return run_file(output=output).model_copy(update={"wandb": WandbPlan.model_validate(facts | plan)})


def log_of(run: RunFile, root: Path, **environment: str) -> str:
    """Train to the end as a pod would; return what its log says."""
    process = start("train", run, root, WANDB_DIR=str(root), **environment)
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output.decode()
    return output.decode()


def told(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the history and the beginning of the one run in a folder of W&B's, by their own reader."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    store = DataStore()
    store.open_for_scan(str(path))
    history, begun = [], {}
    while data := store.scan_data():
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            history.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
        if record.WhichOneof("record_type") == "run":
            begun = {"id": record.run.run_id, "project": record.run.project, "name": record.run.display_name}
            begun |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    return history, begun


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_has_what_the_history_has_step_by_step(root: Path) -> None:
    log_of(tracked("run"), root, WANDB_MODE="offline")
    history, begun = told(root)
    steps = list(lines(root / "artifacts" / "run" / METRICS_NAME))
    assert [each["_step"] for each in history] == [step.step for step in steps] == [1, 2, 3, 4, 5, 6]
    for found, step in zip(history, steps, strict=True):
        metrics = {tag: value for name, tag in TAGS.items() if (value := getattr(step, name)) is not None}
        assert {"train/loss", "train/grad_norm", "train/tokens_per_second", "train/memory_bytes"} <= metrics.keys()
        assert {tag: found[tag] for tag in metrics} == pytest.approx(metrics, rel=1e-12)
        assert found["attempt"] == 1
    assert (begun["id"], begun["project"], begun["name"]) == ("uid-1", "halo", "team/run")
    assert begun["train"]["lora"]["rank"] == 4


@contextlib.contextmanager
def deaf_server(listens: bool) -> Iterator[str]:
    """Yield the address of a server that refuses connections, or takes them and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen(64)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_server_that_is_down_changes_nothing(root: Path) -> None:
    """Nor one that never answers, nor a key that is missing: the log says it, and the adapter is the same to the byte."""
    log_of(run_file(output="alone"), root)
    expected = adapter_bytes(root, "alone")
    for name, listens in (("refuses", False), ("silent", True)):
        with deaf_server(listens) as address:
            log = log_of(tracked(name, baseUrl=address), root, WANDB_API_KEY=KEY)
        assert "Succeeded (Succeeded): 6 steps" in log
        assert "Traceback" not in log
        assert adapter_bytes(root, name) == expected
    log = log_of(tracked("keyless"), root)
    assert "W&B: WANDB_API_KEY is not set, so no metrics go there; create Secret wandb, key WANDB_API_KEY" in log
    assert adapter_bytes(root, "keyless") == expected
