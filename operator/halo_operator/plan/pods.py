"""Builds the pods of a run and of an inspection: what each role has to do, on which GPUs, with which volumes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, cast

from halo_api.catalog import BaseModelSpec
from halo_api.report import Deadline
from halo_api.run_file import (
    BaseRef,
    ContextParallel,
    DataRef,
    Layout,
    PublishPlan,
    Reporting,
    ResumeFrom,
    RunFile,
    RunIdentity,
    TrainPlan,
    adapters_uri,
    attempt_name,
    claim_of,
    run_uri,
)
from halo_api.run_status import Frozen, FrozenDataset, Topology
from halo_api.training_job import TrainingJobSpec
from halo_operator.plan import names
from halo_operator.plan.pod_parts import gpu_placement, gpu_resources, parent_plan
from halo_operator.plan.pod_template import FILES_RESOURCES, owner, pod
from halo_operator.plan.resolve import ROWS
from halo_operator.plan.rollout_pods import addresses, ports, rlvr_plan
from halo_operator.plan.split import WHOLE_ROW
from halo_operator.plan.tracking import wandb_key, wandb_plan
from halo_operator.plan.world import DatasetWorld, Environment, Meta, Object

GRACE_SECONDS = 60.0
RENDEZVOUS_PORT = 29500
INSPECT_RESOURCES = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}


@dataclass(frozen=True)
class Start:
    """What is an attempt's own: where it goes on from, how long it may train, and then publish."""

    attempt: int
    resume: ResumeFrom | None = None
    deadline: Deadline = field(default_factory=lambda: Deadline(sequence=0))
    publish_seconds: float = 30.0
    # Of each rollout server: which of its pods is the current one.
    incarnations: tuple[int, ...] = ()


def trainer_pods(
    meta: Meta, spec: TrainingJobSpec, frozen: Frozen, layout: Topology, start: Start, env: Environment
) -> tuple[Object, ...]:
    """Return the pods of one attempt, one a node."""
    attempt = start.attempt
    if frozen.dataset is None:
        raise ValueError("only runs on a data set have trainer pods")
    sources = (frozen.base.source, frozen.dataset.source, *([frozen.parent.uri] if frozen.parent else []))
    read = tuple(claim_of(source) for source in sources)
    return tuple(
        pod(
            meta,
            name=names.trainer_pod(meta.name, meta.uid, rank, attempt),
            role="trainer",
            attempt=attempt,
            rank=rank,
            run_file=train_file(meta, spec, frozen, layout, start, rank, env),
            env=env,
            image=frozen.image,
            pull_policy=frozen.image_pull_policy,
            read=read,
            write=(frozen.artifacts_claim,),
            resources=gpu_resources(frozen, layout.gpus_per_node),
            placement=gpu_placement(frozen),
            metered=True,
            extra=host(meta, layout, rank, attempt),
            variables=wandb_key(frozen, rank),
        )
        for rank in range(layout.nodes)
    )


def train_file(
    meta: Meta,
    spec: TrainingJobSpec,
    frozen: Frozen,
    layout: Topology,
    start: Start,
    rank: int,
    env: Environment,
) -> RunFile:
    """Return the run file of one trainer pod."""
    attempt = start.attempt
    if frozen.dataset is None:
        raise ValueError("only runs on a data set have a trainer")
    service = names.rendezvous_service(meta.name, meta.uid)
    first = f"{names.host_name(0, attempt)}.{service}.{meta.namespace}.svc:{RENDEZVOUS_PORT}"
    online = frozen.rlvr is not None
    return RunFile(
        role="train",
        run=RunIdentity(kind="TrainingJob", namespace=meta.namespace, name=meta.name, uid=meta.uid, attempt=attempt),
        base=BaseRef(**frozen.base.model_dump()),
        data=data_ref(frozen, frozen.dataset),
        train=None if online else train_plan(meta, spec, frozen, layout, start),
        rlvr=rlvr_plan(meta, spec, frozen, layout, attempt, start.resume) if online else None,
        servers=addresses(meta, attempt, start.incarnations),
        layout=Layout(
            nodes=layout.nodes,
            node_rank=rank,
            gpus_per_node=layout.gpus_per_node,
            rendezvous=first if layout.nodes > 1 else None,
            rendezvous_timeout_seconds=env.start_timeout_seconds,
        ),
        reporting=Reporting(url=env.report_url),
        wandb=None if rank else wandb_plan(meta, frozen),
        deadline=start.deadline,
        grace_seconds=GRACE_SECONDS,
        publish_seconds=start.publish_seconds,
    )


def data_kind(kind: str) -> Literal["chat", "preference", "tasks"]:
    """Return a kind of rows that trainers read; raises ValueError of another, which is never inspected."""
    if kind in ("chat", "preference", "tasks"):
        return cast(Literal["chat", "preference", "tasks"], kind)
    raise ValueError(f"no trainer reads rows of kind {kind}")


def data_ref(frozen: Frozen, dataset: FrozenDataset) -> DataRef:
    """Return the rows or tasks to read, with the digest that they must have."""
    kind = ROWS[frozen.lora.method] if frozen.lora else "tasks"
    return DataRef(name=dataset.name, kind=kind, source=dataset.source, sha256=dataset.sha256)


