"""Carries out the plan of one object, in the plan's order: a status before what it speaks of is done, money after it."""

from __future__ import annotations

import contextlib
from typing import Any

from halo_api.run_file import CA_ANNOTATION, DEADLINE_ANNOTATION
from halo_operator.cluster import AlreadyExists, Cluster, Conflict, NotFound, Object, Rejected
from halo_operator.desk import Desk
from halo_operator.events import Recorder
from halo_operator.finalizers import adding, change, removing
from halo_operator.plan import names
from halo_operator.plan.world import CaUpdate, Plan

# Pods that are out of time are not asked again.
EXPEL_SECONDS = 10


class ChildRejected(Rejected):
    """A quota, a policy or the schema does not let a child be made."""


class Applier:
    """The hands of every reconcile of a run or a data set."""

    def __init__(self, cluster: Cluster, recorder: Recorder, desk: Desk) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._desk = desk

    async def __call__(self, body: Object, plan: Plan[Any], pods: list[Object]) -> bool:
        """Carry out a plan for these pods in its order; return whether the status was written."""
        if plan.finalizer == "add":
            body = await change(self._cluster, body, adding(body, names.HOLD_FINALIZER))
        for child in plan.first:
            await self._create(child)
        if plan.status is not None:
            try:
                await self._cluster.write_status(body, plan.status.to_json())
            except NotFound as error:
                raise Conflict(404, str(error)) from None
        # Before the creates: a quota may refuse those until the pods that are let go of here are gone.
        await self.pods(plan, pods)
        for child in plan.create:
            await self._create(child)
        for note in plan.notes:
            self._recorder.record(body, note)
        if plan.ask is not None:
            self._desk.ask(body["metadata"]["namespace"], plan.ask)
        if plan.finalizer == "remove" and plan.status is None:
            with contextlib.suppress(NotFound):
                await change(self._cluster, body, removing(body, names.HOLD_FINALIZER))
        return plan.status is not None

    async def pods(self, plan: Plan[Any], pods: list[Object]) -> None:
        """Stop pods, let go of them, and tell them what changed, as the plan says."""
        for ref in plan.delete:
            await self._cluster.delete("Pod", ref.namespace, ref.name, ref.uid)
        for ref in plan.expel:
            await self._cluster.delete("Pod", ref.namespace, ref.name, ref.uid, EXPEL_SECONDS)
        by_uid = {pod["metadata"]["uid"]: pod for pod in pods}
        for ref in plan.release:
            await self._patch(by_uid[ref.uid], removing(by_uid[ref.uid], names.METERED_FINALIZER))
        for update in plan.update:
            if isinstance(update, CaUpdate):
                annotation, value = CA_ANNOTATION, update.bundle
            else:
                annotation, value = DEADLINE_ANNOTATION, update.deadline.canonical()
            path = "/metadata/annotations/" + annotation.replace("/", "~1")
            same = {"op": "test", "path": "/metadata/uid", "value": update.ref.uid}
            await self._patch(by_uid[update.ref.uid], [same, {"op": "replace", "path": path, "value": value}])

    async def _create(self, child: Object) -> None:
        """POST a child; a name that is taken is fine if it is taken by ours, and a conflict otherwise."""
        try:
            await self._cluster.create(child)
        except AlreadyExists:
            there = await self._cluster.get(child["kind"], child["metadata"]["namespace"], child["metadata"]["name"])
            if there is None or controller_of(there) != controller_of(child):
                words = f"{child['kind']} {child['metadata']['name']} exists and is not this run's"
                if there is None or child["kind"] == "Adapter":
                    # Looking again tells: it is gone, or admission and publishing know what to say of it.
                    raise Conflict(409, words) from None
                raise ChildRejected(409, f"{words}; delete it") from None
        except Rejected as error:
            if error.status == 403 and "being terminated" in str(error):
                return
            raise ChildRejected(error.status, str(error), error.reason) from None

    async def _patch(self, pod: Object, operations: list[Object]) -> None:
        with contextlib.suppress(NotFound):
            await change(self._cluster, pod, operations)


def controller_of(body: Object) -> str | None:
    """Return the uid of an object's controller; an Adapter, which has none, is known by the run that made it."""
    if body["kind"] == "Adapter":
        return (body["spec"].get("trainedBy") or {}).get("uid")
    return next((o["uid"] for o in body["metadata"].get("ownerReferences", ()) if o.get("controller")), None)
