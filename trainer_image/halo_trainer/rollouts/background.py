"""The episode engine for code that is not async: it runs in an event loop of its own, in a thread beside the training.

So servers that were set aside are let in again while the trainer computes, and a round can be sampled while another trains.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
from array import array
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from halo_api.rollouts import Policy, ServerAddress
from halo_trainer.environments.base import EnvironmentFailed, Task
from halo_trainer.rollouts.chat import Chat
from halo_trainer.rollouts.client import RETRIES, Client, Retries
from halo_trainer.rollouts.completion import Sampling, ServerFailed
from halo_trainer.rollouts.engine import Engine, Environments, EpisodeRules, Group, Wanted
from halo_trainer.rollouts.fleet import PATIENCE, Fleet, Patience, Published, Server
from halo_trainer.rollouts.guard import Guards, NotTaken
from halo_trainer.rollouts.lines import http_client
from halo_trainer.rollouts.scores import server_scores

T = TypeVar("T")
# How often a waiting thread looks whether it was told to stop.
LOOK_SECONDS = 0.1


class Stopped(Exception):
    """The run was told to stop while it waited."""


@dataclass(frozen=True)
class Scored:
    """Log-probabilities by server, in nats, and by server why one has none."""

    values: dict[int, list[float]]
    problems: dict[int, str]


class Rollouts:
    """The run's servers, environments and engine; use it in `with`. All of it is for one thread to call."""

    def __init__(
        self,
        addresses: Iterable[ServerAddress],
        attempt: int,
        servers_file: Path | None,
        sampling: Sampling,
        chat: Chat,
        environments: Callable[[], contextlib.AbstractAsyncContextManager[Environments]],
        rules: EpisodeRules,
        seed: int,
        patience: Patience = PATIENCE,
        retries: Retries = RETRIES,
        take_seconds: float = 300.0,
    ) -> None:
        """`environments` opens the workers, in the loop's thread; `take_seconds`: how long a server may take for a policy."""
        self._addresses, self._attempt, self._file = tuple(addresses), attempt, servers_file
        self._sampling, self._chat, self._environments, self._rules = sampling, chat, environments, rules
        self._seed, self._patience, self._retries, self._take_seconds = seed, patience, retries, take_seconds
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollouts", daemon=True)
        self._stack = contextlib.AsyncExitStack()

    def __enter__(self) -> Rollouts:
        self._thread.start()
        try:
            self._run(self._open())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._run(self._stack.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def fleet(self) -> Fleet:
        """Its `ready`, `wanted` and `problems` say how the servers are."""
        return self._fleet

    @property
    def failures(self) -> dict[str, int]:
        """Attempts at an answer that failed so far, by what was wrong."""
        return dict(self._client.failures)

    def publish(self, policy: Policy, stop: threading.Event | None = None) -> Published:
        """Let all servers take a policy. Raises NoServers, and Stopped once `stop` is set."""
        return self._run(self._fleet.publish(policy), stop)

    def sample(self, wanted: Iterable[Wanted], stop: threading.Event | None = None) -> Iterator[Group]:
        """Yield groups as they are done. Raises NoServers, and Stopped once `stop` is set; close it to stop what still plays."""
        done: queue.SimpleQueue[Group | None] = queue.SimpleQueue()
        playing = self._run(_started(self._play(wanted, done)))
        playing.add_done_callback(lambda _: done.put(None))
        try:
            while (group := _awaited(done, stop)) is not None:
                yield group
            self._run(_result(playing))
        finally:
            self._run(_ended(playing))

    async def _play(self, wanted: Iterable[Wanted], done: queue.SimpleQueue[Group | None]) -> None:
        async with contextlib.aclosing(self._engine.sample(wanted)) as groups:
            async for group in groups:
                done.put(group)

    def scored(self, prompts: Sequence[array[int]], tokens: int, stop: threading.Event | None = None) -> Scored:
        """Return what each server that takes part computes for the last tokens of prompts, with the current policy."""
        return self._run(self._scored(prompts, tokens), stop)

    def hold(
        self,
        prompts: Sequence[array[int]],
        tokens: int,
        wrong: Callable[[list[float]], str | None],
        passed: Iterable[int],
        stop: threading.Event | None = None,
    ) -> None:
        """Let in a server that was replaced, or set aside, only if its scores of the prompts are not `wrong`, until the next policy.

        `wrong` says in one sentence what is, and is called in another thread. `passed`: the servers that were scored already.
        """
        self._run(self._hold(prompts, tokens, wrong, frozenset(passed)), stop)

    def openings(self, tasks: Iterable[Task], most: int, stop: threading.Event | None = None) -> list[array[int]]:
        """Return the prompts of the first tasks that can be opened, at most so many."""
        return self._run(self._opened(tasks, most), stop)

    async def _scored(self, prompts: Sequence[array[int]], tokens: int) -> Scored:
        values: dict[int, list[float]] = {}
        problems: dict[int, str] = {}

        async def one(server: Server) -> None:
            assert server.policy, "a server that is ready has its policy"
            try:
                work = server_scores(self._http, server.address, server.policy, prompts, tokens, self._take_seconds)
                values[server.address.server] = await work
            except ServerFailed as error:
                problems[server.address.server] = str(error)
                self._fleet.failed(server, str(error), at_once=True)

        await asyncio.gather(*map(one, self._fleet.serving))
        return Scored(values, problems)

    async def _hold(
        self,
        prompts: Sequence[array[int]],
        tokens: int,
        wrong: Callable[[list[float]], str | None],
        passed: frozenset[int],
    ) -> None:
        async def check(address: ServerAddress, policy: Policy) -> None:
            try:
                values = await server_scores(self._http, address, policy, prompts, tokens, self._take_seconds)
            except ServerFailed as error:
                raise NotTaken(str(error)) from error
            if problem := wrong(values):
                raise NotTaken(problem)

        self._fleet.hold(check, passed)

    async def _opened(self, tasks: Iterable[Task], most: int) -> list[array[int]]:
        found: list[array[int]] = []
        for task in tasks:
            if len(found) == most:
                break
            with contextlib.suppress(EnvironmentFailed):
                async with self._environment.session(task) as session:
                    opening = await session.open()
                    found.append(self._chat.open(opening.messages, opening.tools).prompt)
        return found

    async def _open(self) -> None:
        self._http = http = await self._stack.enter_async_context(http_client())
        guards = Guards(http, take_seconds=self._take_seconds)
        fleet = Fleet(self._addresses, guards, self._attempt, self._file, self._patience)
        self._fleet = await self._stack.enter_async_context(fleet)
        self._client = Client(self._fleet, http, self._sampling, self._retries)
        self._environment = await self._stack.enter_async_context(self._environments())
        self._engine = Engine(self._client, self._chat, self._environment, self._rules, self._seed)

    def _run(self, work: Coroutine[Any, Any, T], stop: threading.Event | None = None) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while True:
                concurrent.futures.wait([future], LOOK_SECONDS)
                if future.done():
                    return future.result()
                if stop is not None and stop.is_set():
                    raise Stopped
        finally:
            future.cancel()


def _awaited(done: queue.SimpleQueue[T], stop: threading.Event | None) -> T:
    while True:
        if stop is not None and stop.is_set():
            raise Stopped
        with contextlib.suppress(queue.Empty):
            return done.get(timeout=LOOK_SECONDS)


async def _started(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.create_task(work)


async def _result(task: asyncio.Task[T]) -> T:
    return await task


async def _ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])
