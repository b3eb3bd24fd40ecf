"""Records events so that `kubectl describe` tells a run's story: one event per fact, never a storm."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from halo_operator.cluster import AlreadyExists, Cluster, ClusterError
from halo_operator.plan.world import Note

log = logging.getLogger(__name__)

COMPONENT = "halo-operator"
NOTE_LIMIT = 1000
REMEMBERED = 10_000
REPEAT_SECONDS = 600.0
# Starting what waits for GPUs goes before telling of it, but not for longer than this.
LATEST_SECONDS = 5.0
LOOK_SECONDS = 0.1
POSTERS = 4


class Recorder:
    """Posts events.k8s.io/v1 Events, each fact about an incarnation once: notes come with a status write, so a restart repeats none."""

    def __init__(self, cluster: Cluster, identity: str, busy: Callable[[], bool] = lambda: False) -> None:
        """`busy` says whether there is something more urgent to ask of the API server."""
        self._cluster = cluster
        self._identity = identity
        self._busy = busy
        self._said: OrderedDict[str, float] = OrderedDict()
        self._due: deque[tuple[float, dict[str, Any]]] = deque()

    def record(self, regarding: dict[str, Any], note: Note) -> None:
        """Note one event, to be posted soon; no state hangs on it."""
        meta = regarding["metadata"]
        fact = fact_of(meta["uid"], note)
        now = time.monotonic()
        if now - self._said.get(fact, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return
        self._said[fact] = now
        self._said.move_to_end(fact)
        while len(self._said) > REMEMBERED:
            self._said.popitem(last=False)
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": event_name(meta["name"], time.time_ns()),
                "namespace": meta.get("namespace", "default"),
            },
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "type": note.type,
            "reason": note.reason,
            "action": note.action,
            "note": note.message[:NOTE_LIMIT],
            "reportingController": f"halo.training/{COMPONENT}",
            "reportingInstance": self._identity[:128],
            "regarding": {
                "apiVersion": regarding["apiVersion"],
                "kind": regarding["kind"],
                "namespace": meta.get("namespace"),
                "name": meta["name"],
                "uid": meta["uid"],
            },
        }
        self._due.append((now, body))

    async def run(self) -> None:
        """Post what is noted, the oldest first, until cancelled."""
        while True:
            while self._due and (not self._busy() or time.monotonic() - self._due[0][0] > LATEST_SECONDS):
                await self._post_some()
            await asyncio.sleep(LOOK_SECONDS)

    async def flush(self) -> None:
        """Post what is left, as far as a few seconds reach."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATEST_SECONDS):
                while self._due:
                    await self._post_some()

    async def _post_some(self) -> None:
        some = [self._due.popleft()[1] for _ in range(min(POSTERS, len(self._due)))]
        await asyncio.gather(*(self._post(body) for body in some))

    async def _post(self, body: dict[str, Any]) -> None:
        try:
            await self._cluster.create(body)
        except AlreadyExists:
            return
        except ClusterError as error:
            log.info("event %s for %s not recorded: %s", body["reason"], body["regarding"]["name"], error)


def fact_of(uid: str, note: Note) -> str:
    """Return what stands for the thing said about one incarnation of an object."""
    text = "\0".join((uid, note.type, note.reason, note.message))
    return hashlib.sha256(text.encode()).hexdigest()


def event_name(name: str, nanoseconds: int) -> str:
    """Return the event's name: kubectl lists events by name, so that the time in it keeps a story in its order."""
    return f"{name[:200].rstrip('.-')}.{nanoseconds:x}"
