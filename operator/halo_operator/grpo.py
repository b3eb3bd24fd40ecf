"""Reconciles a GrpoRun, and looks up what its admission needs: the same looks serve the webhook.

`GrpoLooks.world_of` gathers a GrpoWorld; `plan.grpo.plan.grpo_answer` says what there is to say of it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from weakref import WeakValueDictionary

from pydantic import ValidationError

from halo_api.adapter import AdapterSpec
from halo_api.base import DNS_NAME
from halo_api.catalog import BaseModelSpec
from halo_api.conditions import ConditionType, Reason, condition_of
from halo_api.dataset import DatasetStatus
from halo_api.gpu_class import GpuClassSpec
from halo_api.grpo_run import GrpoRunSpec
from halo_api.grpo_status import GrpoRunStatus
from halo_api.model_alias import ModelAliasSpec
from halo_api.workspace import WORKSPACE
from halo_operator import metrics
from halo_operator.apply import Applier
from halo_operator.cluster import Cluster, Object
from halo_operator.desk import Desk
from halo_operator.gather import Gatherer, Unreadable, adapter_entry, criterion_entry, meta_of, read, workspace_entry
from halo_operator.plan.grpo.plan import RECHECK_SECONDS, close, is_over, plan_grpo, refuse, wait
from halo_operator.plan.grpo.state import GrpoPlan
from halo_operator.plan.grpo.world import AliasEntry, GrpoCatalog, GrpoWorld, Prompts, ServingAdapter, Start
from halo_operator.plan.names import HOLD_FINALIZER
from halo_operator.plan.refusal import Refusal
from halo_operator.plan.world import BaseEntry, GpuEntry, Meta, Plan, WorkspaceEntry
from halo_operator.queue import Key

KIND = "GrpoRun"


class GrpoLooks:
    """Reads what a GrpoRun's admission looks at."""

    def __init__(self, cluster: Cluster, gatherer: Gatherer) -> None:
        self._cluster = cluster
        self._gatherer = gatherer

    async def world_of(
        self, meta: Meta, created_at: datetime, spec: GrpoRunSpec, status: GrpoRunStatus | None = None
    ) -> GrpoWorld:
        """Return all that admission looks at; of a run that is not stored yet, `created_at` is now."""
        known = status or GrpoRunStatus()
        catalog = await self._catalog(meta.namespace, meta.name, spec)
        # A run that was looked at before is not asked for its rate again.
        runs = [] if known.conditions else await self._cluster.list_all(KIND, meta.namespace)
        return GrpoWorld(meta, created_at, spec, known, tuple(start_of(run) for run in runs), catalog)

    async def _catalog(self, namespace: str, name: str, spec: GrpoRunSpec) -> GrpoCatalog:
        ask, names = self._gatherer.get, dict.fromkeys(spec.reward.criteria)
        alias = spec.auto_adopt.alias_name if spec.auto_adopt else None
        base, adapter, workspace, found_alias, *criteria = await asyncio.gather(
            ask(Key("BaseModel", "", spec.model)) if is_name(spec.model) else nothing(),
            ask(Key("Adapter", namespace, name)) if name else nothing(),
            ask(Key("Workspace", namespace, WORKSPACE)),
            ask(Key("ModelAlias", namespace, alias)) if alias and is_name(alias) else nothing(),
            *(ask(Key("Criterion", namespace, criterion)) for criterion in names),
        )
        gpus, datasets = await asyncio.gather(
            self._cluster.list_all("GpuClass"), self._cluster.list_all("Dataset", namespace)
        )
        judges = {body["metadata"]["name"]: criterion_entry(body) for body in criteria if body}
        traffic = [d for d in datasets if d["spec"]["kind"] in ("traffic", "candidates")]
        own_tasks = spec.tasks_inline is not None or spec.tasks_from is not None
        return GrpoCatalog(
            base=BaseEntry(spec.model, read(BaseModelSpec, base)) if base else None,
            base_names=() if base else await self._gatherer.names("BaseModel"),
            adapter=adapter_entry(adapter) if adapter else None,
            workspace=workspace_entry(workspace) if workspace else WorkspaceEntry(),
            criteria=judges,
            criterion_names=() if len(judges) == len(names) else await self._names("Criterion", namespace),
            gpus=tuple(GpuEntry(g["metadata"]["name"], read(GpuClassSpec, g)) for g in gpus),
            alias=AliasEntry(alias, read(ModelAliasSpec, found_alias)) if alias and found_alias else None,
            alias_names=() if found_alias or not alias else await self._names("ModelAlias", namespace),
            traffic=traffic_of(datasets, spec.prompt_tag),
            candidates=candidates_of(datasets, spec.reward.criterion_id),
            tasks=tasks_of(datasets, spec.tasks_from),
            served_by=() if own_tasks else await self._served_by(namespace, traffic),
        )

    async def workspace(self, namespace: str) -> WorkspaceEntry:
        """Return the namespace's Workspace alone."""
        body = await self._gatherer.get(Key("Workspace", namespace, WORKSPACE))
        return workspace_entry(body) if body else WorkspaceEntry()

    async def _served_by(self, namespace: str, traffic: Iterable[Object]) -> tuple[ServingAdapter, ...]:
        """Return the adapters of earlier GrpoRuns that answered some of the traffic."""
        counts = [counts for d in traffic if (counts := status_of(d).traffic)]
        names = sorted({served.adapter for count in counts for served in count.served_by if served.prompts})
        bodies = await asyncio.gather(*(self._gatherer.get(Key("Adapter", namespace, name)) for name in names))
        found: list[ServingAdapter] = []
        for body in bodies:
            made_by = read(AdapterSpec, body).trained_by if body else None
            if body and made_by and made_by.kind == KIND:
                found.append(ServingAdapter(body["metadata"]["name"], made_by.name, created_at(body)))
        return tuple(found)

    async def _names(self, kind: str, namespace: str) -> tuple[str, ...]:
        return tuple(item["metadata"]["name"] for item in await self._cluster.list_all(kind, namespace))


