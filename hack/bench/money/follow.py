"""Watches a collection from a thread of its own, over the tests' client of the API server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress

import urllib3
from tests.api.client import Api, Object, Refused

# A watch ends after this long and goes on from where it was: a thread that is to stop need not be interrupted.
WATCH_SECONDS = 20

Tell = Callable[[str, Object], None]


def follow(api: Api, path: str, tell: Tell, stop: threading.Event) -> threading.Thread:
    """Tell of all objects there are, then of every version of each, until it is stopped."""
    thread = threading.Thread(target=_follow, args=(api, path, tell, stop), daemon=True)
    thread.start()
    return thread


def _follow(api: Api, path: str, tell: Tell, stop: threading.Event) -> None:
    version = ""
    while not stop.is_set():
        try:
            version = version or _listed(api, path, tell)
            version = _watched(api, path, version, tell, stop)
        except (Refused, urllib3.exceptions.HTTPError, OSError, ValueError):
            # What was between is in the list: only versions in between are then not seen.
            version = ""
            stop.wait(0.5)


def _listed(api: Api, path: str, tell: Tell) -> str:
    found = api.request("GET", path)
    for item in found["items"]:
        tell("ADDED", item)
    return str(found["metadata"]["resourceVersion"])


def _watched(api: Api, path: str, version: str, tell: Tell, stop: threading.Event) -> str:
    query = f"watch=1&resourceVersion={version}&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}"
    url = f"{api.url}{path}{'&' if '?' in path else '?'}{query}"
    answer = api.pool.request("GET", url, preload_content=False, retries=False, timeout=WATCH_SECONDS + 15)
    try:
        if answer.status != 200:
            raise Refused(answer.status, answer.data.decode())
        rest = b""
        for chunk in answer.stream(2**16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise Refused(event["object"].get("code", 500), event["object"].get("message", ""))
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK" and not stop.is_set():
                    tell(event["type"], event["object"])
    finally:
        with suppress(OSError):
            answer.close()
    return version
