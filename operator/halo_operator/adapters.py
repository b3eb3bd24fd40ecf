"""Reconciles an Adapter: looks at its pods, and at keys and parent when there is something to judge.

Who wants a newer verification says so at `Demand`. Nothing of that is stored: a run that waits says it again at each look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from pydantic import ValidationError

from halo_api.adapter import Adapter, AdapterSpec, AdapterStatus
from halo_api.conditions import ConditionType, condition_of
from halo_api.receipt import RECEIPT_ANNOTATION
from halo_operator import metrics
from halo_operator.apply import Applier, ChildRejected
from halo_operator.cluster import Cluster, Object
from halo_operator.gather import Unreadable, meta_of, read
from halo_operator.plan.names import KEY_LABEL, key_label
from halo_operator.plan.pod_view import alive, all_of
from halo_operator.plan.verify import AdapterPlan, AdapterWorld, began, plan_adapter, rejected, to_judge
from halo_operator.plan.world import Environment, Plan
from halo_operator.queue import Key
from halo_operator.signing import ReceiptKeys

log = logging.getLogger(__name__)

KIND = "Adapter"


class Demand:
    """Since when a verification of each adapter must have begun for those that are about to use it."""

    def __init__(self, wake: Callable[[Key], None]) -> None:
        """`wake` has an Adapter reconciled."""
        self._wake = wake
        self._since: dict[Key, datetime] = {}

    def want(self, namespace: str, name: str, since: datetime) -> None:
        """Ask for a verification that began no earlier than that; what is asked again wakes nobody."""
        key = Key(KIND, namespace, name)
        if key not in self._since or self._since[key] < since:
            self._since[key] = since
            self._wake(key)

    def since(self, key: Key) -> datetime | None:
        """Return what is asked for."""
        return self._since.get(key)

    def met(self, key: Key, began_at: datetime | None) -> None:
        """Forget what such a verification is enough for; None: the Adapter is gone."""
        since = self._since.get(key)
        if since is not None and (began_at is None or since <= began_at):
            del self._since[key]


class Adapters:
    """Holds what an Adapter's reconcile needs beside the key."""

    def __init__(
        self,
        cluster: Cluster,
        apply: Applier,
        keys: ReceiptKeys,
        demand: Demand,
        environment: Callable[[], Environment],
        now: Callable[[], datetime],
    ) -> None:
        self._cluster = cluster
        self._apply = apply
        self._keys = keys
        self._demand = demand
        self._environment = environment
        self._now = now

    async def __call__(self, key: Key) -> float | None:
        """Reconcile one Adapter; return when to look again."""
        labels = f"{KEY_LABEL}={key_label(key.kind, key.namespace, key.name)}"
        body, pods = await asyncio.gather(
            self._cluster.get(KIND, key.namespace, key.name),
            self._cluster.list_all("Pod", key.namespace, labels=labels),
        )
        views = all_of(pods, self._now())
        if body is None:
            # The garbage collector takes them too, unless somebody asked it to leave them.
            self._demand.met(key, None)
            await self._apply.pods(Plan(delete=alive(views)), pods)
            return None
        try:
            spec, status = read(AdapterSpec, body), read(AdapterStatus, body, "status")
        except Unreadable as error:
            log.warning("%s", error)
            return None
        world = AdapterWorld(meta_of(body), spec, status, views, self._environment(), wanted=self._demand.since(key))
        if to_judge(world):
            world = await self._with_proof(world, body)
        plan = plan_adapter(world, self._now())
        try:
            await self._apply(body, plan, pods)
        except ChildRejected as error:
            return await self._say_rejected(world, error, pods)
        self._count(world, plan)
        self._demand.met(key, began(plan.status or status))
        return plan.requeue_after

    async def _with_proof(self, world: AdapterWorld, body: Object) -> AdapterWorld:
        """Add what a judgement needs: the public keys as they are now, and the parent's own lineage."""
        parent = world.spec.parent
        keys, found = await asyncio.gather(
            self._keys.verifiers(),
            self._cluster.get(KIND, world.meta.namespace, parent.name) if parent else _nothing(),
        )
        receipt = (body["metadata"].get("annotations") or {}).get(RECEIPT_ANNOTATION)
        return replace(world, receipt=receipt, keys=keys, parent=adapter_of(found) if found else None)

    async def _say_rejected(self, world: AdapterWorld, error: ChildRejected, pods: list[Object]) -> float | None:
        # The status was written before the pod was tried, so it is read again.
        body = await self._cluster.get(KIND, world.meta.namespace, world.meta.name)
        if body is None or body["metadata"]["uid"] != world.meta.uid:
            return None
        status = read(AdapterStatus, body, "status")
        plan = rejected(replace(world, meta=meta_of(body), status=status), str(error), self._now())
        await self._apply(body, plan, pods)
        return plan.requeue_after

    def _count(self, world: AdapterWorld, plan: AdapterPlan) -> None:
        if plan.status is None or plan.status.verification == world.status.verification:
            return
        if said := condition_of(plan.status.conditions, ConditionType.VERIFIED):
            metrics.VERIFICATIONS.labels(said.reason).inc()


def adapter_of(body: Object) -> Adapter | None:
    """Return an Adapter, or None for one that can't be read: its children's lineage then ends there."""
    try:
        return Adapter.model_validate(body)
    except ValidationError as error:
        log.warning("Adapter %s: %s", body["metadata"]["name"], error.errors()[0]["msg"])
        return None


async def _nothing() -> Object | None:
    return None
