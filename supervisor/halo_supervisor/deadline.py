"""The deadline, in seconds from the pod's birth on its node's own clock, so that no clocks need agree."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from halo_api.report import Deadline


class Countdown:
    """Counts down the deadline in force. Two threads tell it: answers to pushes carry deadlines, and so does a file.

    All of them count from `origin`, so that one that is read late is still right.
    """

    def __init__(self, deadline: Deadline | None, clock: Callable[[], float], origin: float) -> None:
        self._clock = clock
        self._origin = origin
        self._lock = threading.Lock()
        self._sequence = -1
        self._end: float | None = None
        if deadline is not None:
            self.update(deadline)

    def update(self, deadline: Deadline) -> bool:
        """Take a newer deadline; an older or equal sequence changes nothing."""
        with self._lock:
            if deadline.sequence <= self._sequence:
                return False
            self._sequence = deadline.sequence
            remaining = deadline.remaining_seconds
            self._end = None if remaining is None else self._origin + remaining
            return True

    def remaining(self) -> float | None:
        """Return the seconds left, or None where there is no deadline."""
        with self._lock:
            return None if self._end is None else self._end - self._clock()


def birth(born: Path, clock: Callable[[], float], wall: Callable[[], float]) -> float:
    """Return when the node set up the pod's volumes, on the monotonic clock; now where nothing tells."""
    now = clock()
    try:
        return now - max(0.0, wall() - born.stat().st_mtime)
    except OSError:
        return now


def deadline_in(path: Path) -> Deadline | None:
    """Return the deadline that the operator has patched onto the pod, if there is one."""
    try:
        return Deadline.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        # The file is empty until the annotation is set, and the countdown in force stays valid without it.
        return None
