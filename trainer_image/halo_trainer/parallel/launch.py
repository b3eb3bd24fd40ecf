"""Starting the processes of one node, a process a GPU, with the environment that torchrun would give them.

One process of a run that is lost ends them all: what they share can't be repaired from inside, and another attempt goes on
from the last checkpoint. They stay in this process's group, so that the supervisor's signals reach every one of them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from halo_api.conditions import Reason
from halo_api.report import Outcome, Report
from halo_api.run_file import Layout, RunFile

LOOK_SECONDS = 0.1


def needs_launch(layout: Layout) -> bool:
    """Whether this process must start others; a process that was started so has its RANK already."""
    return layout.nodes * layout.gpus_per_node > 1 and "RANK" not in os.environ


def launch(run: RunFile, run_file: Path, volumes: str, report: Path) -> Outcome:
    """Run this node's processes to their end; return the node's outcome."""
    layout = run.layout
    address, port = (layout.rendezvous or f"127.0.0.1:{_free_port()}").rsplit(":", 1)
    processes = []
    reports = []
    # Each process handles these itself; this one only waits for them.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    for local_rank in range(layout.gpus_per_node):
        reports.append(report if local_rank == 0 else report.with_name(f"{report.name}.{local_rank}"))
        command = [sys.executable, "-m", "halo_trainer", "train", "--run-file", str(run_file), "--volumes", volumes]
        environment = os.environ | {
            "RANK": str(layout.node_rank * layout.gpus_per_node + local_rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(layout.nodes * layout.gpus_per_node),
            "LOCAL_WORLD_SIZE": str(layout.gpus_per_node),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
        }
        if layout.nodes == 1:
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        processes.append(subprocess.Popen([*command, "--report", str(reports[-1])], env=environment))
    lost = _wait(processes, run.grace_seconds)
    outcome = _outcome([_read(path) for path in reports], lost)
    for path in reports[1:]:
        path.unlink(missing_ok=True)
    return outcome


def _wait(processes: list[subprocess.Popen[bytes]], grace_seconds: float) -> str:
    """Wait for all; once one has failed, the others are told to end and then killed. Return what is known of a lost one."""
    lost = ""
    kill_at: float | None = None
    told = False
    while any(process.poll() is None for process in processes):
        failed = [index for index, process in enumerate(processes) if process.returncode not in (None, 0)]
        if failed and kill_at is None:
            kill_at = time.monotonic() + min(grace_seconds, 10.0)
        if failed and not lost and (code := processes[failed[0]].returncode) < 0:
            lost = f"process {failed[0]} of this node was killed by {signal.Signals(-code).name}"
        if kill_at is not None and time.monotonic() >= kill_at:
            for process in processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL if told else signal.SIGTERM)
            told, kill_at = True, time.monotonic() + 2.0
        time.sleep(LOOK_SECONDS)
    return lost


def _outcome(reports: list[Report | None], lost: str) -> Outcome:
    """Return the first process's success, or the most telling failure: a peer's loss shows in the others as a crash."""
    first = reports[0].outcome if reports[0] else None
    if first is not None and first.result == "Succeeded":
        return first
    outcomes = [report.outcome for report in reports if report and report.outcome]
    vague = (Reason.CRASHED, Reason.INTERRUPTED)
    checkpoint = reports[0].checkpoints[-1] if reports[0] and reports[0].checkpoints else None
    for outcome in outcomes:
        if outcome.result == "Failed" and outcome.reason not in vague:
            return outcome.model_copy(update={"checkpoint": checkpoint})
    if lost:
        return Outcome(result="Failed", reason=Reason.CRASHED, message=lost, checkpoint=checkpoint)
    if first is not None:
        return first
    message = "the first process ended without an outcome"
    return Outcome(result="Failed", reason=Reason.CRASHED, message=message, checkpoint=checkpoint)


def _read(path: Path) -> Report | None:
    try:
        return Report.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
