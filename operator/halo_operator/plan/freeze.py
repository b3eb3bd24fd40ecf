"""Resolves what admission freezes: every default, the catalog as it is now, the image."""

from __future__ import annotations

from halo_api.run_status import Frozen, FrozenBase, FrozenDataset, FrozenGpu, FrozenLora
from halo_api.training_methods import LoraSpec
from halo_operator.plan.checks import inspection_of
from halo_operator.plan.world import RunWorld

DEFAULT_RANK = 16
DEFAULT_ALPHA = 32.0
DEFAULT_LEARNING_RATE = {"sft": 2e-4, "dpo": 5e-6}
DEFAULT_BETA = 0.1
DEFAULT_MICRO_BATCH = 1


def freeze(world: RunWorld) -> Frozen:
    """Return what the run will use for its whole life; the checks must have passed."""
    base, gpu, dataset, inspection = world.catalog.base, world.catalog.gpu, world.catalog.dataset, inspection_of(world)
    lora = world.spec.lora
    if base is None or gpu is None or dataset is None or inspection is None or lora is None:
        raise ValueError("freeze comes after the checks")
    return Frozen(
        base=FrozenBase(
            name=base.name,
            source=base.spec.source,
            revision=base.spec.revision,
            dtype=base.spec.dtype,
            context_length=base.spec.context_length,
        ),
        dataset=FrozenDataset(
            name=dataset.name,
            source=dataset.spec.source,
            sha256=inspection.sha256,
            rows=inspection.rows,
            longest_row=inspection.longest_row,
        ),
        gpu=FrozenGpu(
            type=gpu.name,
            resource_name=gpu.spec.resource_name,
            node_selector=gpu.spec.node_selector,
            tolerations=gpu.spec.tolerations,
            per_gpu=gpu.spec.per_gpu,
            h100_equivalent=gpu.spec.h100_equivalent,
        ),
        lora=resolved(lora, base.spec.default_trainer, base.spec.context_length),
        image=world.environment.trainer_image,
        image_pull_policy=world.environment.image_pull_policy,
        artifacts_claim=world.environment.artifacts_claim,
        operator_version=world.environment.operator_version,
    )


def resolved(lora: LoraSpec, default_trainer: str, context_length: int) -> FrozenLora:
    """Return the LoRA settings with nothing left unset but targetModules, whose unset value means every linear layer."""
    asked = lora.to_json()
    method = lora.method or "sft"
    defaults = {
        "trainer": default_trainer,
        "method": method,
        "rank": DEFAULT_RANK,
        "alpha": DEFAULT_ALPHA,
        "learningRate": DEFAULT_LEARNING_RATE[method],
        "maxLength": context_length,
        "microBatch": DEFAULT_MICRO_BATCH,
    } | ({"beta": DEFAULT_BETA} if method == "dpo" else {})
    return FrozenLora.model_validate(defaults | asked)
