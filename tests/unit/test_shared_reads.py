"""Reads that many ask for at once are shared, and no answer is older than its question."""

from __future__ import annotations

import asyncio

import pytest

from halo_operator.shared_reads import SharedReads


class Shelf:
    """Counts how often it is read; a read sees what is on it when the read begins."""

    def __init__(self) -> None:
        self.holds, self.reads = "old", 0

    async def read(self, key: str) -> str:
        self.reads += 1
        found = f"{key}: {self.holds}"
        await asyncio.sleep(0.01)
        return found


async def test_those_who_ask_together_share_one_read() -> None:
    shelf = Shelf()
    shared = SharedReads(shelf.read)
    assert await asyncio.gather(*(shared.get("a") for _ in range(9))) == ["a: old"] * 9
    assert shelf.reads == 1


async def test_one_who_asks_during_a_read_gets_the_next_one() -> None:
    shelf = Shelf()
    shared = SharedReads(shelf.read)
    first = asyncio.create_task(shared.get("a"))
    await asyncio.sleep(0.005)
    shelf.holds = "new"
    assert await asyncio.gather(*(shared.get("a") for _ in range(9))) == ["a: new"] * 9
    assert await first == "a: old"
    assert shelf.reads == 2


async def test_an_error_reaches_everyone_and_is_not_kept() -> None:
    async def fails(_: str) -> str:
        raise OSError("away")

    shared = SharedReads(fails)
    found = await asyncio.gather(*(shared.get("a") for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in found] == [OSError] * 3
    with pytest.raises(OSError, match="away"):
        await shared.get("a")


async def test_one_who_gives_up_takes_nothing_from_the_others() -> None:
    shared = SharedReads(Shelf().read)
    first, second = asyncio.create_task(shared.get("a")), asyncio.create_task(shared.get("a"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == "a: old"
