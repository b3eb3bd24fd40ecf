"""The bench's own client of the API server: makes many objects over few connections, and watches for what becomes of them."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from embedded.settings import Home

CONNECTIONS = 8
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
LINE_LIMIT = 4 * 2**20

Object = dict[str, Any]


class Api:
    """The cluster's administrator in one namespace. The load has its own few connections, so that watches don't hold them."""

    def __init__(self, home: Home, namespace: str, few: aiohttp.ClientSession, many: aiohttp.ClientSession) -> None:
        self._server = home.api_url
        self.namespace = namespace
        self._few = few
        self._many = many

    @classmethod
    @asynccontextmanager
    async def of(cls, home: Home, namespace: str) -> AsyncIterator[Api]:
        pki = home.root / "pki"
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")

        def session(limit: int) -> aiohttp.ClientSession:
            connector = aiohttp.TCPConnector(limit=limit, ssl=context)
            return aiohttp.ClientSession(
                connector=connector,
                headers={"User-Agent": "bench"},
                read_bufsize=LINE_LIMIT,
                timeout=aiohttp.ClientTimeout(total=None),
            )

        async with session(CONNECTIONS) as few, session(0) as many:
            yield cls(home, namespace, few, many)

    def url(self, group: str, resource: str) -> str:
        return f"{self._server}/{group}/namespaces/{self.namespace}/{resource}"

    async def create_all(self, group: str, resource: str, bodies: Sequence[Object]) -> None:
        """POST them all at once, over the few connections."""
        url, ready = self.url(group, resource), iter([json.dumps(body).encode() for body in bodies])

        async def worker() -> None:
            for body in ready:
                async with self._few.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
                    if answer.status != 201:
                        raise RuntimeError(f"POST {resource}: {answer.status} {await answer.text()}")
                    await answer.read()

        await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))

    async def metadata(self, group: str, resource: str) -> list[Object]:
        """The metadata of every object of a kind in the namespace."""
        async with self._many.get(self.url(group, resource), headers={"Accept": METADATA_LIST}) as answer:
            return list((await answer.json())["items"] or ())

    async def get(self, path: str) -> Object:
        async with self._many.get(self._server + path) as answer:
            body: Object = await answer.json()
            return body

    async def delete_all(self, group: str, resource: str) -> None:
        query = {"propagationPolicy": "Background", "gracePeriodSeconds": "0"}
        async with self._many.delete(self.url(group, resource), params=query) as answer:
            await answer.read()

    async def watch(
        self, group: str, resource: str, want: int, counts: Callable[[Object], bool], *, metadata_only: bool = False
    ) -> asyncio.Task[float]:
        """Start to watch; the task ends with the time at which `counts` had held for `want` different objects."""
        url = self.url(group, resource)
        async with self._many.get(url, params={"limit": 1}, headers={"Accept": METADATA_LIST}) as answer:
            version = (await answer.json())["metadata"]["resourceVersion"]
        query = {"watch": "1", "resourceVersion": version}
        accept = METADATA_ONLY if metadata_only else "application/json"
        stream = await self._many.get(url, params=query, headers={"Accept": accept})

        async def follow() -> float:
            seen: set[str] = set()
            async with stream:
                async for line in stream.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise RuntimeError(f"watch {resource}: {event['object']}")
                    if event["type"] != "DELETED" and counts(event["object"]):
                        seen.add(event["object"]["metadata"]["name"])
                        if len(seen) >= want:
                            return time.monotonic()
            raise RuntimeError(f"the watch of {resource} ended with {len(seen)} of {want}")

        return asyncio.create_task(follow())
