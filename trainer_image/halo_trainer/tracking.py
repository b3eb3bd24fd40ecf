"""Metrics to a process beside the trainer, which takes them to Weights & Biases.

A process of its own, so that nothing of W&B's library can slow, end or change a run: a step is one write to a pipe that never
blocks, and what the library does with a server that is slow, down or wrong is not the trainer's matter.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys

from halo_api.run_file import RunFile
from halo_trainer.wandb_run import LAST_SECONDS, begin

# Beside what it gives itself, for a process that hangs.
LONGER_SECONDS = 2.0


class Tracker:
    """The process that takes the metrics; what it can't take is left out, and that is said once."""

    def __init__(self, command: list[str], first: bytes) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._said = False
        try:
            read, self._pipe = os.pipe()
            os.set_blocking(self._pipe, False)
            # Its words are the log's, and W&B's own are nobody's.
            self._process = subprocess.Popen(command, stdin=read, stdout=subprocess.DEVNULL)
            os.close(read)
        except OSError as error:
            self._left_out(error)
        self.write(first)
        atexit.register(self.wait)

    def write(self, line: bytes) -> None:
        """Hand a line over; a pipe takes one of less than 4096 bytes whole or not at all."""
        if self._pipe < 0:
            return
        try:
            os.write(self._pipe, line)
        except OSError as error:
            self._left_out(error)

    def close(self) -> None:
        """Say that nothing more comes; the process ends by itself within seconds."""
        if self._pipe >= 0:
            os.close(self._pipe)
        self._pipe = -1

    def wait(self) -> None:
        """Leave it those seconds, once everything else is done."""
        self.close()
        if self._process is None:
            return
        try:
            self._process.wait(LAST_SECONDS + LONGER_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _left_out(self, error: OSError) -> None:
        if not self._said:
            print(f"W&B: steps will be missing there ({error}); the training goes on", file=sys.stderr, flush=True)
        self._said = True


def tracker_of(run: RunFile) -> Tracker | None:
    """Start what takes the run's metrics to W&B, if the run file says so."""
    plan = run.train or run.rlvr
    if run.wandb is None or plan is None:
        return None
    config = {
        "run": run.run.to_json(),
        "base": run.base.to_json(),
        "data": run.data.to_json() if run.data else None,
        "train": plan.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"resume", "parent"}),
        "parent": plan.parent.name if plan.parent else None,
        "gpus": run.layout.nodes * run.layout.gpus_per_node,
    }
    return Tracker([sys.executable, "-m", "halo_trainer.wandb_run"], begin(run.wandb, config))
