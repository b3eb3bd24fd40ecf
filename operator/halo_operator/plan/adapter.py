"""Builds the Adapter that a finished run publishes."""

from __future__ import annotations

from halo_api import API_VERSION
from halo_api.adapter import AdapterBase, AdapterParent, AdapterSpec, TrainedBy
from halo_api.report import AdapterReport
from halo_api.run_status import Frozen
from halo_operator.plan.world import Meta, Object


def adapter_spec(meta: Meta, frozen: Frozen, made: AdapterReport) -> AdapterSpec:
    """Return what was published, without its receipt, which is about this."""
    if frozen.lora is None:
        raise ValueError("only base lora_trl publishes an adapter")
    parent = frozen.parent
    return AdapterSpec(
        base=AdapterBase(name=frozen.base.name, revision=frozen.base.revision),
        rank=frozen.lora.rank or 1,
        alpha=frozen.lora.alpha or 1.0,
        uri=made.uri,
        digest=made.digest,
        files=list(made.files),
        trained_by=TrainedBy(kind=meta.kind, name=meta.name, uid=meta.uid, step=made.step),
        parent=AdapterParent(name=parent.name, digest=parent.digest) if parent else None,
    )


def adapter(meta: Meta, spec: AdapterSpec) -> Object:
    """Return the Adapter of the run's name. It has no owner: it outlives the run that made it."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Adapter",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": {"app.kubernetes.io/managed-by": "halo"},
        },
        "spec": spec.to_json(),
    }
