"""Records events so that `kubectl describe` tells a run's story: one event per fact, never a storm."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

from halo_operator.cluster import AlreadyExists, Cluster, ClusterError
from halo_operator.plan.world import Note

log = logging.getLogger(__name__)

COMPONENT = "halo-operator"
NOTE_LIMIT = 1000
REMEMBERED = 10_000
REPEAT_SECONDS = 600.0


class Recorder:
    """Posts events.k8s.io/v1 Events, each fact about an incarnation once: notes come with a status write, so a restart repeats none."""

    def __init__(self, cluster: Cluster, identity: str) -> None:
        self._cluster = cluster
        self._identity = identity
        self._said: OrderedDict[str, float] = OrderedDict()

    async def record(self, regarding: dict[str, Any], note: Note) -> None:
        """Post one event; a failure is logged and forgotten, since no state hangs on an event."""
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
        try:
            await self._cluster.create(body)
        except AlreadyExists:
            return
        except ClusterError as error:
            log.info("event %s for %s not recorded: %s", note.reason, meta["name"], error)


def fact_of(uid: str, note: Note) -> str:
    """Return what stands for the thing said about one incarnation of an object."""
    text = "\0".join((uid, note.type, note.reason, note.message))
    return hashlib.sha256(text.encode()).hexdigest()


def event_name(name: str, nanoseconds: int) -> str:
    """Return the event's name: kubectl lists events by name, so that the time in it keeps a story in its order."""
    return f"{name[:200].rstrip('.-')}.{nanoseconds:x}"