def train_plan(meta: Meta, spec: TrainingJobSpec, frozen: Frozen, layout: Topology, start: Start) -> TrainPlan:
    """Return what a run of base lora_trl trains."""
    if frozen.lora is None:
        raise ValueError("only base lora_trl trains by spec.lora")
    return TrainPlan(
        steps=spec.steps,
        batch=spec.batch,
        save_steps=spec.save_steps,
        seed=spec.seed,
        lora=frozen.lora,
        output=f"{run_uri(frozen.artifacts_claim, meta.uid)}/{attempt_name(start.attempt)}",
        parent=parent_plan(frozen.parent) if frozen.parent else None,
        resume=start.resume,
        context_parallel=context_parallel(spec, layout),
    )


def context_parallel(spec: TrainingJobSpec, layout: Topology) -> ContextParallel | None:
    """Return how rows are split, also where none need be: then bundles must not become longer than a GPU takes."""
    if spec.context_parallel is None:
        return None
    return ContextParallel(group=layout.context_parallel or 1, whole_row=WHOLE_ROW)


def publish_pod(
    meta: Meta,
    frozen: Frozen,
    source: ResumeFrom,
    folder: Literal["", "adapter/"],
    attempt: int,
    number: int,
    env: Environment,
) -> Object:
    """Return the pod that brings an adapter to its place; it needs no GPU, and is not billed.

    Its image is the one that came with this operator: that of a run which an earlier one accepted may not know this run file.
    """
    run_file = RunFile(
        role="publish",
        run=RunIdentity(kind="TrainingJob", namespace=meta.namespace, name=meta.name, uid=meta.uid, attempt=attempt),
        base=BaseRef(**frozen.base.model_dump()),
        publish=PublishPlan(source=source, folder=folder, store=adapters_uri(frozen.artifacts_claim)),
        reporting=None,
        grace_seconds=5.0,
    )
    return pod(
        meta,
        name=names.publish_pod(meta.name, meta.uid, attempt, number),
        role="publish",
        attempt=attempt,
        rank=number,
        run_file=run_file,
        env=env,
        image=env.trainer_image,
        pull_policy=env.image_pull_policy,
        read=(),
        write=(frozen.artifacts_claim,),
        resources=FILES_RESOURCES,
        placement={},
        metered=False,
        extra={},
    )


def inspect_pod(world: DatasetWorld, base_name: str, base: BaseModelSpec, attempt: int) -> Object:
    """Return the pod that counts a data set's rows with one base's tokenizer; it needs no GPU."""
    meta, spec, env = world.meta, world.spec, world.environment
    run_file = RunFile(
        role="inspect",
        run=RunIdentity(kind="Dataset", namespace=meta.namespace, name=meta.name, uid=meta.uid, attempt=attempt),
        base=BaseRef(
            name=base_name,
            source=base.source,
            revision=base.revision,
            dtype=base.dtype,
            context_length=base.context_length,
        ),
        data=DataRef(name=meta.name, kind=data_kind(spec.kind), source=spec.source),
        reporting=None,
        grace_seconds=5.0,
    )
    return pod(
        meta,
        name=names.inspect_pod(meta.name, meta.uid, base_name, base.revision, attempt),
        role="inspect",
        attempt=attempt,
        rank=0,
        run_file=run_file,
        env=env,
        image=env.trainer_image,
        pull_policy=env.image_pull_policy,
        read=(claim_of(spec.source), claim_of(base.source)),
        write=(),
        resources=INSPECT_RESOURCES,
        placement={},
        metered=False,
        extra={},
        annotations={names.BASE_ANNOTATION: base_name, names.REVISION_ANNOTATION: base.revision},
    )


def rendezvous_service(meta: Meta, layout: Topology) -> tuple[Object, ...]:
    """Return the headless Service by which a run's pods find each other, where they must; all attempts share it."""
    if not has_service(layout):
        return ()
    ours = {names.RUN_LABEL: meta.uid}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": names.rendezvous_service(meta.name, meta.uid),
            "namespace": meta.namespace,
            "labels": {**ours, "app.kubernetes.io/managed-by": "halo"},
            "ownerReferences": [owner(meta)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            # Rollout servers too; pods that publish have no host name.
            "selector": ours if layout.rollout else {**ours, names.ROLE_LABEL: "trainer"},
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT}, *(ports() if layout.rollout else [])],
        },
    }
    return (service,)


def has_service(layout: Topology) -> bool:
    """Whether the run's pods must find each other: trainers on several nodes, or rollout servers."""
    return layout.nodes > 1 or bool(layout.rollout)


def host(meta: Meta, layout: Topology, rank: int, attempt: int) -> Object:
    """Return the DNS name of a trainer pod; a run on one node needs none: nobody looks for it."""
    if layout.nodes == 1:
        return {}
    return {"hostname": names.host_name(rank, attempt), "subdomain": names.rendezvous_service(meta.name, meta.uid)}
