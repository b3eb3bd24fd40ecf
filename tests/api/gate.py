"""A gate between an operator and the API server, that tells of each request and may act before or after it goes on.

So a test kills a replica exactly after its third write, or delays a write until another replica leads: by chance alone
these moments are milliseconds wide.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web
from yarl import URL

HOP_HEADERS = {"host", "connection", "transfer-encoding", "content-length", "content-encoding", "accept-encoding"}
LIMIT = 16 * 1024 * 1024


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    body: str
    answer: int = 0

    @property
    def is_stored(self) -> bool:
        """Whether it was a write, and was done."""
        return self.is_write and 0 < self.answer < 300

    @property
    def is_write(self) -> bool:
        """Whether it changes an object: a lease's renewal and the review of a token are no part of a run."""
        return self.method != "GET" and "/leases" not in self.path and "/tokenreviews" not in self.path


Act = Callable[[Asked], None]


def ignore(_: Asked) -> None:
    """Do nothing."""


class Gate:
    """Forwards everything; `before` and `after` run for each request and may block it, kill, or pause."""

    def __init__(self, kubeconfig: Path) -> None:
        self.before: Act = ignore
        self.after: Act = ignore
        # By how much the clock that dates the answers is set off, which is the operator's clock.
        self.clock = timedelta()
        self._kubeconfig = kubeconfig
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._until_stopped(started))

    async def _until_stopped(self, started: threading.Event) -> None:
        cluster = yaml.safe_load(self._kubeconfig.read_text())["clusters"][0]["cluster"]
        self._server = cluster["server"]
        trust = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        self._stop = asyncio.Event()
        connector = aiohttp.TCPConnector(ssl=trust, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._session:
            app = web.Application(client_max_size=LIMIT)
            app.router.add_route("*", "/{rest:.*}", self._forward)
            runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            started.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        asked = Asked(request.method, request.path_qs, body.decode(errors="replace"))
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_HEADERS}
        await asyncio.to_thread(self.before, asked)
        url = URL(self._server + request.raw_path, encoded=True)
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.request(
            request.method, url, headers=headers, data=body or None, timeout=timeout
        ) as answer:
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_HEADERS}
            if "Date" in kept:
                kept["Date"] = format_datetime(parsedate_to_datetime(kept["Date"]) + self.clock, usegmt=True)
            response = web.StreamResponse(status=answer.status, headers=kept)
            if "watch=true" not in asked.path:
                data = await answer.read()
                await asyncio.to_thread(self.after, replace(asked, answer=answer.status))
                return web.Response(status=answer.status, headers=kept, body=data)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            return response
