"""Supervisor and trainer together, as in a pod: the deadline comes, the trainer keeps its step, the outcome says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from trainer_support import run_file

from halo_api.report import Deadline, Outcome, Report
from halo_api.run_file import DIGEST_VARIABLE, RunFile, digest_of
from halo_trainer.checkpoints.digest import files_digest, folder_files

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


def test_a_run_that_reaches_its_deadline_keeps_its_last_step(root: Path) -> None:
    process = supervise(root, run_file(steps=100_000, saveSteps=50))
    end = time.monotonic() + 240
    report = root / "report.json"
    while not (report.exists() and Report.model_validate_json(report.read_bytes()).checkpoints):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    soon = Deadline(sequence=1, remaining_seconds=0.0)
    (root / "deadline.json").write_text(soon.model_dump_json(by_alias=True))
    process.communicate(timeout=240)
    outcome = Outcome.model_validate_json((root / "message").read_bytes())
    assert (process.returncode, outcome.reason) == (1, "DeadlineReached")
    assert outcome.checkpoint
    folder = root / "artifacts" / "run" / "checkpoints" / f"step-{outcome.checkpoint.step}"
    assert files_digest(folder_files(folder)) == outcome.checkpoint.digest


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
