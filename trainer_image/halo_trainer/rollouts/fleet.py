"""The run's rollout servers: which may be sampled from, who samples where, and what becomes of one that fails.

Each server is an address of its own, since a policy is announced to each. A server is sampled from only once it has taken the
current policy; one that keeps failing is set aside, and asked again, ever more rarely, until it has. A replaced server shows
as a higher incarnation in the file of addresses that the supervisor keeps, and is let in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from halo_api.rollouts import Policy, ServerAddress, Servers
from halo_trainer.rollouts.guard import Guards, NotTaken

T = TypeVar("T")
# Raises NotTaken where a server that says it has a policy computes with other numbers.
Check = Callable[[ServerAddress, Policy], Coroutine[Any, Any, None]]


class NoServers(Exception):
    """No server has sampled with the current policy for too long, in one sentence with what each says."""


@dataclass(frozen=True)
class Patience:
    """How long and how often; times in seconds."""

    # Requests that one server has at once, as many as vLLM batches by itself: beyond, they wait here, where another may take them.
    in_flight: int = 256
    # Consecutive failures that set a server aside.
    strikes: int = 3
    # A server that was set aside is asked again after the first, twice that, and so on up to the second.
    again: tuple[float, float] = (0.5, 10.0)
    # How often the file of addresses is looked at.
    look: float = 1.0
    # Without any server: then the round is given up.
    alone: float = 1800.0
    # How often a server is asked to take a new policy before it is set aside.
    takes: int = 3


PATIENCE = Patience()


@dataclass(eq=False)
class Server:
    """One incarnation of a server. Only a ready one is sampled from."""

    address: ServerAddress
    state: Literal["ready", "aside", "gone"] = "aside"
    in_flight: int = 0
    strikes: int = 0
    # How often it was set aside in a row, when it is asked again, and what was wrong.
    falls: int = 0
    due: float = 0.0
    problem: str = "it has not been asked yet"
    # The policy that it said it samples with.
    policy: Policy | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Gone(Exception):
    """The server was replaced meanwhile."""


async def unless_gone(server: Server, work: Coroutine[Any, Any, T]) -> T:
    """Return what the work does with a server; raise Gone, and stop it, once the server is replaced: a lost node hangs for ever."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(server.gone.wait())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


@dataclass(frozen=True)
class Published:
    """How a policy was taken: seconds by server, and by server why one did not."""

    seconds: dict[int, float]
    problems: dict[int, str]


def choice(loads: dict[int, int], most: int, home: int | None, avoid: frozenset[int]) -> int | None:
    """Return the server to ask, of those ready with so many requests in flight; None: wait. Pure.

    Home is where an episode's earlier turns, or its group's prompt, are cached. It is left only where it has no room or has
    just failed and another has: nothing waits while a server idles.
    """
    free = {server: load for server, load in loads.items() if load < most}
    wanted = {server: load for server, load in free.items() if server not in avoid} or free
    if home in wanted:
        return home
    return min(wanted, key=lambda server: (wanted[server], server), default=None)


