"""Supervisor and trainer together, as in a pod: the budget ends, the trainer publishes, the outcome says so."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from trainer_support import adapter_bytes, run_file, train_here

from halo_api.digests import files_digest
from halo_api.report import Deadline, Outcome, Report
from halo_api.run_file import DIGEST_VARIABLE, RunFile, digest_of
from halo_trainer.checkpoints.digest import folder_files

SUPERVISED = """
import sys
from pathlib import Path
from halo_supervisor.paths import Paths
from halo_supervisor.supervise import supervise
root = Path(sys.argv[1])
places = Paths(root / "run.json", root / "ca.crt", root / "deadline.json", root / "token", root / "report.json", root / "message")
flags = ["--run-file", str(places.run_file), "--volumes", str(root), "--report", str(places.report)]
sys.exit(supervise(places, lambda run: [sys.executable, "-m", "halo_trainer", run.role, *flags]))
"""


def supervise(root: Path, run: RunFile) -> subprocess.Popen[bytes]:
    text = run.canonical()
    (root / "run.json").write_text(text)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), DIGEST_VARIABLE: digest_of(text)}
    return subprocess.Popen([sys.executable, "-c", SUPERVISED, str(root)], env=env, stdout=subprocess.PIPE)


def wait_for(root: Path, process: subprocess.Popen[bytes], what: Callable[[Report], bool]) -> Report:
    """Return the first report that fulfils a condition."""
    end = time.monotonic() + 240
    path = root / "report.json"
    while time.monotonic() < end:
        if path.exists() and what(report := Report.model_validate_json(path.read_bytes())):
            return report
        assert process.poll() is None
        time.sleep(0.02)
    raise AssertionError("no such report within 240 s")


def budget_ends(root: Path) -> None:
    now = Deadline(sequence=1, remaining_seconds=0.0)
    (root / "deadline.new").write_text(now.model_dump_json(by_alias=True))
    (root / "deadline.new").rename(root / "deadline.json")


def ended(root: Path, process: subprocess.Popen[bytes]) -> tuple[int, Outcome]:
    process.communicate(timeout=240)
    return process.returncode, Outcome.model_validate_json((root / "message").read_bytes())


def checkpoint_adapter(root: Path, output: str, step: int) -> dict[str, bytes]:
    folder = root / "artifacts" / output / "checkpoints" / f"step-{step}" / "adapter"
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("processes", [1, 2])
def test_at_the_end_of_its_budget_a_run_publishes_its_last_checkpoint(processes: int, root: Path) -> None:
    run = run_file(steps=100_000, saveSteps=5, layout={"gpusPerNode": processes})
    process = supervise(root, run)
    wait_for(root, process, lambda report: bool(report.checkpoints))
    budget_ends(root)
    code, outcome = ended(root, process)
    assert (code, outcome.result, outcome.reason) == (0, "Succeeded", "BudgetReached")
    assert outcome.adapter
    assert outcome.checkpoint
    assert outcome.adapter.step == outcome.checkpoint.step
    assert outcome.message == f"the budget was reached; the adapter is of step {outcome.adapter.step} of 100000"
    assert adapter_bytes(root) == checkpoint_adapter(root, "run", outcome.adapter.step)
    assert files_digest(folder_files(root / "artifacts" / "run" / "adapter")) == outcome.adapter.digest
    # What it was about to write is not there in part.
    steps = [int(path.name.removeprefix("step-")) for path in (root / "artifacts" / "run" / "checkpoints").iterdir()]
    assert max(steps) == outcome.adapter.step


def test_a_process_that_waits_for_a_lost_peer_publishes_all_the_same(root: Path) -> None:
    process = supervise(root, run_file(steps=100_000, saveSteps=5, layout={"gpusPerNode": 2}))
    wait_for(root, process, lambda report: bool(report.checkpoints))
    os.kill(pid_of(root, rank=1), signal.SIGSTOP)
    budget_ends(root)
    code, outcome = ended(root, process)
    assert (code, outcome.result, outcome.reason) == (0, "Succeeded", "BudgetReached")
    assert outcome.adapter
    assert adapter_bytes(root) == checkpoint_adapter(root, "run", outcome.adapter.step)


def pid_of(root: Path, rank: int) -> int:
    """Return the process of that rank among those that train below this folder."""
    for folder in Path("/proc").iterdir():
        ours = folder.name.isdigit() and str(root).encode() in folder.joinpath("cmdline").read_bytes()
        if ours and f"RANK={rank}".encode() in folder.joinpath("environ").read_bytes().split(b"\0"):
            return int(folder.name)
    raise AssertionError(f"no process of rank {rank}")


def test_a_budget_that_ends_while_loading_publishes_what_it_went_on_from(root: Path) -> None:
    last = train_here(run_file(output="a1"), root).checkpoints[-2]
    (root / "report.json").unlink()
    # Loading stops at a pipe that nobody writes to.
    (root / "data" / "chat.jsonl").unlink()
    os.mkfifo(root / "data" / "chat.jsonl")
    resume = {"step": last.step, "uri": last.uri, "digest": last.digest}
    process = supervise(root, run_file(output="a2", resume=resume))
    wait_for(root, process, lambda report: report.phase == "Loading")
    budget_ends(root)
    code, outcome = ended(root, process)
    assert (code, outcome.reason, outcome.checkpoint) == (0, "BudgetReached", None)
    assert outcome.adapter
    assert (outcome.adapter.step, outcome.adapter.uri) == (last.step, "pvc://artifacts/a2/adapter")
    assert adapter_bytes(root, "a2") == checkpoint_adapter(root, "a1", last.step)


def test_a_budget_that_ends_before_the_first_checkpoint_leaves_nothing(root: Path) -> None:
    process = supervise(root, run_file(steps=100_000, saveSteps=50_000))
    wait_for(root, process, lambda report: report.progress is not None)
    budget_ends(root)
    code, outcome = ended(root, process)
    assert (code, outcome.result, outcome.reason) == (1, "Failed", "BudgetBeforeFirstCheckpoint")
    assert re.fullmatch(
        r"spec.saveSteps: found 50000, and the budget was reached after step \d+ of 100000, before the first checkpoint; "
        r"raise spec.budget.h100Hours or lower spec.saveSteps",
        outcome.message,
    )
    assert (outcome.checkpoint, outcome.adapter) == (None, None)
    assert not (root / "artifacts" / "run" / "adapter").exists()


def test_a_damaged_checkpoint_is_never_published(root: Path) -> None:
    last = train_here(run_file(output="a1"), root).checkpoints[-1]
    (root / "report.json").unlink()
    (root / "data" / "chat.jsonl").unlink()
    os.mkfifo(root / "data" / "chat.jsonl")
    file = root / "artifacts" / "a1" / "checkpoints" / f"step-{last.step}" / "adapter" / "adapter_config.json"
    resume = {"step": last.step, "uri": last.uri, "digest": last.digest}
    process = supervise(root, run_file(output="a2", resume=resume))
    wait_for(root, process, lambda report: report.phase == "Loading")
    file.write_text("{}")
    budget_ends(root)
    code, outcome = ended(root, process)
    assert (code, outcome.result, outcome.reason) == (1, "Failed", "CheckpointCorrupt")
    assert not (root / "artifacts" / "a2" / "adapter").exists()


def test_a_bad_row_is_the_outcome_of_an_inspection(root: Path) -> None:
    with (root / "data" / "chat.jsonl").open("a") as file:
        file.write(json.dumps({"messages": [{"role": "user", "content": "sky?"}]}) + "\n")
    process = supervise(root, run_file("inspect"))
    process.communicate(timeout=240)
    outcome = Outcome.model_validate_json((root / "message").read_bytes())
    assert (process.returncode, outcome.reason, outcome.retriable) == (1, "BadRow", False)
    assert outcome.message == (
        "line 25 has no assistant turn, so nothing to learn; add the answer to learn, or remove the row"
    )
