"""The history of a run's metrics, on its claim: what a step came to, as a line of JSON and as TensorBoard events.

A step is one write each, without a sync: a killed process loses nothing, a lost node its last seconds. A disk that is full fails
no run: what can't be written is left out, and that is said once.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halo_api.metrics_history import METRICS_NAME, StepMetrics, is_kept, parsed, stride
from halo_api.run_file import attempt_of
from halo_trainer.files import FILE_MODE

if TYPE_CHECKING:
    from halo_trainer.tracking import Tracker

# A line is some 300 bytes, of online RL 900; what is longer is none.
LINE_BYTES = 4096
# Whoever else mounts the claim may put links on it; none is followed.
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
# As TensorBoard shows them, by what they are called in a line.
TAGS = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "tokens_per_second": "train/tokens_per_second",
    "mfu": "train/mfu",
    "memory_bytes": "train/memory_bytes",
    "reward_margin": "train/reward_margin",
    "reward_accuracy": "train/reward_accuracy",
}
# Of the step's episodes; shown below rollouts/.
OF_ROLLOUTS = (
    "reward", "pass_rate", "kl", "mismatch", "mismatch_max", "clipped", "staleness", "scored", "unscored", "truncated",
    "dropped_groups", "sampled_tokens", "tokens_per_second", "rollout_seconds", "train_seconds", "sync_seconds", "servers",
)  # fmt: skip


class History:
    """Writes the history of one attempt into its folder, and gives it to whoever else takes it."""

    def __init__(self, folder: Path, attempt: int, tracker: Tracker | None = None) -> None:
        self.attempt = attempt
        self._tracker = tracker
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
        self._lines, self._events = Appended(folder / METRICS_NAME), Appended(folder / name)
        self._events.write(event(file_version="brain.Event:2"))

    def write(self, step: StepMetrics) -> None:
        """Add a step to each."""
        line = step.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"
        self._lines.write(line)
        self._events.write(events(step))
        if self._tracker:
            self._tracker.write(line)

    def close(self) -> None:
        """Let go of the files: a claim in use can't be unmounted."""
        self._lines.close()
        self._events.close()
        if self._tracker:
            self._tracker.close()


class Appended:
    """A file that only grows, each time by something whole or by nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._said = False

    def write(self, data: bytes) -> None:
        """Add the data; if that fails, say so once, and try again with the next."""
        try:
            if self._file is None:
                self._file = os.open(self._path, FLAGS, FILE_MODE)
            size = os.fstat(self._file).st_size
            if os.write(self._file, data) < len(data):
                # What a full disk took of it would spoil the next.
                os.ftruncate(self._file, size)
                raise OSError("the volume is full")
        except OSError as error:
            if not self._said:
                print(f"{self._path}: steps will be missing in it ({error}); the training goes on", file=sys.stderr)
            self._said = True

    def close(self) -> None:
        """Let go of the file; a later write opens it again."""
        if self._file is not None:
            os.close(self._file)
        self._file = None


def events(step: StepMetrics) -> bytes:
    """Return the step as a record of a TensorBoard event file, with a scalar of each metric that there is."""
    from tensorboardX.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(step).items()]
    return event(wall_time=step.at, step=step.step, summary=Summary(value=values))


def scalars(step: StepMetrics) -> dict[str, float]:
    """Return each metric that there is of a step, under the name that TensorBoard and W&B show it by."""
    found = {tag: getattr(step, name) for name, tag in TAGS.items()}
    if step.rollouts:
        found |= {f"rollouts/{name}": getattr(step.rollouts, name) for name in OF_ROLLOUTS}
    return {tag: value for tag, value in found.items() if value is not None}


def event(**fields: Any) -> bytes:
    """Return an Event as a record: length and data, each with its checksum.

    The library's own writer syncs the file at every flush, and one whose thread met a full disk blocks the next write forever.
    """
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    data: bytes = Event(**({"wall_time": time.time()} | fields)).SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def written(folder: Path, readable: Callable[[Path], bool]) -> Iterator[StepMetrics]:
    """Yield what all attempts below a run's folder wrote, in their order; of a very long run every so many steps."""
    found = {number: path / METRICS_NAME for path in folder.iterdir() if (number := attempt_of(path.name))}
    files = [found[number] for number in sorted(found) if readable(found[number])]
    last = max((step.step for file in files for step in lines(file)), default=0)
    every = stride(last)
    for file in files:
        yield from (step for step in lines(file) if is_kept(step.step, last, every))


def lines(file: Path) -> Iterator[StepMetrics]:
    """Yield the lines of a file that can be read."""
    with file.open("rb") as data:
        while line := data.readline(LINE_BYTES):
            if step := parsed(line):
                yield step
