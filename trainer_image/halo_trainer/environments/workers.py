"""The pool of environment workers: processes apart in which the sessions of episodes run.

At most `sessions` are open at once; who wants one more waits. A worker that dies, or takes longer over a request than it may,
is killed and its episodes get EnvironmentFailed, so that they stay unscored; the next session begins in a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict
from types import TracebackType
from typing import Any, TypeVar

from halo_api.recipe_settings import TaskEnvironment
from halo_trainer.environments.base import EnvironmentFailed, Observation, Opening, Score, Task
from halo_trainer.environments.wire import (
    LONGEST_LINE,
    WorkerLimits,
    observation_of,
    opening_of,
    score_of,
    task_to_json,
)

# All that a worker knows of the trainer's environment: no token, no key, no proxy.
KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
Answer = TypeVar("Answer")
COMMAND = (sys.executable, "-m", "halo_trainer.environments.worker")


class Workers:
    """Worker processes of one environment. Use it as an async context manager."""

    def __init__(
        self,
        settings: TaskEnvironment,
        workers: int = 2,
        sessions: int = 64,
        request_seconds: float = 60.0,
        start_seconds: float = 120.0,
        limits: WorkerLimits | None = None,
    ) -> None:
        first = {
            "settings": settings.model_dump(mode="json", by_alias=True),
            "limits": asdict(limits or WorkerLimits()),
        }
        self._places = [_Place(first, request_seconds, start_seconds) for _ in range(workers)]
        self._free = asyncio.Semaphore(sessions)
        self._numbers = itertools.count()
        self._closing: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> Workers:
        """Start nothing: a worker starts with its first session."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every worker."""
        await asyncio.gather(*(place.end() for place in self._places))
        await asyncio.gather(*self._closing)

    @property
    def replaced(self) -> int:
        """How many workers were lost so far: they died, or were killed because they hung."""
        return sum(place.lost for place in self._places)

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that run now."""
        return tuple(place.process.pid for place in self._places if place.process)

    async def open(self, task: Task) -> RemoteSession:
        """Begin an episode in the least busy worker, once there is room; EnvironmentFailed where it can't be. Close it."""
        await self._free.acquire()
        place = min(self._places, key=lambda place: place.sessions)
        place.sessions += 1

        def leave() -> None:
            place.sessions -= 1
            self._free.release()

        session = RemoteSession(next(self._numbers), place, leave)
        try:
            await session.begin(task)
        except BaseException:
            # Who gives up while it opens leaves it to be closed.
            closing = asyncio.ensure_future(session.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            raise
        return session

    @contextlib.asynccontextmanager
    async def session(self, task: Task) -> AsyncIterator[RemoteSession]:
        """Begin an episode, which is closed on leaving."""
        session = await self.open(task)
        try:
            yield session
        finally:
            await session.close()


class RemoteSession:
    """An episode in a worker. Every method raises EnvironmentFailed when the worker is lost or the environment fails."""

    def __init__(self, number: int, place: _Place, leave: Callable[[], None]) -> None:
        self._number = number
        self._place = place
        self._leave = leave
        # The one process that knows the session.
        self._process: asyncio.subprocess.Process | None = None
        self._failed = self._closed = False
        self.opening = Opening(())

    async def begin(self, task: Task) -> None:
        """Open the session in its worker."""
        self._process = await self._place.running()
        self.opening = opening_of(await self._ask({"do": "open", "task": task_to_json(task)}))

    async def open(self) -> Opening:
        """Return how the episode begins."""
        return self.opening

    async def call(self, name: str, arguments: dict[str, Any]) -> Observation:
        """Do one tool call of the model's."""
        return observation_of(await self._ask({"do": "call", "name": name, "arguments": arguments}))

    async def score(self, answer: str) -> Score:
        """Score the model's last answer."""
        return score_of(await self._ask({"do": "score", "answer": answer}))

    async def close(self) -> None:
        """Let go of the session, and of its place in the bound; more often than once does no harm."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self._failed:
                with contextlib.suppress(EnvironmentFailed):
                    await self._ask({"do": "close"})
        finally:
            self._leave()

    async def _ask(self, request: dict[str, Any]) -> Any:
        if self._process is None or self._failed:
            raise EnvironmentFailed("the environment's session is over: it failed before")
        try:
            answer = await self._place.ask(self._process, request | {"session": self._number})
        except EnvironmentFailed:
            self._failed = True
            raise
        if "failed" in answer:
            self._failed = True
            raise EnvironmentFailed(answer["failed"])
        return answer["value"]


class _Place:
    """One worker, and the next one after it is lost. One request is under way at a time; the others wait in their order."""

    def __init__(self, first: dict[str, Any], request_seconds: float, start_seconds: float) -> None:
        self._first = first
        self._request_seconds = request_seconds
        self._start_seconds = start_seconds
        self._lock = asyncio.Lock()
        self.process: asyncio.subprocess.Process | None = None
        self.sessions = 0
        self.lost = 0

    async def running(self) -> asyncio.subprocess.Process:
        """Return the worker, started if there is none."""
        return await _to_the_end(self._running())

    async def ask(self, process: asyncio.subprocess.Process, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request; a worker that gives none in its time is lost."""
        return await _to_the_end(self._ask(process, request))

    async def end(self) -> None:
        """End the worker; what it is asked just now fails."""
        await self._kill()

    async def _running(self) -> asyncio.subprocess.Process:
        async with self._lock:
            if self.process is not None and self.process.returncode is None:
                return self.process
            if self.process is not None:
                await self._lose(self.process)
            self.process = await asyncio.create_subprocess_exec(
                *COMMAND,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=worker_variables(),
                limit=LONGEST_LINE,
                # What it forks ends with it.
                start_new_session=True,
            )
            started = self.process
            await self._exchange(started, self._first, self._start_seconds, "to start")
            return started

    async def _ask(self, process: asyncio.subprocess.Process, request: dict[str, Any]) -> dict[str, Any]:
        async with self._lock:
            if process is not self.process:
                raise EnvironmentFailed("the environment worker of the episode was lost")
            return await self._exchange(process, request, self._request_seconds, f"to {request['do']}")

    async def _exchange(
        self, process: asyncio.subprocess.Process, request: dict[str, Any], seconds: float, what: str
    ) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                process.stdin.write(json.dumps(request).encode() + b"\n")
                await process.stdin.drain()
                return dict(json.loads(await process.stdout.readuntil(b"\n")))
        except TimeoutError as error:
            await self._lose(process)
            raise EnvironmentFailed(f"the environment worker took more than {seconds:g} seconds {what}") from error
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            await self._lose(process)
            raise EnvironmentFailed(f"the environment worker was lost as it was asked {what}") from error

    async def _lose(self, process: asyncio.subprocess.Process) -> None:
        if process is self.process:
            self.lost += 1
            await self._kill()

    async def _kill(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()


async def _to_the_end(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Do work that goes on when who waits for it is cancelled: an answer that nobody read would be taken for the next one."""
    task = asyncio.ensure_future(work)
    # A failure that nobody waits for any more is no news.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


def worker_variables() -> dict[str, str]:
    """Return the whole environment of a worker."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    # Where our packages are, however this process came to find them.
    kept["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return kept | {"LANG": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
