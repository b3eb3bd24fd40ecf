"""The work queue: keys that changed, merged, one at a time per key, with backoff per key (client-go's algorithm)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

log = logging.getLogger(__name__)


class Key(NamedTuple):
    """What to reconcile."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


Reconcile = Callable[[Key], Awaitable[float | None]]


class Ready:
    """Keys that wait for a worker: new ones first, but after two dozen of them a known one, so that neither waits for ever."""

    NEW_IN_A_ROW = 24

    def __init__(self) -> None:
        self._new: deque[Key] = deque()
        self._known: deque[Key] = deque()
        self._waiting = asyncio.Semaphore(0)
        self._row = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._known)

    @property
    def new(self) -> int:
        """How many new ones wait."""
        return len(self._new)

    def put(self, key: Key, new: bool = False) -> None:
        """Add a key at the end of its line."""
        (self._new if new else self._known).append(key)
        self._waiting.release()

    async def get(self) -> Key:
        """Wait for a key and take it."""
        await self._waiting.acquire()
        if self._new and (self._row < self.NEW_IN_A_ROW or not self._known):
            self._row += 1
            return self._new.popleft()
        self._row = 0
        return self._known.popleft()


class WorkQueue:
    """Runs `reconcile` for keys: never twice at once for a key, never lost, changes in between merged.

    A key whose reconcile fails waits 0.5 s, 1 s, 2 s … up to five minutes; a change in the meantime does not skip that
    wait, so an object that changes faster than it fails cannot spin.
    """

    def __init__(
        self,
        reconcile: Reconcile,
        *,
        workers: int = 16,
        first_delay: float = 0.5,
        longest_delay: float = 300.0,
        expected: Callable[[Exception], str | None] = lambda _: None,
    ) -> None:
        """`expected` names in a few words an error that needs no traceback, or returns None."""
        self._reconcile = reconcile
        self._workers = workers
        self._first_delay = first_delay
        self._longest_delay = longest_delay
        self._expected = expected
        self._ready = Ready()
        self._dirty: set[Key] = set()
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._backing_off: set[Key] = set()
        self.last_success = time.monotonic()
        self.observe: Callable[[Key, float, bool], None] = lambda key, seconds, failed: None

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def new(self) -> int:
        """How many new objects wait for a worker."""
        return self._ready.new

    def add(self, key: Key, new: bool = False) -> None:
        """Note that the object changed, or that it is new: starting what waits for GPUs goes before book-keeping."""
        if key in self._backing_off:
            return
        self._add_now(key, new)

    def add_after(self, key: Key, delay: float) -> None:
        """Look at the object again after `delay` seconds, or sooner if it changes; the sooner of two wishes wins."""
        loop = asyncio.get_running_loop()
        if (timer := self._timers.get(key)) is not None:
            if timer.when() <= loop.time() + delay:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(max(delay, 0.0), self._add_now, key)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    def _add_now(self, key: Key, new: bool = False) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
        self._backing_off.discard(key)
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._busy:
            self._ready.put(key, new)

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            self._dirty.discard(key)
            self._busy.add(key)
            started = time.monotonic()
            failed = False
            delay: float | None = None
            try:
                delay = await self._reconcile(key)
            except Exception as error:
                failed = True
                delay = self._note_failure(key, error)
            else:
                self._failures.pop(key, None)
                self.last_success = time.monotonic()
            finally:
                self._busy.discard(key)
            self.observe(key, time.monotonic() - started, failed)
            if failed and delay is not None:
                self._dirty.discard(key)
                self._backing_off.add(key)
                self.add_after(key, delay)
            elif key in self._dirty:
                self._ready.put(key)
            elif delay is not None:
                self.add_after(key, delay)

    def _note_failure(self, key: Key, error: Exception) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(self._longest_delay, self._first_delay * 2.0 ** min(failures - 1, 30))
        words = self._expected(error)
        if words:
            log.warning("%s: %s; next try in %.1f s", key, words, delay)
        else:
            log.exception("%s: reconcile failed; next try in %.1f s", key, delay)
        return delay
