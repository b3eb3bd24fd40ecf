"""Stopping the role: which signal it gets for which cause, and when it is killed."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from halo_api.conditions import Reason
from halo_api.run_file import RunFile

# Beyond the time to publish: a kill then is of a role that hangs, not of one that is merely slow.
SLACK_SECONDS = 15.0


@dataclass(frozen=True)
class StopCause:
    """Why the role is stopped, and the signal that tells it: SIGUSR1 asks it to publish what it has, SIGTERM to leave."""

    reason: Reason
    message: str
    signal: signal.Signals

    def patience(self, run: RunFile) -> float:
        """Return how many seconds the role may take to heed it; one that serves has nothing to publish."""
        publishes = self.signal == signal.SIGUSR1 and run.role != "rollout"
        return run.publish_seconds + SLACK_SECONDS if publishes else run.grace_seconds


BUDGET = StopCause(Reason.BUDGET_REACHED, "the budget was reached", signal.SIGUSR1)
STOPPED = StopCause(Reason.BUDGET_REACHED, "the operator asked the run to stop", signal.SIGUSR1)
INTERRUPTED = StopCause(
    Reason.INTERRUPTED, "the pod was told to end; the run goes on from its last checkpoint", signal.SIGTERM
)


class Wake:
    """Wakes the one loop that waits, from any thread and from signal handlers.

    No threading.Event: a handler that sets one while the thread below it holds the Event's lock waits for itself, forever.
    A SimpleQueue's `put` is made for handlers.
    """

    def __init__(self) -> None:
        self._asked: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Have the wait end, or the next one not begin."""
        self._asked.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait until it is set, or for so long; return whether it was set."""
        try:
            self._asked.get(timeout=max(seconds, 0.0))
        except Empty:
            return False
        # However often it was set before, that is one reason to look.
        for _ in range(self._asked.qsize()):
            self._asked.get_nowait()
        return True


class Stop:
    """What was asked of the role. Signal handlers and the reporter's thread ask; one loop heeds, and says when to kill."""

    def __init__(self) -> None:
        self.wake = Wake()
        self.kill_at: float | None = None
        self._asked: dict[signal.Signals, StopCause] = {}
        self._heeded: set[signal.Signals] = set()

    @property
    def cause(self) -> StopCause | None:
        """The budget's end is final, whatever else was asked; a pod that is told to end may come again."""
        return self._asked.get(signal.SIGUSR1) or self._asked.get(signal.SIGTERM)

    def ask(self, cause: StopCause) -> None:
        """Ask that the role be stopped; the first cause of each signal counts, and asking again wakes nobody."""
        if cause.signal not in self._asked:
            self._asked[cause.signal] = cause
            self.wake.set()

    def heed(self, run: RunFile, now: float) -> list[StopCause]:
        """Return what the role must now be told; each cause is told once, and may only bring its end nearer."""
        told = []
        for number, cause in list(self._asked.items()):
            if number in self._heeded:
                continue
            self._heeded.add(number)
            self.kill_by(now + cause.patience(run))
            # A role that publishes must not be told to leave; it only gets no more time than the pod has.
            if cause is self.cause:
                told.append(cause)
        return told

    def kill_by(self, moment: float) -> None:
        """Let the role live no longer than that."""
        self.kill_at = moment if self.kill_at is None else min(self.kill_at, moment)
