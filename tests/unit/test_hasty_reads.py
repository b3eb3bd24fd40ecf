"""How fresh the webhook's looks are: what is there may be moments old, what is missing is asked for again."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from halo_operator.cluster import Cluster
from halo_operator.gather import Gatherer
from halo_operator.queue import Key

KEY = Key("BaseModel", "", "smol")


class Server:
    """An API server whose cache lags behind what is stored."""

    def __init__(self, stored: set[str], cached: set[str]) -> None:
        self.stored, self.cached, self.asked = stored, cached, list[bool]()

    async def get(self, kind: str, namespace: str | None, name: str, *, fresh: bool = True) -> dict[str, Any] | None:
        self.asked.append(fresh)
        return {"fresh": fresh} if name in (self.stored if fresh else self.cached) else None


@pytest.mark.parametrize(
    ("stored", "cached", "hasty", "asked", "found"),
    [
        ({"smol"}, {"smol"}, False, [True], True),
        ({"smol"}, {"smol"}, True, [False], True),
        ({"smol"}, set(), True, [False, True], True),
        (set(), set(), True, [False, True], False),
    ],
    ids=["the reconciler's", "there", "there since a moment", "missing"],
)
def test_a_look(stored: set[str], cached: set[str], hasty: bool, asked: list[bool], found: bool) -> None:
    server = Server(stored, cached)

    async def look() -> Any:
        return await Gatherer(cast(Cluster, server), "halo-system", hasty=hasty).get(KEY)

    assert (asyncio.run(look()) is not None) is found
    assert server.asked == asked
