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
from halo_trainer import budget
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.reporting import Reporting

LOOK_SECONDS = 0.1
# After a loss the peers usually fail by themselves; those that hang are told to end, and then killed.
PEERS_SECONDS = 10.0
KILL_SECONDS = 2.0


def needs_launch(layout: Layout) -> bool:
    """Whether this process must start others; a process that was started so has its RANK already."""
    return layout.nodes * layout.gpus_per_node > 1 and "RANK" not in os.environ


def launch(run: RunFile, run_file: Path, volumes: str, report: Path, reporting: Reporting) -> Outcome:
    """Run this node's processes to their end; return the node's outcome. The first of them writes the node's report."""
    layout = run.layout
    address, port = (layout.rendezvous or f"127.0.0.1:{_free_port()}").rsplit(":", 1)
    processes = []
    reports = []
    # Each process handles these itself; this one only waits for them.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    budget.hold_signal()
    for local_rank in range(layout.gpus_per_node):
        reports.append(Ranks(local_rank=local_rank).report(report))
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
        processes.append(subprocess.Popen([*command, "--report", str(report)], env=environment))
    lost = _wait(processes, run.grace_seconds, layout)
    ended = [_read(path) for path in reports]
    if ended[0] is not None:
        reporting.adopt(ended[0])
    outcome = _outcome(ended, lost)
    for path in reports[1:]:
        path.unlink(missing_ok=True)
    return outcome


def _wait(processes: list[subprocess.Popen[bytes]], grace_seconds: float, layout: Layout) -> str:
    """Wait for all; once one has failed, or has left at the end of the budget, the others are told to end and then killed.

    Return who was lost, if one was.
    """
    lost = ""
    over = False
    told: set[int] = set()
    kill_at: float | None = None
    while True:
        running = [process for process in processes if process.poll() is None]
        for index, process in enumerate(processes):
            # What this process killed itself is not what went wrong.
            if not lost and process.returncode is not None and process.returncode < 0 and process.pid not in told:
                name = signal.Signals(-process.returncode).name
                rank = layout.node_rank * layout.gpus_per_node + index
                lost = f"rank {rank} (process {index} of node {layout.node_rank}) was killed by {name}"
        if not running:
            return lost
        if budget.SIGNAL in signal.sigpending():
            # It came to the whole group; a process that was started only after that has not got it.
            signal.sigwait({budget.SIGNAL})
            over = True
            for process in running:
                process.send_signal(budget.SIGNAL)
        if kill_at is None and any(process.returncode or (over and process.returncode == 0) for process in processes):
            kill_at = time.monotonic() + min(grace_seconds, PEERS_SECONDS)
        if kill_at is not None and time.monotonic() >= kill_at:
            for process in running:
                process.send_signal(signal.SIGKILL if process.pid in told else signal.SIGTERM)
                told.add(process.pid)
            kill_at = time.monotonic() + KILL_SECONDS
        time.sleep(LOOK_SECONDS)


def _outcome(reports: list[Report | None], lost: str) -> Outcome:
    """Return the first process's success, or the most telling failure: a peer's loss shows in the others as a crash."""
    first = reports[0].outcome if reports[0] else None
    if first is not None and first.result == "Succeeded":
        return first
    failures = [report.outcome for report in reports if report and report.outcome and report.outcome.result == "Failed"]
    vague = (Reason.CRASHED, Reason.RANK_LOST, Reason.INTERRUPTED)
    checkpoint = reports[0].checkpoints[-1] if reports[0] and reports[0].checkpoints else None
    for outcome in failures:
        if outcome.reason not in vague:
            return outcome.model_copy(update={"checkpoint": checkpoint})
    if lost or not failures:
        message = lost or "the first process ended without an outcome"
        return Outcome(result="Failed", reason=Reason.CRASHED, message=message, checkpoint=checkpoint)
    telling = min(failures, key=lambda outcome: vague.index(outcome.reason))
    return telling.model_copy(update={"checkpoint": checkpoint})


def _read(path: Path) -> Report | None:
    try:
        return Report.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
