"""Which rank was lost: each says every moment that it lives, at the place where all met, and hears whether the others do.

The end of a rank shows in the others as an error of a collective, or not at all: they wait for it. Neither says who it was.
So a thread of each rank listens, beside a main thread that may wait forever. What the first one finds is what all say.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any

from halo_api.conditions import Reason
from halo_trainer.failures import RunFailure
from halo_trainer.parallel.ranks import Ranks

BEAT_SECONDS = 0.5
# A rank that is silent for so long is lost; beats come from a thread, also while the main one loads or writes.
SILENT_SECONDS = 60.0
# So long, where a collective has failed already.
SUSPECT_SECONDS = 3.0
LEFT, NOBODY = b"left", b"nobody"
VERDICT = "halo/lost"


class RollCall:
    """A rank's part in it, from `begin` to the end of the `with` block, where an error becomes that of a lost rank if one was."""

    def __init__(
        self,
        ranks: Ranks,
        on_loss: Callable[[RunFailure], None],
        beat: float = BEAT_SECONDS,
        patience: float = SILENT_SECONDS,
    ) -> None:
        """`on_loss` is called in the listening thread; times are in seconds."""
        self._ranks, self._on_loss = ranks, on_loss
        self._beat, self._patience = beat, patience
        self._heard: dict[int, tuple[bytes, float]] = {}
        self._over = threading.Event()
        self._concluded = threading.Event()
        self._in_order = False
        self._thread: threading.Thread | None = None
        self._lost = ""

    def begin(self, store: Any = None) -> None:
        """Join, once the process group is there. Its own connection: the group's waits while it waits."""
        if self._ranks.world == 1:
            return
        self._store = store or _connection()
        self._store.set(_key(self._ranks.rank), "0")
        self._store.compare_set(VERDICT, "", NOBODY)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def __enter__(self) -> RollCall:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        lost = self.who_is_lost() if isinstance(error, Exception) and not isinstance(error, RunFailure) else ""
        self._in_order = error is None
        self._over.set()
        if lost:
            raise RunFailure(Reason.RANK_LOST, lost) from error
        if self._thread is not None and error is None:
            self._thread.join(SUSPECT_SECONDS)

    def who_is_lost(self) -> str:
        """Say who was lost, after an error that may come of it; nothing if all others are heard."""
        if self._thread is None:
            return ""
        self._patience = SUSPECT_SECONDS
        # Until they have been silent for that long, and what is found has gone round.
        self._concluded.wait(SUSPECT_SECONDS + 10 * self._beat)
        return self._lost

    def _listen(self) -> None:
        beats = 0
        while not self._over.wait(self._beat):
            beats += 1
            try:
                self._lost = self._found(beats)
                if self._lost and self._ranks.rank == 0:
                    # The store goes with this process, and the others have yet to read there who it was.
                    time.sleep(4 * self._beat)
            except RuntimeError:
                self._lost = f"{self._named(0)} was lost, and with it the place where the ranks meet"
            if self._lost:
                self._concluded.set()
                if not self._over.is_set():
                    self._on_loss(RunFailure(Reason.RANK_LOST, self._lost))
                return
        if self._in_order:
            # The others may still write, and are not to miss this one.
            self._store.set(_key(self._ranks.rank), LEFT)

    def _found(self, beats: int) -> str:
        """Beat and listen once; return what was found, here or by another."""
        store, own = self._store, self._ranks.rank
        store.set(_key(own), str(beats))
        others = [rank for rank in range(self._ranks.world) if rank != own]
        keys = [_key(rank) for rank in others]
        if not self._heard and not store.check(keys):
            return ""
        verdict, *values = store.multi_get([VERDICT, *keys])
        now = time.monotonic()
        for rank, value in zip(others, values, strict=True):
            if rank not in self._heard or self._heard[rank][0] != value:
                self._heard[rank] = (value, now)
        if verdict == NOBODY:
            since, rank = min((now if value == LEFT else at, rank) for rank, (value, at) in self._heard.items())
            if now - since < self._patience:
                return ""
            said = f"{self._named(rank)} was lost: nothing was heard of it for {now - since:.0f} s"
            verdict = store.compare_set(VERDICT, NOBODY, said)
        return str(verdict.decode())

    def _named(self, rank: int) -> str:
        each = self._ranks.local_world
        return f"rank {rank} (process {rank % each} of node {rank // each})"


def _key(rank: int) -> str:
    return f"halo/beat/{rank}"


def _connection() -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=timedelta(seconds=SILENT_SECONDS)
    )
