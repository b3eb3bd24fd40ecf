"""The end of the budget, SIGUSR1 from the supervisor: the last checkpoint becomes the adapter, and the process leaves.

A thread does that, beside the training. The main thread may wait in a collective for peers that have left, or for a GPU, where
it would never come to handle a signal; and what is not an exception no library can catch.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator

from halo_api.conditions import Reason
from halo_api.report import Outcome

SIGNAL = signal.SIGUSR1
# Pods of a run count from their own births. A peer that left first shows as lost or a crash here, a little before our own signal.
PEERS_SECONDS = 5.0


def hold_signal() -> None:
    """Keep the signal pending, here and in every thread and process started from now on, for whoever waits for it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})


class Budget:
    """What the training and the thread that ends it must agree on; without `watch` nothing ever ends it."""

    def __init__(self) -> None:
        # Set, under `writing`, once the adapter of the last step is written: then that is how the run ends.
        self.outcome: Outcome | None = None
        self._over = threading.Event()
        self._busy = threading.Lock()
        self._leave: Callable[[Outcome], int] | None = None

    def watch(self, publish: Callable[[], Outcome], leave: Callable[[Outcome], int]) -> None:
        """Wait for the signal in a thread: then publish, report, and end the process with the code that `leave` returns."""
        hold_signal()
        self._leave = leave
        threading.Thread(target=self._end, args=(publish, leave), daemon=True).start()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Do something that the end of the budget must not cut in two."""
        self.pause()
        with self._busy:
            yield

    def pause(self) -> None:
        """Begin nothing more once the budget is over: the process ends from the other thread."""
        if self._over.is_set():
            threading.Event().wait()

    def settle(self, outcome: Outcome, peers: bool) -> None:
        """Let the main thread's own end be the run's; a failure after the end of the budget is no end, so this does not return."""
        patience = PEERS_SECONDS if peers and outcome.reason in (Reason.CRASHED, Reason.RANK_LOST) else 0.0
        if outcome.result == "Failed" and self._over.wait(patience):
            threading.Event().wait()
        # For good: from here the signal changes nothing.
        self._busy.acquire()

    def abandon(self, outcome: Outcome) -> None:
        """End the process from a thread beside the main one, which may wait forever; at the end of the budget that has its own."""
        if self._leave is None or self._over.wait(PEERS_SECONDS):
            return
        self._busy.acquire()
        if self._over.is_set():
            self._busy.release()
            return
        os._exit(self._leave(outcome))

    def _end(self, publish: Callable[[], Outcome], leave: Callable[[Outcome], int]) -> None:
        signal.sigwait({SIGNAL})
        self._over.set()
        self._busy.acquire()
        code = 1
        try:
            code = leave(self.outcome or publish())
        except BaseException:
            traceback.print_exc()
        finally:
            # Not an orderly exit: that would wait for the main thread, for peers and for GPUs.
            os._exit(code)
