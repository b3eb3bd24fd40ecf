"""Gathers what admission looks up for a run: the catalog entry of everything that its spec names.

The reconciler and the webhook ask the same questions here, so that they can only give the same answers.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from halo_api.adapter import AdapterSpec, AdapterStatus
from halo_api.base import ApiModel
from halo_api.catalog import BaseModelSpec
from halo_api.conditions import Reason
from halo_api.criterion import CriterionSpec, CriterionStatus
from halo_api.dataset import DatasetSpec, DatasetStatus
from halo_api.environment import EnvironmentSpec, EnvironmentStatus
from halo_api.gpu_class import GpuClassSpec
from halo_api.training_job import TrainingJobSpec
from halo_api.workspace import WORKSPACE, WorkspaceSpec, WorkspaceStatus
from halo_operator.cluster import Cluster, Object
from halo_operator.plan.pod_view import parse_time
from halo_operator.plan.references import references
from halo_operator.plan.refusal import Refusal
from halo_operator.plan.world import (
    AdapterEntry,
    BaseEntry,
    Catalog,
    CriterionEntry,
    DatasetEntry,
    EnvironmentEntry,
    GpuEntry,
    Meta,
    ParentEntry,
    Verdict,
    WorkspaceEntry,
)
from halo_operator.queue import Key
from halo_operator.recipes import RECIPES
from halo_operator.shared_reads import SharedReads

# What would do instead of an unknown recipe.
NAMED = tuple(name for name, entry in RECIPES.items() if not entry.spec.retired)


Model = TypeVar("Model", bound=ApiModel)


class Unreadable(Exception):
    """An object holds what our models refuse: it was stored before a rule, or by another version."""

    def __init__(self, body: Object, part: str, error: ValidationError) -> None:
        first: Any = error.errors()[0]
        where = ".".join([part, *(str(step) for step in first["loc"])])
        found = f"found {str(first['input'])[:80]!r}, " if first["type"] != "missing" else ""
        words = (
            f"{body['kind']} {body['metadata']['name']}: {where}: {found}{first['msg'].removeprefix('Value error, ')}"
        )
        super().__init__(words)
        self.refusal = Refusal(
            Reason.OBJECT_UNREADABLE, f"{words}; mend it, or upgrade the chart if it is newer", pending=True
        )


def read(model: type[Model], body: Object, part: str = "spec") -> Model:
    """Return an object's spec or status; raises Unreadable, which makes a run wait instead of failing its reconcile."""
    try:
        return model.model_validate(body.get(part, {}))
    except ValidationError as error:
        raise Unreadable(body, part, error) from None


class Gatherer:
    """Reads the cluster for admission; those who ask for the same object together share one read."""

    def __init__(self, cluster: Cluster, namespace: str, *, hasty: bool = False) -> None:
        """`namespace` is the operator's own, where the public environments lie.

        `hasty`: what is there is taken as the API server's cache has it, moments old, and only what is missing is asked for again.
        """
        self._cluster = cluster
        self._namespace = namespace
        self._hasty = hasty
        self._reads = SharedReads(self._read)

    def looked_up(self, namespace: str, name: str, spec: TrainingJobSpec) -> list[Key]:
        """Return everything that a run waits for until it is accepted: a change of one of them is worth another look."""
        to = references(spec)
        ours = {"Dataset": to.dataset, "Adapter": to.parent, "Environment": to.environment, "Criterion": to.criterion}
        return [
            Key("BaseModel", "", spec.base_model),
            Key("GpuClass", "", spec.gpu.type),
            Key("Adapter", namespace, name),
            Key("Workspace", namespace, WORKSPACE),
            *(Key(kind, namespace, known) for kind, known in ours.items() if known),
            *(Key("Environment", self._namespace, known) for known in (to.warmup, to.retention) if known),
        ]

    async def catalog_of(self, namespace: str, name: str, spec: TrainingJobSpec) -> Catalog:
        """Return what a run of that name and spec finds."""
        to = references(spec)
        public = self._namespace
        (
            base,
            gpu,
            adapter,
            workspace,
            dataset,
            parent,
            environment,
            warmup,
            retention,
            criterion,
        ) = await asyncio.gather(
            self.get(Key("BaseModel", "", spec.base_model)),
            self.get(Key("GpuClass", "", spec.gpu.type)),
            # A name that was taken this very moment is found taken when the adapter is published.
            self.get(Key("Adapter", namespace, name), fresh=False),
            self.get(Key("Workspace", namespace, WORKSPACE)),
            self._named("Dataset", namespace, to.dataset),
            self._named("Adapter", namespace, to.parent),
            self._named("Environment", namespace, to.environment),
            self._named("Environment", public, to.warmup),
            self._named("Environment", public, to.retention),
            self._named("Criterion", namespace, to.criterion),
        )
        recipe = RECIPES.get(to.recipe) if to.recipe else None
        if recipe and recipe.spec.environment.name == "harness" and dataset:
            # The data set names it, so that it can't be known before; it is looked at again with the run.
            environment = await self._named("Environment", namespace, dataset["spec"].get("environment"))
        return Catalog(
            base=BaseEntry(spec.base_model, read(BaseModelSpec, base)) if base else None,
            base_names=() if base else await self.names("BaseModel"),
            gpu=GpuEntry(spec.gpu.type, read(GpuClassSpec, gpu)) if gpu else None,
            gpu_names=() if gpu else await self.names("GpuClass"),
            dataset=dataset_entry(dataset) if dataset else None,
            adapter=adapter_entry(adapter) if adapter else None,
            workspace=workspace_entry(workspace) if workspace else WorkspaceEntry(),
            parent=parent_entry(parent) if parent else None,
            recipe=recipe,
            recipe_names=NAMED,
            environment=self._environment(environment),
            warmup=self._environment(warmup),
            retention=self._environment(retention),
            criterion=criterion_entry(criterion) if criterion else None,
        )

    async def get(self, key: Key, *, fresh: bool = True) -> Object | None:
        """Return an object as a read that begins now finds it; not `fresh`: as the API server's cache has it."""
        return await self._reads.get((key, fresh))

    async def names(self, kind: str) -> tuple[str, ...]:
        """Return the names of a cluster-wide kind, to say what would do."""
        return tuple(item["metadata"]["name"] for item in await self._cluster.list_all(kind))

    async def _named(self, kind: str, namespace: str, name: str | None) -> Object | None:
        return await self.get(Key(kind, namespace, name)) if name else None

    async def _read(self, asked: tuple[Key, bool]) -> Object | None:
        key, fresh = asked
        if self._hasty and fresh and (found := await self._get(key, fresh=False)):
            return found
        return await self._get(key, fresh=fresh)

    async def _get(self, key: Key, *, fresh: bool) -> Object | None:
        return await self._cluster.get(key.kind, key.namespace or None, key.name, fresh=fresh)

    def _environment(self, body: Object | None) -> EnvironmentEntry | None:
        return environment_entry(body, self._namespace) if body else None


