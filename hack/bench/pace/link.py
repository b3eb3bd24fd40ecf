"""Between the bench and the process of a side: a side does one optimizer step when it is told to, and says what it took."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch

MIB = 2**20


class Link:
    """A side's end: two pipes. The bench lets one side go at a time, so that none works beside another."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = os.fdopen(reads), os.fdopen(writes, "w")
        self._since = self._busy = 0.0

    def ready(self) -> None:
        """Everything is loaded; wait for the first step. From here the peak of the memory counts."""
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        else:
            # The kernel forgets the peak of the loading (man 5 proc).
            Path("/proc/self/clear_refs").write_text("5")
        self.say(ready=True, memory_mib=memory("VmRSS"))
        self._wait()

    def stepped(self, **more: Any) -> None:
        """A step is done: say how long it took, and wait for the next."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        took, busy = time.perf_counter() - self._since, time.process_time() - self._busy
        self.say(seconds=took, cpu_seconds=busy, peak_mib=memory("VmHWM"), **more)
        self._wait()

    def say(self, **values: Any) -> None:
        self._writes.write(json.dumps(values) + "\n")
        self._writes.flush()

    def _wait(self) -> None:
        if not self._reads.readline():
            # The bench has seen enough.
            os._exit(0)
        self._since, self._busy = time.perf_counter(), time.process_time()


def memory(line: str) -> float:
    """Return the device memory of the process, peak or now; without a GPU that line of its /proc/self/status. MiB."""
    if torch.cuda.is_available():
        used = torch.cuda.max_memory_allocated() if line == "VmHWM" else torch.cuda.memory_allocated()
        return round(used / MIB, 1)
    lines = Path("/proc/self/status").read_text().splitlines()
    return round(next(int(text.split()[1]) for text in lines if text.startswith(f"{line}:")) / 1024, 1)
