"""HTTP to many servers with many requests at once: each connection is a pool of its own.

A pool of httpx looks through all of its connections whenever a request begins or ends. With a few hundred requests at each of
several servers that is most of a core, which sampling shares with the training.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx

# A kept connection is given up before uvicorn closes it, which it does after 5 s: a request must not meet that.
KEPT_SECONDS = 2.0


def http_client() -> httpx.AsyncClient:
    """Return a client for any number of requests at once. Timeouts are each request's own, and no proxy comes between."""
    return httpx.AsyncClient(transport=Lines(), timeout=None, trust_env=False)  # noqa: S113


class Lines(httpx.AsyncBaseTransport):
    """A transport for plain HTTP, as many connections as there are requests; those that are idle are kept for a moment."""

    def __init__(self) -> None:
        self._idle: dict[bytes, list[httpx.AsyncHTTPTransport]] = {}
        # Never used, and slow to make.
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request over a connection that is its own until the answer has been read."""
        idle = self._idle.setdefault(request.url.netloc, [])
        line = idle.pop() if idle else self._line()
        try:
            response = await line.handle_async_request(request)
        except BaseException:
            await line.aclose()
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)

        async def back() -> None:
            idle.append(line)

        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_Answer(response.stream, back, line.aclose),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close what is idle; what is not closes with its answer."""
        for idle in self._idle.values():
            while idle:
                await idle.pop().aclose()

    def _line(self) -> httpx.AsyncHTTPTransport:
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEPT_SECONDS)
        return httpx.AsyncHTTPTransport(verify=self._tls, limits=limits, trust_env=False)


class _Answer(httpx.AsyncByteStream):
    """What comes back over a connection; read to its end it gives the connection back, else it closes it."""

    def __init__(
        self, stream: httpx.AsyncByteStream, back: Callable[[], Awaitable[None]], close: Callable[[], Awaitable[None]]
    ) -> None:
        self._stream, self._back, self._close, self._whole = stream, back, close, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part
        self._whole = True

    async def aclose(self) -> None:
        """Let go of the connection, once."""
        end, self._back, self._close = (self._back if self._whole else self._close), _nothing, _nothing
        with contextlib.suppress(httpx.HTTPError):
            await self._stream.aclose()
        await end()


async def _nothing() -> None:
    return