class GrpoRuns:
    """Reconciles GrpoRuns, of a namespace one at a time: two that are counted together could both be the last that may start."""

    def __init__(
        self,
        cluster: Cluster,
        gatherer: Gatherer,
        apply: Applier,
        waits: Callable[[Key, Key], None],
        desk: Desk,
        now: Callable[[], datetime],
    ) -> None:
        """`waits(run, other)` has the run reconciled again when the other changes."""
        self._cluster = cluster
        self._looks = GrpoLooks(cluster, gatherer)
        self._apply = apply
        self._waits = waits
        self._desk = desk
        self._now = now
        self._admitting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def __call__(self, key: Key) -> float | None:
        """Reconcile one run; return when to look again."""
        lock = self._admitting.get(key.namespace) or asyncio.Lock()
        self._admitting[key.namespace] = lock
        async with lock:
            return await self._reconcile(key)

    async def _reconcile(self, key: Key) -> float | None:
        body = await self._cluster.get(KIND, key.namespace, key.name)
        if body is None:
            return None
        status = GrpoRunStatus.model_validate(body.get("status", {}))
        plan = await self._plan(body, meta_of(body), status)
        if await self._apply(body, plan, []) and plan.status:
            failed = condition_of(plan.status.conditions, ConditionType.FAILED)
            if failed and is_over(plan.status) and not is_over(status):
                metrics.refused(KIND, failed.reason)
        return plan.requeue_after

    async def _plan(self, body: Object, meta: Meta, status: GrpoRunStatus) -> GrpoPlan:
        # Before the Workspace is read: what is placed after that was still asked for then.
        asked = self._desk.seconds(meta.namespace, meta.uid)
        if meta.deleting or is_over(status):
            try:
                holds = HOLD_FINALIZER in meta.finalizers or status.hold
                book = await self._looks.workspace(meta.namespace) if holds else None
            except Unreadable:
                return Plan(requeue_after=RECHECK_SECONDS)
            held = book.status.holds.get(meta.uid) if book else None
            return close(meta, status, held, self._now(), asked=asked > 0)
        try:
            spec = GrpoRunSpec.model_validate(body["spec"])
        except ValidationError as error:
            return refuse(meta, status, status, unreadable(error), self._now())
        # Said before looking: a change between the look and the wish to hear of it would be lost.
        self._waits(Key(KIND, meta.namespace, meta.name), Key("Dataset", meta.namespace, "*"))
        try:
            world = await self._looks.world_of(meta, created_at(body), spec, status)
        except Unreadable as found:
            return wait(meta, status, status, found.refusal, self._now())
        return plan_grpo(replace(world, asked_seconds=asked), self._now())