def meta_of(body: Object) -> Meta:
    """Return the identity of an object."""
    meta = body["metadata"]
    return Meta(
        kind=body["kind"],
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        generation=meta.get("generation", 1),
        resource_version=meta["resourceVersion"],
        deleting="deletionTimestamp" in meta,
        finalizers=tuple(meta.get("finalizers", ())),
        created_at=parse_time(meta.get("creationTimestamp")),
    )


def dataset_entry(body: Object) -> DatasetEntry:
    """Return what a run looks at in its data set."""
    return DatasetEntry(
        body["metadata"]["name"],
        body["metadata"].get("generation", 1),
        read(DatasetSpec, body),
        read(DatasetStatus, body, "status"),
    )


def adapter_entry(body: Object) -> AdapterEntry:
    """Return whose an adapter is."""
    spec = read(AdapterSpec, body)
    return AdapterEntry(body["metadata"]["name"], spec.trained_by.uid if spec.trained_by else None, spec)


def parent_entry(body: Object) -> ParentEntry:
    """Return an adapter as one that a run may continue."""
    return ParentEntry(
        body["metadata"]["name"],
        read(AdapterSpec, body),
        verdict(body, "Verified"),
        read(AdapterStatus, body, "status"),
    )


def environment_entry(body: Object, operator_namespace: str) -> EnvironmentEntry:
    """Return what a run looks at in an environment revision."""
    return EnvironmentEntry(
        name=body["metadata"]["name"],
        spec=read(EnvironmentSpec, body),
        status=read(EnvironmentStatus, body, "status"),
        qualified=verdict(body, "Qualified"),
        public=body["metadata"]["namespace"] == operator_namespace,
    )


def criterion_entry(body: Object) -> CriterionEntry:
    """Return what a run looks at in a judge's criterion."""
    return CriterionEntry(
        name=body["metadata"]["name"],
        spec=read(CriterionSpec, body),
        status=read(CriterionStatus, body, "status"),
        calibrated=verdict(body, "Calibrated"),
        drifted=verdict(body, "Drifted"),
    )


def workspace_entry(body: Object) -> WorkspaceEntry:
    """Return what a namespace may spend and do."""
    deleting = "deletionTimestamp" in body["metadata"]
    return WorkspaceEntry(True, read(WorkspaceSpec, body), read(WorkspaceStatus, body, "status"), deleting)


def verdict(body: Object, type_: str) -> Verdict:
    """Return what a condition says of the object as it is now."""
    generation = body["metadata"].get("generation", 1)
    for condition in body.get("status", {}).get("conditions", ()):
        if condition["type"] == type_ and condition.get("observedGeneration", generation) == generation:
            return Verdict(cast(Any, condition["status"]), condition.get("reason", ""), condition.get("message", ""))
    return Verdict()
