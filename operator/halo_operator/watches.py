"""Turns watch events into keys on the work queue; the only file that imports Kopf, and all that Kopf is used for.

Every handler is a coroutine: Kopf runs plain functions in threads, and the queue belongs to the event loop's.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import kopf

from halo_api import GROUP, VERSION
from halo_operator.cluster import Object
from halo_operator.plan.names import OWNER_ANNOTATION, RUN_LABEL
from halo_operator.queue import Key


class Add(Protocol):
    """Notes that an object changed, or that it is new and looks so."""

    def __call__(self, key: Key, new: Object | None = None) -> None: ...


Woken = Callable[[Key], Iterable[Key]]
# Notes that the run of that uid was deleted from that namespace.
Gone = Callable[[str, str], None]

# What is reconciled, and waited for by runs too.
USED = {"datasets": "Dataset", "adapters": "Adapter"}
# What runs wait for, and nobody reconciles.
LOOKED_UP = {
    "basemodels": "BaseModel",
    "gpuclasses": "GpuClass",
    "environments": "Environment",
    "criteria": "Criterion",
}


class NoDiffBase(kopf.DiffBaseStorage):
    """Remembers nothing of an object: we never ask what changed, and Kopf copies it whole at every event to find out."""

    def build(self, **_: Any) -> Any:
        """Return an essence without anything in it."""
        return {}

    def fetch(self, **_: Any) -> None:
        """Return nothing remembered."""

    def store(self, **_: Any) -> None:
        """Remember nothing."""


class Grants:
    """Tells changes of Workspaces that matter from the writes of their own status, which would wake every run that waits."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, int, bool]] = {}

    def changed(self, type_: str | None, body: Any) -> bool:
        """Whether a Workspace is new, gone, about to go, or of another spec."""
        meta = body["metadata"]
        namespace, now = meta["namespace"], (meta["uid"], meta.get("generation", 1), "deletionTimestamp" in meta)
        if type_ == "DELETED":
            self._seen.pop(namespace, None)
            return True
        before, self._seen[namespace] = self._seen.get(namespace), now
        return before != now


def registry_of(add: Add, woken: Woken, gone: Gone) -> kopf.OperatorRegistry:
    """Return the handlers: each takes microseconds, since Kopf drops the errors of event handlers and never retries."""
    registry = kopf.OperatorRegistry()
    grants = Grants()

    @kopf.on.login(registry=registry)
    async def login(**kwargs: Any) -> Any:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(GROUP, VERSION, "trainingjobs", registry=registry)
    async def run_changed(namespace: str | None, name: str, type: str | None, body: Any, **_: Any) -> None:
        add(Key("TrainingJob", namespace or "", name), dict(body) if type == "ADDED" else None)
        if type == "DELETED":
            gone(namespace or "", body["metadata"]["uid"])

    @kopf.on.event(GROUP, VERSION, "grporuns", registry=registry)
    async def grpo_changed(namespace: str | None, name: str, type: str | None, body: Any, **_: Any) -> None:
        add(Key("GrpoRun", namespace or "", name))
        if type == "DELETED":
            gone(namespace or "", body["metadata"]["uid"])

    @kopf.on.event(GROUP, VERSION, "workspaces", registry=registry)
    async def workspace_changed(namespace: str | None, name: str, type: str | None, body: Any, **_: Any) -> None:
        if grants.changed(type, body):
            key = Key("Workspace", namespace or "", name)
            for other in (key, *woken(key)):
                add(other)

    for plural, kind in USED.items():

        async def used_changed(namespace: str | None, name: str, kind: str = kind, **_: Any) -> None:
            key = Key(kind, namespace or "", name)
            for other in (key, *woken(key)):
                add(other)

        kopf.on.event(GROUP, VERSION, plural, registry=registry, id=plural)(used_changed)

    for plural, kind in LOOKED_UP.items():

        async def catalog_changed(namespace: str | None, name: str, kind: str = kind, **_: Any) -> None:
            for other in woken(Key(kind, namespace or "", name)):
                add(other)

        kopf.on.event(GROUP, VERSION, plural, registry=registry, id=plural)(catalog_changed)

    @kopf.on.event("", "v1", "pods", labels={RUN_LABEL: kopf.PRESENT}, registry=registry)
    async def pod_changed(namespace: str | None, annotations: Any, **_: Any) -> None:
        kind, _slash, name = annotations.get(OWNER_ANNOTATION, "").partition("/")
        if name:
            add(Key(kind, namespace or "", name))

    return registry


def settings_of() -> kopf.OperatorSettings:
    """Return Kopf's settings: no events of its own, no scanning, and watches that notice when they went silent."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.scanning.disabled = True
    settings.persistence.diffbase_storage = NoDiffBase()
    # Not "v1/pods": that form parses as a resource of that name, matches nothing, and every pod of the cluster is watched.
    settings.watching.label_selectors["", "v1", "pods"] = RUN_LABEL
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    return settings


async def watch(
    add: Add, woken: Woken, gone: Gone, namespaces: tuple[str, ...], ready: asyncio.Event, stop: asyncio.Event
) -> None:
    """Watch until `stop` is set; returning earlier means that the API server stayed away for too long."""
    before = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry_of(add, woken, gone),
        settings=settings_of(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        ready_flag=ready,
        stop_flag=stop,
    )
    # Kopf has taken the signals for itself, and an end by its hand looks like a failure.
    listen(stop)
    await kopf.run_tasks(tasks, ignored=before)


def listen(stop: asyncio.Event) -> None:
    """Set `stop` when the process is asked to end."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