def is_name(text: str) -> bool:
    """Whether an object can have that name: of others, the API server does not say that they are not there."""
    return re.fullmatch(DNS_NAME, text) is not None


async def nothing() -> Object | None:
    """Look nothing up."""
    return None


def created_at(body: Object) -> datetime:
    """Return when the API server stored it, to the second."""
    return datetime.fromisoformat(body["metadata"]["creationTimestamp"]).astimezone(UTC)


def start_of(body: Object) -> Start:
    """Return what one run means for the rate of the others."""
    conditions = body.get("status", {}).get("conditions", ())
    accepted = next((c for c in conditions if c["type"] == ConditionType.ACCEPTED), None)
    return Start(
        uid=body["metadata"]["uid"],
        created_at=created_at(body),
        # Also one that has asked for its hold, and has no status yet.
        decided=accepted is not None or HOLD_FINALIZER in body["metadata"].get("finalizers", ()),
        limited=accepted is not None and accepted["reason"] == Reason.RATE_LIMITED,
    )


def status_of(dataset: Object) -> DatasetStatus:
    """Return what inspection found in a data set."""
    return read(DatasetStatus, dataset, "status")


def traffic_of(datasets: Iterable[Object], tag: str | None) -> Prompts:
    """Count the logged prompts with that tag, or all of them, in every data set of traffic."""
    found = [d for d in datasets if d["spec"]["kind"] == "traffic"]
    counts = [status.traffic for d in found if (status := status_of(d)).traffic]
    total = sum(
        c.successful if tag is None else sum(t.prompts for t in c.tags if t.tag == tag) for c in counts if c is not None
    )
    return counted(found, len(counts), total, "traffic")


def candidates_of(datasets: Iterable[Object], criterion: str | None) -> Prompts:
    """Count the queued candidates of that criterion."""
    found = [d for d in datasets if d["spec"]["kind"] == "candidates"]
    counts = [status.traffic for d in found if (status := status_of(d)).traffic]
    total = sum(n.prompts for c in counts if c is not None for n in c.candidates if n.criterion == criterion)
    return counted(found, len(counts), total, "candidates")


def tasks_of(datasets: Iterable[Object], name: str | None) -> Prompts:
    """Count the tasks of the data set of that name."""
    body = next((d for d in datasets if d["metadata"]["name"] == name), None)
    if name is None or body is None:
        return Prompts(None, f"there is no Dataset {name} in the namespace")
    if body["spec"]["kind"] != "tasks":
        return Prompts(0, f"it is of kind {body['spec']['kind']}")
    rows = status_of(body).rows
    return counted([body], 1 if rows is not None else 0, rows or 0, "tasks")


def counted(found: list[Object], done: int, total: int, kind: str) -> Prompts:
    """Return the count once every data set of the kind was counted."""
    if not found:
        return Prompts(None, f"there is no Dataset of kind {kind} in the namespace")
    if done < len(found):
        names = ", ".join(sorted(d["metadata"]["name"] for d in found)[:5])
        return Prompts(None, f"the Datasets of kind {kind} ({names}) are not counted yet")
    return Prompts(total)


def unreadable(error: ValidationError) -> Refusal:
    """Refuse a spec that the API server's schema let pass and our model does not: it could never be read."""
    first: Any = error.errors()[0]
    where = ".".join(["spec", *(str(part) for part in first["loc"])])
    words = first["msg"].removeprefix("Value error, ")
    found = "" if first["type"] == "missing" or words.startswith("found") else f"found {str(first['input'])[:80]!r}, "
    return Refusal(Reason.INVALID_SPEC, f"{where}: {found}{words}")
