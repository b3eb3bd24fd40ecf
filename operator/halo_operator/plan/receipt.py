"""Says what a receipt says: the in-toto statement about an adapter, from what the run's status and its Adapter record."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from halo_api.adapter import AdapterSpec
from halo_api.digests import json_digest
from halo_api.receipt import (
    PREDICATE_TYPE,
    RECEIPT_ANNOTATION,
    STATEMENT_TYPE,
    Metrics,
    Quoted,
    Receipt,
    ReceiptAdapter,
    ReceiptBase,
    ReceiptCheckpoint,
    ReceiptDataset,
    ReceiptEnvironment,
    ReceiptOperator,
    ReceiptParent,
    ReceiptRun,
    ReceiptTimes,
    ReceiptUsage,
    ResolvedRecipe,
    Statement,
    Steps,
    subjects,
)
from halo_api.run_status import Frozen, ReceiptRef
from halo_api.training_job import TrainingJobSpec, TrainingJobStatus
from halo_operator.plan.conditions import stamp
from halo_operator.plan.world import Meta, Object, Plan, PodView


@dataclass(frozen=True)
class Known:
    """What neither the run's status nor its Adapter says."""

    operator_version: str
    # By role, what the nodes said that they ran: containerStatuses.imageID of every pod of every attempt.
    images: Mapping[str, Iterable[str]] = field(default_factory=dict)
    environments: tuple[ReceiptEnvironment, ...] = ()


def statement_of(
    meta: Meta, spec: TrainingJobSpec, status: TrainingJobStatus, adapter: AdapterSpec, known: Known
) -> Object:
    """Return the statement about the adapter that the run published: for the same arguments the same, to the byte."""
    frozen, made = status.frozen, adapter.trained_by
    if frozen is None or made is None or made.uid != meta.uid:
        raise ValueError(
            f"{meta.namespace}/{meta.name}: a receipt is of a run that was accepted, and of its own adapter"
        )
    asked = spec.to_json()
    receipt = Receipt(
        spec=asked,
        spec_digest=json_digest(asked),
        recipe=_recipe(spec.method, frozen),
        base=ReceiptBase(
            name=frozen.base.name,
            revision=frozen.base.revision,
            source=frozen.base.source,
            dtype=frozen.base.dtype,
            quantization=frozen.base.quantization,
        ),
        parent=_parent(frozen),
        datasets=_datasets(frozen),
        environments=sorted(known.environments, key=lambda one: (one.use, one.name)),
        seed=spec.seed,
        images={role: sorted(set(images)) for role, images in sorted(known.images.items())},
        topology=status.topology,
        adapter=ReceiptAdapter(
            digest=adapter.digest,
            rank=adapter.rank,
            alpha=adapter.alpha,
            mode=adapter.mode,
            files=sorted(adapter.files, key=lambda file: file.path),
        ),
        steps=Steps(asked=spec.steps, done=made.step),
        metrics=_metrics(status, made.step),
        checkpoints=_checkpoints(status),
        operator=ReceiptOperator(version=known.operator_version, accepted=frozen.operator_version),
        run=_run(meta, status),
        times=_times(meta, status),
        usage=_usage(status),
    )
    statement = Statement(
        type_=STATEMENT_TYPE, subject=subjects(adapter.files), predicate_type=PREDICATE_TYPE, predicate=receipt
    )
    return statement.to_json()


def with_receipt(plan: Plan[TrainingJobStatus], envelope: bytes) -> Plan[TrainingJobStatus]:
    """Return the plan with the signed receipt on its Adapter, and the digest of it in the status."""
    ref = ReceiptRef(digest="sha256:" + hashlib.sha256(envelope).hexdigest())
    first = []
    for child in plan.first:
        if child["kind"] == "Adapter":
            meta = child["metadata"] | {"annotations": {RECEIPT_ANNOTATION: envelope.decode()}}
            child = child | {"metadata": meta, "spec": child["spec"] | {"receipt": ref.to_json()}}
        first.append(child)
    status = plan.status.model_copy(update={"receipt": ref}) if plan.status else None
    return replace(plan, first=tuple(first), status=status, statement=None)


def images_of(status: TrainingJobStatus, pods: Iterable[PodView]) -> dict[str, set[str]]:
    """Return by role what the run's pods ran, as their nodes resolved it: those of attempts before, and those still there."""
    found: dict[str, set[str]] = {
        "trainer": {image for record in status.attempts for image in record.images},
        "rollout": {image for record in status.attempts for image in record.rollout_images},
    }
    for pod in pods:
        if pod.image_id:
            found.setdefault(pod.role, set()).add(pod.image_id)
    return {role: images for role, images in found.items() if images}


def _recipe(name: str, frozen: Frozen) -> ResolvedRecipe:
    settings = frozen.rlvr or frozen.rft or frozen.lora
    resolved = settings.to_json() if settings else {}
    return ResolvedRecipe(name=name, settings=resolved, digest=json_digest(resolved), file=frozen.recipe)


def _parent(frozen: Frozen) -> ReceiptParent | None:
    parent = frozen.parent
    if parent is None:
        return None
    if parent.receipt is None:
        raise ValueError(f"parent {parent.name}: it has no receipt, and only a proven adapter is continued")
    return ReceiptParent(name=parent.name, digest=parent.digest, receipt=parent.receipt)


def _datasets(frozen: Frozen) -> list[ReceiptDataset]:
    data = frozen.dataset
    return [ReceiptDataset(name=data.name, sha256=data.sha256, rows=data.rows)] if data else []


def _metrics(status: TrainingJobStatus, step: int) -> Metrics:
    """The adapter's own step, if its checkpoint is still known; else what was last reported."""
    own = next((c for c in status.checkpoints if c.step == step), None)
    said = own or status.progress
    return Metrics(loss=said.loss, reward=said.reward) if said else Metrics()


def _checkpoints(status: TrainingJobStatus) -> list[ReceiptCheckpoint]:
    found = {c.step: c for c in status.checkpoints}
    return [ReceiptCheckpoint(step=n, digest=c.digest, loss=c.loss, reward=c.reward) for n, c in sorted(found.items())]


def _run(meta: Meta, status: TrainingJobStatus) -> ReceiptRun:
    return ReceiptRun(
        kind=meta.kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        attempt=status.attempt or 1,
        failures=status.failures or 0,
        attempts=status.attempts,
    )


def _times(meta: Meta, status: TrainingJobStatus) -> ReceiptTimes:
    created = meta.created_at
    return ReceiptTimes(
        created=stamp(created) if created else None,
        started=next((a.started_at for a in status.attempts if a.started_at), None),
        finished=next((a.finished_at for a in reversed(status.attempts) if a.finished_at), None),
    )


def _usage(status: TrainingJobStatus) -> ReceiptUsage:
    quote = status.estimate
    quoted = Quoted(h100_hours=quote.h100_hours, usd=quote.usd, rates=quote.rates) if quote else None
    return ReceiptUsage(quoted=quoted, held=status.hold, used=status.usage)
