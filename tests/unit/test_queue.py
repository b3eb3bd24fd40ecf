"""The work queue's promises: merged, one at a time for a key, never lost, and backing off whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from halo_operator.queue import Key, Ready, WorkQueue

RUN, OTHER = Key("TrainingJob", "team", "run"), Key("TrainingJob", "team", "other")
# Far longer than any test: what waits for it never comes by itself.
NEVER = 3600.0


class Work:
    """A reconcile that tells when it starts and goes on when it is let."""

    def __init__(self, *answers: float | Exception | None) -> None:
        self.started: asyncio.Queue[Key] = asyncio.Queue()
        self.go = asyncio.Semaphore(0)
        self.answers = list(answers)
        self.at_once: list[int] = []
        self._running = 0

    async def __call__(self, key: Key) -> float | None:
        self._running += 1
        self.at_once.append(self._running)
        self.started.put_nowait(key)
        try:
            await self.go.acquire()
        finally:
            self._running -= 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def next(self) -> Key:
        return await asyncio.wait_for(self.started.get(), 5)


@asynccontextmanager
async def working(reconcile: Callable[[Key], Awaitable[float | None]], **settings: Any) -> AsyncIterator[WorkQueue]:
    queue = WorkQueue(reconcile, **settings)
    task = asyncio.create_task(queue.run())
    yield queue
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def idle(work: Work) -> None:
    """Let everything that is ready run, and see that nothing more has started."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert work.started.empty()


async def test_changes_before_a_worker_is_free_are_one() -> None:
    work = Work()
    async with working(work, workers=1) as queue:
        for _ in range(5):
            queue.add(RUN)
        assert await work.next() == RUN
        work.go.release()
        await idle(work)


async def test_changes_while_it_works_are_one_more_time() -> None:
    work = Work()
    async with working(work, workers=4) as queue:
        queue.add(RUN)
        await work.next()
        for _ in range(5):
            queue.add(RUN)
        await idle(work)
        work.go.release()
        assert await work.next() == RUN
        work.go.release()
        await idle(work)
    assert max(work.at_once) == 1


async def test_keys_do_not_wait_for_each_other() -> None:
    work = Work()
    async with working(work, workers=2) as queue:
        queue.add(RUN)
        queue.add(OTHER)
        assert {await work.next(), await work.next()} == {RUN, OTHER}


async def test_a_failure_is_tried_again_by_itself_and_ever_later() -> None:
    work = Work(*(RuntimeError("no") for _ in range(4)))
    moments = []
    async with working(work, first_delay=0.02, longest_delay=0.05) as queue:
        queue.add(RUN)
        for _ in range(5):
            await work.next()
            moments.append(time.monotonic())
            work.go.release()
        await idle(work)
    waits = [after - before for before, after in itertools.pairwise(moments)]
    assert [wait >= least for wait, least in zip(waits, (0.02, 0.04, 0.05, 0.05), strict=True)] == [True] * 4


async def test_a_change_does_not_skip_the_wait_after_a_failure() -> None:
    work = Work(RuntimeError("no"))
    async with working(work, first_delay=NEVER, longest_delay=NEVER) as queue:
        queue.add(RUN)
        await work.next()
        queue.add(RUN)
        work.go.release()
        await idle(work)
        queue.add(RUN)
        await idle(work)
        queue.add(OTHER)
        assert await work.next() == OTHER


async def test_a_success_forgets_the_failures(caplog: pytest.LogCaptureFixture) -> None:
    work = Work(ValueError("no"), ValueError("no"), None, ValueError("no"))
    async with working(work, first_delay=0.1, expected=str) as queue:
        queue.add(RUN)
        for _ in range(3):
            await work.next()
            work.go.release()
        await idle(work)
        queue.add(RUN)
        await work.next()
        work.go.release()
        await work.next()
    told = [record.getMessage().rpartition("; ")[2] for record in caplog.records]
    assert told == ["next try in 0.1 s", "next try in 0.2 s", "next try in 0.1 s"]


async def test_a_wish_to_look_again_is_kept() -> None:
    work = Work(0.01)
    async with working(work) as queue:
        queue.add(RUN)
        await work.next()
        work.go.release()
        assert await work.next() == RUN


async def test_the_sooner_of_two_wishes_wins_in_either_order() -> None:
    for delays in ((NEVER, 0.01), (0.01, NEVER)):
        work = Work()
        async with working(work) as queue:
            for delay in delays:
                queue.add_after(RUN, delay)
            assert await work.next() == RUN
            work.go.release()
            await idle(work)


async def test_a_change_comes_before_the_wish_and_takes_its_place() -> None:
    work = Work(0.01, None)
    async with working(work) as queue:
        queue.add(RUN)
        await work.next()
        queue.add(RUN)
        work.go.release()
        await work.next()
        work.go.release()
        # The change was looked at with all that is known now; the older wish has nothing to add.
        queue.add_after(OTHER, 0.03)
        assert await work.next() == OTHER


async def test_every_reconcile_is_observed() -> None:
    work, seen = Work(RuntimeError("no"), None), []
    async with working(work, first_delay=0.01) as queue:
        queue.observe = lambda key, seconds, failed: seen.append((key, seconds >= 0, failed))
        queue.add(RUN)
        for _ in range(2):
            await work.next()
            work.go.release()
        await idle(work)
    assert seen == [(RUN, True, True), (RUN, True, False)]


async def test_a_new_run_goes_before_what_is_known_and_what_is_known_never_waits_for_ever() -> None:
    ready = Ready()
    for name in "abc":
        ready.put(Key("TrainingJob", "team", f"known-{name}"))
    for number in range(Ready.NEW_IN_A_ROW + 2):
        ready.put(Key("TrainingJob", "team", f"new-{number}"), new=True)
    taken = [(await ready.get()).name for _ in range(len(ready))]
    assert taken[: Ready.NEW_IN_A_ROW] == [f"new-{n}" for n in range(Ready.NEW_IN_A_ROW)]
    assert taken[Ready.NEW_IN_A_ROW] == "known-a"
    assert sorted(taken[-2:]) == ["known-b", "known-c"]
