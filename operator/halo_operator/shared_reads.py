"""Shares reads of objects that many reconciles look up at once, such as the catalog when hundreds of runs are admitted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class SharedReads(Generic[KeyT, ValueT]):
    """Whoever asks while a read is under way shares the next one: an answer is never older than the question."""

    def __init__(self, read: Callable[[KeyT], Awaitable[ValueT]]) -> None:
        self._read = read
        self._running: dict[KeyT, asyncio.Task[ValueT]] = {}
        self._next: dict[KeyT, asyncio.Task[ValueT]] = {}

    async def get(self, key: KeyT) -> ValueT:
        """Return what a read that begins after this call finds."""
        if key not in self._next:
            self._next[key] = asyncio.create_task(self._after(self._running.get(key), key))
        # One who gives up must not take the answer from the others.
        return await asyncio.shield(self._next[key])

    async def _after(self, before: asyncio.Task[ValueT] | None, key: KeyT) -> ValueT:
        if before is not None:
            await asyncio.wait({before})
        mine = self._running[key] = self._next.pop(key)
        try:
            return await self._read(key)
        finally:
            if self._running.get(key) is mine:
                del self._running[key]
