"""The fence: from outside its pod vLLM's server can be sampled and measured, and nothing else of it can be reached.

Its development endpoints, which the guard needs, would let whoever reaches the port load any folder or change the weights.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any

OPEN = frozenset(
    {"/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics", "/version", "/tokenize", "/detokenize"}
)  # fmt: skip

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Fence:
    """An ASGI middleware: 403 for what is not open, unless it comes from this pod itself."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through or refuse it; what is no request, as the start of the server, passes."""
        if scope["type"] == "lifespan" or scope["path"] in OPEN or is_local(scope.get("client")):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        body = b'{"error": "this path answers only inside the pod"}'
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def is_local(client: tuple[str, int] | None) -> bool:
    """Whether an ASGI scope's client is this pod: its loopback."""
    if client is None:
        return False
    try:
        found = ip_address(client[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback
