"""Builds the Adapter that a finished run publishes."""

from __future__ import annotations

from typing import Literal

from halo_api import API_VERSION
from halo_api.adapter import AdapterBase, AdapterParent, AdapterSpec, TrainedBy
from halo_api.recipe import settings_of
from halo_api.report import AdapterReport
from halo_api.run_status import Frozen
from halo_api.training_job import TrainingJobSpec
from halo_operator.plan.rollout_pods import recipe_of, thinking_of
from halo_operator.plan.world import Meta, Object


def adapter_spec(meta: Meta, spec: TrainingJobSpec, frozen: Frozen, made: AdapterReport) -> AdapterSpec:
    """Return what was published, without its receipt, which is about this."""
    parent = frozen.parent
    rank, alpha = lora_of(frozen)
    return AdapterSpec(
        base=AdapterBase(name=frozen.base.name, revision=frozen.base.revision),
        rank=rank,
        alpha=alpha,
        uri=made.uri,
        digest=made.digest,
        files=list(made.files),
        trained_by=TrainedBy(kind=meta.kind, name=meta.name, uid=meta.uid, step=made.step),
        parent=AdapterParent(name=parent.name, digest=parent.digest) if parent else None,
        mode=mode_of(spec, frozen),
    )


def lora_of(frozen: Frozen) -> tuple[int, float]:
    """Return rank and alpha of the LoRA that was trained: the job's, or the recipe's."""
    if frozen.lora is not None:
        return frozen.lora.rank or 1, frozen.lora.alpha or 1.0
    recipe = settings_of(recipe_of(frozen).text).lora
    return recipe.rank, recipe.alpha


def mode_of(spec: TrainingJobSpec, frozen: Frozen) -> Literal["final", "reasoning"] | None:
    """Return what the adapter is served in: what its rollouts sampled in; unset: as the base is."""
    if frozen.recipe is None:
        return None
    thinking = thinking_of(spec, settings_of(frozen.recipe.text))
    return None if thinking is None else "reasoning" if thinking else "final"


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
