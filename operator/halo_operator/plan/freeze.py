"""Resolves what admission freezes: every default, the catalog as it is now, the image."""

from __future__ import annotations

from halo_api.training_job import Frozen, FrozenBase, FrozenDataset, FrozenGpu, LoraSpec
from halo_operator.plan.checks import inspection_of
from halo_operator.plan.world import RunWorld

DEFAULT_RANK = 16
DEFAULT_ALPHA = 32.0
DEFAULT_LEARNING_RATE = 2e-4
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


def resolved(lora: LoraSpec, default_trainer: str, context_length: int) -> LoraSpec:
    """Return the LoRA settings with nothing left unset but targetModules, whose unset value means every linear layer."""
    return lora.model_copy(
        update={
            "trainer": lora.trainer or default_trainer,
            "rank": lora.rank or DEFAULT_RANK,
            "alpha": lora.alpha or DEFAULT_ALPHA,
            "learning_rate": lora.learning_rate or DEFAULT_LEARNING_RATE,
            "max_length": lora.max_length or context_length,
            "micro_batch": lora.micro_batch or DEFAULT_MICRO_BATCH,
        }
    )