class Fleet:
    """The servers of an attempt; use it in `async with`, in one event loop."""

    def __init__(
        self,
        addresses: Iterable[ServerAddress],
        guards: Guards,
        attempt: int,
        file: Path | None = None,
        patience: Patience = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`file`: servers.json, which may come to be there later."""
        self._servers = {address.server: Server(address) for address in addresses}
        self._guards, self._attempt, self._file, self.patience, self._clock = guards, attempt, file, patience, clock
        self.policy: Policy | None = None
        self._check: tuple[Policy, Check] | None = None
        self._homes: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._asked: dict[int, asyncio.Task[Any]] = {}

    async def __aenter__(self) -> Fleet:
        self._spawn(self._tend())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def wanted(self) -> int:
        """How many servers the attempt has."""
        return len(self._servers)

    @property
    def ready(self) -> list[int]:
        """Which of them are sampled from."""
        return [number for number, server in self._servers.items() if server.state == "ready"]

    @property
    def serving(self) -> list[Server]:
        """Those servers themselves."""
        return [server for server in self._servers.values() if server.state == "ready"]

    @property
    def problems(self) -> dict[int, str]:
        """What is wrong with each of the others."""
        return {number: server.problem for number, server in self._servers.items() if server.state != "ready"}

    async def publish(self, policy: Policy) -> Published:
        """Let every server take the policy, all at once; return once each has, or is set aside for not doing so.

        At least one will have: raises NoServers where none does for so long. What is sampled meanwhile of a folded policy, whose
        weights change in place, is refused by the client.
        """
        self.policy = policy
        self._read()
        began = self._clock()
        seconds: dict[int, float] = {}

        async def take(number: int, server: Server) -> None:
            for tried in range(self.patience.takes):
                if tried:
                    await asyncio.sleep(self._wait(tried))
                refused = await self._take(server, put=True)
                if refused is None or refused.final or server.state == "gone":
                    break
            if server.state == "ready":
                seconds[number] = self._clock() - began

        servers = dict(self._servers)
        for server in servers.values():
            server.state, server.problem = "aside", f"it has not taken {policy.name} yet"
        await asyncio.gather(*(take(*each) for each in servers.items()))
        await self._any_ready()
        return Published(seconds, self.problems)

    def hold(self, check: Check, passed: Container[int]) -> None:
        """Let in no server any more with the current policy before it has passed the check, which these have done already."""
        assert self.policy, "what is checked is a policy"
        self._check = (self.policy, check)
        for number, server in self._servers.items():
            if server.state == "ready" and number not in passed:
                self._set_aside(server, "it has not been checked yet")

    @contextlib.asynccontextmanager
    async def lease(self, keys: tuple[str, ...], avoid: frozenset[int] = frozenset()) -> AsyncIterator[Server]:
        """Wait for a server and have one of its places; `keys` name who asks, the narrowest first, so that it stays where it was."""
        server = await self._lease(keys, avoid)
        server.in_flight += 1
        try:
            yield server
        finally:
            server.in_flight -= 1
            self._notify()

    def forget(self, keys: Iterable[str]) -> None:
        """Forget where they were."""
        for key in keys:
            self._homes.pop(key, None)

    def worked(self, server: Server) -> None:
        """Note an answer that is good."""
        server.strikes = server.falls = 0

    def failed(self, server: Server, problem: str, at_once: bool = False) -> None:
        """Note a failure; `at_once`: one that others would meet too, so that the server is asked for its policy first."""
        server.strikes += 1
        server.problem = problem
        if server.state == "ready" and (at_once or server.strikes >= self.patience.strikes):
            self._set_aside(server, problem)

    async def _lease(self, keys: tuple[str, ...], avoid: frozenset[int]) -> Server:
        while True:
            await self._any_ready()
            loads = {number: self._servers[number].in_flight for number in self.ready}
            home = next((self._homes[key] for key in keys if key in self._homes), None)
            found = choice(loads, self.patience.in_flight, home, avoid)
            if found is not None:
                self._homes[keys[0]] = found
                for key in keys[1:]:
                    # A group moves with its members only where its server is no longer there.
                    if self._homes.get(key) not in loads:
                        self._homes[key] = found
                return self._servers[found]
            await self._changed.wait()

    async def _any_ready(self) -> None:
        """Wait until a server is ready, in vain for so long at most."""
        if self.ready:
            return
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.patience.alone):
                while not self.ready:
                    await self._changed.wait()
                return
        told = "; ".join(f"server {number}: {problem}" for number, problem in self.problems.items())
        raise NoServers(f"no rollout server was ready for {self.patience.alone:g} s ({told or 'the run has none'})")

    def _set_aside(self, server: Server, problem: str) -> None:
        if server.state == "gone":
            return
        server.state, server.problem = "aside", problem
        server.due = self._clock() + (self._wait(server.falls) if server.falls else 0.0)
        server.falls += 1
        self._wake.set()
        self._notify()

    def _wait(self, falls: int) -> float:
        first, most = self.patience.again
        return float(min(most, first * 2 ** (falls - 1)))

    async def _take(self, server: Server, put: bool = False) -> NotTaken | None:
        """Let a server take the current policy, whatever that is by then; return why it did not."""
        async with server.taking:
            if server.state == "ready":
                # Whoever had the lock before saw to it.
                return None
            while policy := self.policy:
                try:
                    take = self._guards.put if put else self._guards.settle
                    await unless_gone(server, take(server.address, policy))
                    if self._check and self._check[0] is policy:
                        await unless_gone(server, self._check[1](server.address, policy))
                except Gone:
                    return NotTaken("it was replaced")
                except NotTaken as error:
                    self._set_aside(server, str(error))
                    return error
                if policy is self.policy:
                    server.state, server.policy, server.strikes = "ready", policy, 0
                    self._notify()
                    return None
        return NotTaken("there is no policy yet")

    async def _tend(self) -> None:
        """Look for new addresses, and ask again what was set aside, as long as this is open."""
        while True:
            self._wake.clear()
            self._read()
            now = self._clock()
            for number, server in self._servers.items():
                idle = number not in self._asked or self._asked[number].done()
                if (
                    self.policy
                    and server.state == "aside"
                    and server.due <= now
                    and idle
                    and not server.taking.locked()
                ):
                    self._asked[number] = self._spawn(self._take(server))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.patience.look):
                    await self._wake.wait()

    def _read(self) -> None:
        """Take up the servers that were replaced since."""
        for address in self._told():
            known = self._servers.get(address.server)
            if known and known.address.incarnation >= address.incarnation:
                continue
            if known:
                known.state = "gone"
                known.gone.set()
            self._servers[address.server] = Server(address)
            self._notify()

    def _told(self) -> Iterator[ServerAddress]:
        with contextlib.suppress(OSError, ValidationError):
            if self._file is not None:
                told = Servers.model_validate_json(self._file.read_bytes())
                if told.attempt == self._attempt:
                    yield from told.servers

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
