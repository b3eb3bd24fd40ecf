"""Online RL on the embedded cluster: a trainer pod and real vLLM rollout pods make a base better at tasks it has not seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.api.kube import ROOT, eventually, hack
from tests.cluster.conftest import Place
from tests.cluster.runs import get, wait_for, wait_for_checkpoint

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(3600)]

RUN = "sql-tiny-dapo"
EXAMPLE = ROOT / "examples" / "online-rl.yaml"
TASKS = ["tasks", "sql", "--difficulty", "easy", "--style", "compact"]


def trainer(*arguments: str) -> str:
    """Run a verb of halo-trainer on this machine, as its documentation does."""
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("operator", "trainer_image"))
    command = [sys.executable, "-m", "halo_trainer", *arguments]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def applied(place: Place, **changes: object) -> Path:
    """Apply the example with the base that hack/sql-base makes, its run changed; return the base's folder."""
    base = Path(hack("sql-base"))
    trainer(*TASKS, "--split", "train", "--count", "400", "--seed", "0", "--out", str(place.data / "sql-tasks.jsonl"))
    for body in yaml.safe_load_all(EXAMPLE.read_text()):
        if body["kind"] == "BaseModel":
            body["spec"]["revision"] = (base / "revision").read_text().strip()
        if body["kind"] == "TrainingJob":
            body["spec"] |= changes
        place.kubectl("apply", "-f", "-", stdin=body)
    return base


def rollout_pods(place: Place) -> list[dict]:
    """Those that hold GPUs; one that ended by itself stays with its log, as a trainer's does."""
    found = place.kubectl("get", "pods", "-l", "halo.training/role=rollout", "-o", "json")
    return [pod for pod in json.loads(found)["items"] if pod["status"]["phase"] in ("Pending", "Running")]


def episodes(place: Place, step: int) -> list[dict]:
    """What the run wrote of a step's episodes."""
    (file,) = place.folder.glob(f"artifacts/*/a*/episodes/step-{step}.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_last_checkpoint_is_better_on_tasks_that_no_run_has_seen(place: Place, tmp_path: Path) -> None:
    base = applied(place)
    done = wait_for(place, RUN, "Succeeded", seconds=2400)
    ended = time.monotonic()
    eventually(lambda: not rollout_pods(place), "the servers are gone with the trainer", 60)
    assert time.monotonic() - ended < 60
    steps = done["spec"]["steps"]
    assert done["status"]["progress"]["step"] == steps
    assert set(done["status"]["usage"]["gpuSeconds"]) == {"trainer", "rollout"}
    adapter = place.path_of(get(place, "adapter", RUN)["spec"]["uri"])
    heldout = tmp_path / "heldout.jsonl"
    trainer(*TASKS, "--split", "eval", "--count", "200", "--seed", "1", "--out", str(heldout))
    before, after = (tmp_path / name for name in ("before.jsonl", "after.jsonl"))
    play = ["evaluate", "--base", str(base), "--tasks", str(heldout), "--samples", "4"]
    trainer(*play, "--out", str(before))
    told = trainer(*play, "--adapter", str(adapter), "--out", str(after), "--against", str(before))
    assert told.strip().splitlines()[-1].startswith("sampled: "), told
    assert told.strip().endswith(": better"), told


def test_a_server_that_is_killed_comes_back_with_the_policy_of_its_step(place: Place) -> None:
    applied(place, steps=8, saveSteps=4)
    wait_for_checkpoint(place, RUN, 4, seconds=900)
    (server,) = rollout_pods(place)
    place.kubectl("delete", "pod", server["metadata"]["name"], "--force", "--grace-period=0", "--wait=false")
    done = wait_for(place, RUN, "Succeeded", seconds=1200)
    (attempt,) = done["status"]["attempts"]
    assert attempt["replaced"] == [0]
    for step in range(1, 9):
        found = episodes(place, step)
        # Sampled by the policy of the step before; what failed has no reward, and what has one did not fail.
        assert {policy for one in found for policy in one["policies"]} == {step - 1}
        assert all(("reward" in one) != ("failure" in one) for one in found)
