"""Work of the first process alone that takes long: the others wait for it, and all hear at once when one is told to stop."""

from __future__ import annotations

import concurrent.futures
import json
import threading
from collections.abc import Callable
from typing import TypeVar

import torch

from halo_api.conditions import Reason
from halo_trainer.failures import RunFailure, failure_of
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.rollouts.background import Stopped

T = TypeVar("T")
# How often the processes meet meanwhile: no collective may wait as long as a round of sampling takes.
LOOK_SECONDS = 0.2


class Together:
    """Does such work, one piece after the other, in one thread beside the first process's main thread."""

    def __init__(self, ranks: Ranks, device: torch.device, stop: threading.Event) -> None:
        """`stop`: set once this process is told to stop."""
        self._ranks, self._device, self._stop = ranks, device, stop
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "rollouts") if ranks.writes else None

    def do(self, work: Callable[[threading.Event], T]) -> T | None:
        """Return what the work returns to the first process, None to the others; its failure is that of all.

        The work gets what is set once any process is told to stop; it then raises Stopped, and so does this in all of them.
        """
        halt = threading.Event()
        future = self._pool.submit(work, halt) if self._pool else None
        try:
            while True:
                if future:
                    concurrent.futures.wait([future], LOOK_SECONDS)
                # All must see the same, so what is told is what all have told.
                told = [float(self._stop.is_set()), float(future is not None and future.done())]
                stopping, done = self._ranks.sum_values(torch.tensor(told, device=self._device)).tolist()
                if stopping:
                    halt.set()
                if done:
                    break
        finally:
            halt.set()
        return self._shared(future)

    def _shared(self, future: concurrent.futures.Future[T] | None) -> T | None:
        error = future.exception() if future else None
        words: list[str] = []
        if isinstance(error, Stopped):
            words = ["stopped"]
        elif isinstance(error, Exception):
            failure = failure_of(error)
            words = [failure.reason.value, str(failure)]
        words = json.loads(self._ranks.share(json.dumps(words).encode(), self._device))
        if future and error and not isinstance(error, Stopped):
            raise error
        match words:
            case ["stopped"]:
                raise Stopped
            case [reason, message]:
                raise RunFailure(Reason(reason), message)
        return future.result() if future else None
