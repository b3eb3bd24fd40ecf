"""The sides of a measurement, each a process of its own that does a step when it is told to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Step:
    """What one optimizer step took."""

    seconds: float
    cpu_seconds: float


@dataclass
class Side:
    """A started side and what it has done."""

    name: str
    process: subprocess.Popen[bytes]
    _reads: Any
    _writes: Any
    steps: list[Step] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)
    loaded_mib: float = 0.0
    peak_mib: float = 0.0
    failed: str = ""

    def hear(self, until: str) -> None:
        """Take what the side says, up to that word; a side that fails says why."""
        for line in self._reads:
            said = json.loads(line)
            self._take(said)
            if until in said or "failed" in said or "ended" in said:
                return
        self.failed = self.failed or "its process ended"

    def go(self) -> None:
        """Let it do one step."""
        self._writes.write("go\n")
        self._writes.flush()
        self.hear("seconds")

    def end(self) -> None:
        """Let its last loss be told where it is not yet, and its process end."""
        if not self.failed and len(self.losses) < len(self.steps):
            self._writes.write("go\n")
            self._writes.flush()
            self.hear("loss")
        self.kill()

    def kill(self) -> None:
        """End its process, which has nothing to lose."""
        self.process.kill()
        self.process.wait()

    def _take(self, said: dict[str, Any]) -> None:
        self.failed = said.get("failed", self.failed)
        self.loaded_mib = said.get("memory_mib", self.loaded_mib)
        self.peak_mib = said.get("peak_mib", self.peak_mib)
        if "seconds" in said:
            self.steps.append(Step(said["seconds"], said["cpu_seconds"]))
        lists = {"loss": self.losses, "tokens": self.tokens, "trained": self.trained, "flops": self.flops}
        for name, values in lists.items():
            if name in said:
                values.append(said[name])


def start(name: str, settings: dict[str, Any], folder: Path, threads: int | None) -> Side:
    """Start the process of a side; it loads, and then waits."""
    path = folder / f"{name}.settings.json"
    path.write_text(json.dumps(settings | {"name": name}))
    told, tells = os.pipe()
    hears, says = os.pipe()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TOKENIZERS_PARALLELISM": "false"}
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pace.worker", str(path), str(told), str(says)],
            pass_fds=(told, says),
            env=environment,
            stdout=log,
            stderr=log,
        )
    os.close(told)
    os.close(says)
    return Side(name, process, os.fdopen(hears), os.fdopen(tells, "w"))


def in_turn(sides: list[Side], rounds: int) -> None:
    """Let every side do a step a round, one after the other, in another order each round."""
    for side in sides:
        side.hear("ready")
    for number in range(rounds):
        first = number % len(sides)
        for side in [*sides[first:], *sides[:first]]:
            if not side.failed:
                side.go()
        took = (f"{side.name} {side.failed or f'{side.steps[-1].cpu_seconds:.1f}'}" for side in sides)
        say(f"step {number + 1} of {rounds}, CPU s: {'; '.join(took)}")
