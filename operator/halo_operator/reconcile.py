"""Reconciles one object: gather what the world looks like, plan, apply, one status write."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from halo_api.catalog import BaseModelSpec
from halo_api.dataset import DatasetSpec, DatasetStatus
from halo_api.training_job import TrainingJobSpec, TrainingJobStatus
from halo_api.workspace import WORKSPACE
from halo_operator import __version__, metrics
from halo_operator.adapters import Adapters, Demand
from halo_operator.apply import Applier, ChildRejected
from halo_operator.cluster import Cluster, ClusterError, Conflict, Object
from halo_operator.desk import Desk
from halo_operator.events import Recorder
from halo_operator.gather import Gatherer, Unreadable, adapter_entry, meta_of, read, workspace_entry
from halo_operator.grpo import GrpoRuns
from halo_operator.last_signs import views_of
from halo_operator.plan import names
from halo_operator.plan.checks.parent import verification_needed
from halo_operator.plan.claim import raise_of
from halo_operator.plan.dataset import plan_dataset, rejected
from halo_operator.plan.money_moves import leave_unread
from halo_operator.plan.moves import RECHECK_SECONDS, clear
from halo_operator.plan.pod_view import all_of
from halo_operator.plan.receipt import with_receipt
from halo_operator.plan.rollouts import servers_of
from halo_operator.plan.run import is_terminal, not_made, plan_run, turned_away
from halo_operator.plan.stopping import deadlines_of
from halo_operator.plan.world import (
    AdapterEntry,
    Catalog,
    DatasetWorld,
    Environment,
    Note,
    Plan,
    RunWorld,
    WorkspaceEntry,
)
from halo_operator.queue import Key
from halo_operator.reports import Reports
from halo_operator.settings import Settings
from halo_operator.signing import ReceiptKeys, sign
from halo_operator.step_metrics import StepMetrics
from halo_operator.workspaces import Workspaces

log = logging.getLogger(__name__)

# A conflict means that somebody wrote first: look again at once, it is no failure.
AGAIN = 0.05


class Reconciler:
    """Holds what reconciling needs beside the key: the cluster, the reports, who waits for whom."""

    def __init__(
        self,
        cluster: Cluster,
        gatherer: Gatherer,
        settings: Settings,
        reports: Reports,
        recorder: Recorder,
        desk: Desk,
        demand: Demand,
        workspaces: Workspaces,
        ca_bundle: Callable[[], str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._applier = Applier(cluster, recorder, desk)
        self._settings = settings
        self._reports = reports
        self._recorder = recorder
        self._desk = desk
        self._demand = demand
        self._workspaces = workspaces
        self._ca_bundle = ca_bundle
        self._now = now
        self._waiting: defaultdict[Key, set[Key]] = defaultdict(set)
        self._gatherer = gatherer
        self._new: dict[Key, Object] = {}
        self._steps = StepMetrics()
        self._keys = ReceiptKeys(cluster, settings.namespace, settings.receipt_key_secret)
        self._grpo = GrpoRuns(
            cluster, gatherer, self._applier, lambda run, other: self._waiting[other].add(run), desk, now
        )
        self._adapters = Adapters(cluster, self._applier, self._keys, demand, self.environment, now)

    async def prepare(self) -> None:
        """Have the key that signs receipts made, and its public half shown, before the first run ends."""
        try:
            await self._keys.signer()
        except ClusterError as error:
            log.warning("receipts can't be signed yet: %s", error)

    def seen(self, key: Key, new: Object | None) -> None:
        """Keep how a run looked when it was made, until its first reconcile or its next change.

        That one needs no other look: whatever it does comes after a status write that fails if anything changed since.
        """
        if new is None:
            self._new.pop(key, None)
        else:
            self._new[key] = new

    def waiting_for(self, key: Key) -> set[Key]:
        """Return, and forget, the objects that wait for this one: their next reconcile says so again if they still do."""
        return self._waiting.pop(key, set()) | self._waiting.pop(key._replace(name="*"), set())

    def _waits_no_more(self, key: Key, spec: TrainingJobSpec) -> None:
        """Forget what an accepted run waited for: a change of the catalog wakes only those that it concerns."""
        for one in self._gatherer.looked_up(key.namespace, key.name, spec):
            self._waiting[one].discard(key)
            if not self._waiting[one]:
                del self._waiting[one]

    async def __call__(self, key: Key) -> float | None:
        """Reconcile one object; return when to look again."""
        try:
            if key.kind == "TrainingJob":
                return await self._run(key)
            if key.kind == "GrpoRun":
                return await self._grpo(key)
            if key.kind == "Dataset":
                return await self._dataset(key)
            if key.kind == "Adapter":
                return await self._adapters(key)
            if key.kind == "Workspace":
                return await self._workspaces(key)
        except Conflict as error:
            log.info("%s: written by somebody else meanwhile: %s", key, error)
            return AGAIN
        return None

    async def _run(self, key: Key) -> float | None:
        new = self._new.pop(key, None)
        body, pods = (new, []) if new and is_untouched(new) else await self._object_and_pods(key)
        if body is None:
            return await self._clear_orphans(key, pods)
        meta = meta_of(body)
        try:
            spec = TrainingJobSpec.model_validate(body["spec"])
        except ValidationError as error:
            return await (self._leave_unread(body, pods) if meta.deleting else self._unreadable(body, error))
        status = TrainingJobStatus.model_validate(body.get("status", {}))
        views = await views_of(self._cluster, self._reports, pods, status, self._now())
        over = meta.deleting or is_terminal(status)
        fresh = status.frozen is None and not over
        asked = self._desk.seconds(key.namespace, meta.uid)
        report = self._reports.latest(meta.uid)
        world = RunWorld(meta, spec, status, views, self.environment(), Catalog(), report, asked)
        if not fresh and not over and any(p.ended for p in views):
            world = replace(world, catalog=Catalog(adapter=await self._adapter(key)))
        try:
            if fresh:
                world = replace(world, catalog=await self._catalog(key, spec))
            elif (over and (names.HOLD_FINALIZER in meta.finalizers or status.hold)) or raise_of(world):
                if not over:
                    # A raise that is not free is taken up when more is granted.
                    self._waiting[Key("Workspace", key.namespace, WORKSPACE)].add(key)
                world = replace(world, catalog=replace(world.catalog, workspace=await self._workspace(key.namespace)))
            plan = plan_run(world, self._now())
        except Unreadable as error:
            # Only a run that is not accepted yet has anything to say of it; the others go on when it is mended.
            plan = turned_away(world, error.refusal, self._now()) if fresh else Plan(requeue_after=RECHECK_SECONDS)
        if plan.statement is not None:
            plan = with_receipt(plan, sign(plan.statement, await self._keys.signer()))
        try:
            written = await self._applier(body, plan, pods)
        except ChildRejected as error:
            return await self._say_rejected(key, world, error, pods)
        stored = plan.status if written and plan.status else status
        if fresh and stored.frozen:
            self._waits_no_more(key, spec)
        elif fresh and not is_terminal(stored) and spec.parent and (since := verification_needed(world)):
            self._demand.want(key.namespace, spec.parent.adapter, since)
        if not over:
            self._steps.told(spec.method, report, status)
        if is_terminal(stored) and not is_terminal(status):
            metrics.ended(key.kind, spec, stored)
        if meta.deleting or is_terminal(stored):
            self._steps.over(meta.uid)
        if meta.deleting:
            self._reports.close(meta.uid)
        else:
            self._reports.written(meta.uid, stored)
            self._reports.limit(meta.uid, deadlines_of(spec, stored, views, self._now()))
            self._reports.serve(meta.uid, servers_of(meta, stored))
        if is_terminal(stored) and not views:
            self._reports.forget(meta.uid)
        return plan.requeue_after

    async def _workspace(self, namespace: str) -> WorkspaceEntry:
        body = await self._gatherer.get(Key("Workspace", namespace, WORKSPACE))
        return workspace_entry(body) if body else WorkspaceEntry()

    async def _dataset(self, key: Key) -> float | None:
        body, pods = await self._object_and_pods(key)
        if body is None:
            return await self._clear_orphans(key, pods)
        spec = DatasetSpec.model_validate(body["spec"])
        status = DatasetStatus.model_validate(body.get("status", {}))
        # A base that appears, or gets another revision, must be asked to count; said before looking, as for a run.
        for name in spec.base_models:
            self._waiting[Key("BaseModel", "", name)].add(key)
        found = await self._cluster.list_all("BaseModel")
        bases = readable(found)
        world = DatasetWorld(
            meta_of(body), spec, status, all_of(pods, self._now()), self.environment(), bases, tuple(bases)
        )
        plan = plan_dataset(world, self._now())
        try:
            await self._applier(body, plan, pods)
        except ChildRejected as error:
            return await self._say_rejected(key, world, error, pods)
        return plan.requeue_after

    async def _say_rejected(
        self, key: Key, world: RunWorld | DatasetWorld, error: ChildRejected, pods: list[Object]
    ) -> float | None:
        # The status was written before the child was tried, so it is read again.
        body = await self._cluster.get(key.kind, key.namespace, key.name)
        if body is None or body["metadata"]["uid"] != world.meta.uid:
            return None
        plan: Plan[Any]
        if isinstance(world, RunWorld):
            status = TrainingJobStatus.model_validate(body.get("status", {}))
            plan = not_made(replace(world, meta=meta_of(body), status=status), str(error), self._now())
        else:
            found = DatasetStatus.model_validate(body.get("status", {}))
            plan = rejected(replace(world, meta=meta_of(body), status=found), str(error), self._now())
        await self._applier(body, plan, pods)
        return plan.requeue_after

    async def _object_and_pods(self, key: Key) -> tuple[Object | None, list[Object]]:
        labels = f"{names.KEY_LABEL}={names.key_label(key.kind, key.namespace, key.name)}"
        body, pods = await asyncio.gather(
            self._cluster.get(key.kind, key.namespace, key.name),
            self._cluster.list_all("Pod", key.namespace, labels=labels),
        )
        return body, pods

    async def _catalog(self, key: Key, spec: TrainingJobSpec) -> Catalog:
        # Said before looking: a change between the look and the wish to hear of it would be lost.
        for one in self._gatherer.looked_up(key.namespace, key.name, spec):
            self._waiting[one].add(key)
        return await self._gatherer.catalog_of(key.namespace, key.name, spec)

    async def _adapter(self, key: Key) -> AdapterEntry | None:
        body = await self._cluster.get("Adapter", key.namespace, key.name)
        return adapter_entry(body) if body else None

    def environment(self) -> Environment:
        """Return what this installation decides."""
        return Environment(
            trainer_image=self._settings.trainer_image,
            image_pull_policy=self._settings.trainer_image_pull_policy,
            artifacts_claim=self._settings.artifacts_claim,
            report_url=self._settings.report_url,
            ca_bundle=self._ca_bundle(),
            operator_version=__version__,
            start_timeout_seconds=self._settings.start_timeout_seconds,
            rollout_image=self._settings.rollout_image,
            rollout_image_pull_policy=self._settings.rollout_image_pull_policy,
        )

    async def _clear_orphans(self, key: Key, pods: list[Object]) -> float | None:
        """Stop the pods of an object that is gone (an orphaning delete leaves them) and let go of those that ended."""
        plan = clear(all_of(pods, self._now()))
        await self._applier.pods(plan, pods)
        for pod in pods:
            self._reports.close(pod["metadata"]["labels"].get(names.RUN_LABEL, ""))
        return plan.requeue_after

    async def _leave_unread(self, body: Object, pods: list[Object]) -> float | None:
        """Let go of a run that goes, and of its pods and its hold, whatever its spec says: nobody can mend that any more."""
        meta, status = meta_of(body), TrainingJobStatus.model_validate(body.get("status", {}))
        asked = self._desk.seconds(meta.namespace, meta.uid) > 0
        views = await views_of(self._cluster, self._reports, pods, status, self._now())
        try:
            held = (await self._workspace(meta.namespace)).status.holds.get(meta.uid)
            plan = leave_unread(meta, status, views, held, self._now(), asked=asked)
        except Unreadable:
            # Its pods stop all the same; what they tell stays until it is mended.
            plan = replace(clear(views), release=(), requeue_after=RECHECK_SECONDS)
        await self._applier(body, plan, pods)
        self._reports.close(meta.uid)
        return plan.requeue_after

    async def _unreadable(self, body: Object, error: ValidationError) -> float | None:
        # The API server's schema is stricter than ours unless the CRDs are older or newer than the operator.
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        words = f"spec.{where}: {first['msg']}; the CRDs and the operator are of different versions, upgrade the chart"
        self._recorder.record(body, Note("Warning", "InvalidSpec", words))
        return None


def readable(bases: list[Object]) -> dict[str, BaseModelSpec]:
    """Return the base models that can be read, by name: one that can't must not hold up the data sets of the others."""
    found = {}
    for body in bases:
        try:
            found[body["metadata"]["name"]] = read(BaseModelSpec, body)
        except Unreadable as error:
            log.warning("%s", error)
    return found


def is_untouched(body: Object) -> bool:
    """Whether nobody did anything for a run yet, so that it has no pods: its attempt is in its status before they are made."""
    return "deletionTimestamp" not in body["metadata"] and "conditions" not in body.get("status", {})
