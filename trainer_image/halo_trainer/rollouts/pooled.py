"""The pool of environment workers as the episode engine opens sessions: one is there once its opening is."""

from __future__ import annotations

import contextlib
from typing import Any

from halo_trainer.environments.base import Observation, Opening, Score, Task
from halo_trainer.environments.workers import RemoteSession, Workers


class Pooled:
    """Opens sessions in a pool of workers."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def open(self, task: Task) -> PooledSession:
        """Wait for room in the pool and begin an episode; raises EnvironmentFailed."""
        async with contextlib.AsyncExitStack() as stack:
            session = await stack.enter_async_context(self._workers.session(task))
            opening = await session.open()
            return PooledSession(session, opening, stack.pop_all())


class PooledSession:
    """An episode in a worker, and its place in the pool, which `close` gives back."""

    def __init__(self, session: RemoteSession, opening: Opening, place: contextlib.AsyncExitStack) -> None:
        self._session, self.opening, self._place = session, opening, place

    async def call(self, name: str, arguments: dict[str, Any]) -> Observation:
        """Do a tool call."""
        return await self._session.call(name, arguments)

    async def score(self, answer: str) -> Score:
        """Score the last answer."""
        return await self._session.score(answer)

    async def close(self) -> None:
        """Give the place back."""
        await self._place.aclose()
