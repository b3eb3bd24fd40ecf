"""Samples answers from the run's servers: over plain HTTP, each attempt with the same seed, and only good answers come back."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx

from halo_api.rollouts import Policy
from halo_trainer.rollouts.completion import (
    COMPLETIONS_PATH,
    Ask,
    Sampling,
    ServerFailed,
    request_body,
    turn_of,
)
from halo_trainer.rollouts.episode import Turn
from halo_trainer.rollouts.fleet import Fleet, Gone, Server, unless_gone


class Refused(ServerFailed):
    """A server refuses the request itself: no other would take it."""


class Unreachable(ServerFailed):
    """Nobody listens, or the server does not know the policy: its guard has to speak before anything is asked there again."""


class Busy(ServerFailed):
    """A server has too much to do, which is no fault of it."""


@dataclass(frozen=True)
class Retries:
    """How an answer is tried for; times in seconds."""

    attempts: int = 5
    # Between two attempts: the first, doubled each time up to the second.
    pause: tuple[float, float] = (0.2, 5.0)
    # Of one attempt, from the request to the last byte of the answer.
    attempt_seconds: float = 900.0


RETRIES = Retries()


class Clock:
    """How long an episode may still take: its time runs, but for when it waits for a place at a server."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout

    @contextlib.asynccontextmanager
    async def stopped(self) -> AsyncIterator[Callable[[], None]]:
        """Stop until the block ends, or calls what it is given."""
        when, now = self._timeout.when(), asyncio.get_running_loop().time
        left = None if when is None or self._timeout.expired() else when - now()
        runs = left is None
        if left is not None:
            self._timeout.reschedule(None)

        def go_on() -> None:
            nonlocal runs
            if not runs and left is not None:
                self._timeout.reschedule(now() + left)
            runs = True

        yield go_on
        go_on()


class Client:
    """Samples answers with the fleet's current policy. `failures` counts attempts that failed, by what was wrong."""

    def __init__(self, fleet: Fleet, http: httpx.AsyncClient, sampling: Sampling, retries: Retries = RETRIES) -> None:
        self.fleet, self.sampling, self._http, self._retries = fleet, sampling, http, retries
        self.failures: Counter[str] = Counter()

    async def sample(self, ask: Ask, keys: tuple[str, ...], clock: Clock | None = None) -> Turn:
        """Return an answer; `keys` name who asks, as Fleet.lease takes them. Raises ServerFailed after the last attempt."""
        avoid: frozenset[int] = frozenset()
        first, most = self._retries.pause
        for attempt in range(self._retries.attempts):
            if attempt:
                await asyncio.sleep(min(most, first * 2 ** (attempt - 1)))
            async with contextlib.AsyncExitStack() as stack:
                # The episode is not to blame for a queue.
                go_on = await stack.enter_async_context(clock.stopped()) if clock else None
                server = await stack.enter_async_context(self.fleet.lease(keys, avoid))
                if go_on:
                    go_on()
                try:
                    turn = await self._attempt(server, ask)
                    self.fleet.worked(server)
                    return turn
                except ServerFailed as error:
                    self.failures[type(error).__name__] += 1
                    if isinstance(error, Refused):
                        raise
                    if not isinstance(error, Busy):
                        self.fleet.failed(server, str(error), at_once=isinstance(error, Unreachable))
                    failure = ServerFailed(f"server {server.address.server}: {error}")
                    avoid = frozenset({server.address.server})
        raise failure

    async def _attempt(self, server: Server, ask: Ask) -> Turn:
        policy = server.policy
        assert policy, "a server is leased with its policy"
        status, content = await self._post(server, request_body(ask, self.sampling, policy))
        if status != 200:
            raise _failure(status, content, policy)
        if policy.serving == "folded" and policy is not self.fleet.policy:
            raise ServerFailed("its weights changed while it sampled")
        try:
            reply = json.loads(content)
        except ValueError as error:
            raise ServerFailed(f"the reply is no JSON ({len(content)} bytes)") from error
        return turn_of(ask, self.sampling, policy, server.address.server, reply)

    async def _post(self, server: Server, body: dict[str, Any]) -> tuple[int, bytes]:
        seconds = self._retries.attempt_seconds
        try:
            async with asyncio.timeout(seconds):
                response = await unless_gone(server, self._http.post(server.address.url + COMPLETIONS_PATH, json=body))
                return response.status_code, response.content
        except TimeoutError as error:
            raise ServerFailed(f"no answer within {seconds:g} s") from error
        except Gone as error:
            raise ServerFailed("it was replaced") from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Unreachable(f"it can't be reached ({error})") from error
        except httpx.HTTPError as error:
            raise ServerFailed(f"the connection broke ({type(error).__name__}: {error})") from error


def _failure(status: int, content: bytes, policy: Policy) -> ServerFailed:
    said = content[:300].decode(errors="replace")
    if status == 404:
        return Unreachable(f"it does not know {policy.model} ({said})")
    if status == 429:
        return Busy(f"it has too much to do ({said})")
    kind = Refused if 400 <= status < 500 else ServerFailed
    return kind(f"it answered {status}: {said}")
