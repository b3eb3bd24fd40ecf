"""Freezes what the checks have accepted: every default resolved, the catalog as it is now, the image."""

from __future__ import annotations

from halo_api.run_status import (
    Frozen,
    FrozenBase,
    FrozenDataset,
    FrozenGpu,
    FrozenLora,
    FrozenParent,
    FrozenRecipe,
)
from halo_operator.plan.checks.data import inspection_of
from halo_operator.plan.resolve import BETA, LEARNING_RATE, MICRO_BATCH, alpha_of, rank_of
from halo_operator.plan.split import split_of
from halo_operator.plan.world import BaseEntry, ParentEntry, RunWorld


def freeze(world: RunWorld) -> Frozen:
    """Return what the run will use for its whole life; the checks must have passed."""
    catalog, spec, installed = world.catalog, world.spec, world.environment
    base, gpu, recipe, parent = catalog.base, catalog.gpu, catalog.recipe, catalog.parent
    if base is None or gpu is None:
        raise ValueError("freeze comes after the checks")
    rlvr = spec.rlvr.model_copy(update={"rollout_gpus": split_of(world).rollout}) if spec.rlvr else None
    return Frozen(
        base=FrozenBase(
            name=base.name,
            source=base.spec.source,
            revision=base.spec.revision,
            dtype=base.spec.dtype,
            quantization=base.spec.quantization,
            context_length=base.spec.context_length,
        ),
        dataset=dataset(world),
        gpu=FrozenGpu(
            type=gpu.name,
            resource_name=gpu.spec.resource_name,
            node_selector=gpu.spec.node_selector,
            tolerations=gpu.spec.tolerations,
            per_gpu=gpu.spec.per_gpu,
            h100_equivalent=gpu.spec.h100_equivalent,
            topology_key=gpu.spec.topology_key,
        ),
        lora=lora(world, base),
        rlvr=rlvr,
        rft=spec.rft,
        recipe=FrozenRecipe(name=recipe.name, digest=recipe.digest, text=recipe.text) if recipe else None,
        parent=frozen_parent(parent) if parent else None,
        image=installed.trainer_image,
        image_pull_policy=installed.image_pull_policy,
        rollout_image=installed.rollout_image if rlvr else None,
        rollout_image_pull_policy=installed.rollout_image_pull_policy if rlvr else None,
        tracking=catalog.workspace.spec.tracking if spec.base == "lora_trl" else None,
        artifacts_claim=artifacts_claim(world),
        operator_version=installed.operator_version,
    )


def artifacts_claim(world: RunWorld) -> str:
    """Return the claim that the run writes to: its Workspace's, else the installation's default."""
    storage = world.catalog.workspace.spec.storage
    return storage.claim if storage else world.environment.artifacts_claim


def dataset(world: RunWorld) -> FrozenDataset | None:
    """Return the data set as it was inspected; None where an environment has the tasks."""
    entry, inspection = world.catalog.dataset, inspection_of(world)
    if entry is None or inspection is None:
        return None
    return FrozenDataset(
        name=entry.name,
        source=entry.spec.source,
        sha256=inspection.sha256,
        rows=inspection.rows,
        longest_row=inspection.longest_row,
    )


def frozen_parent(parent: ParentEntry) -> FrozenParent:
    """Return the adapter to continue as it was verified: its bytes and its receipt."""
    spec = parent.spec
    return FrozenParent(
        name=parent.name,
        uri=spec.uri,
        digest=spec.digest,
        files={file.path: file.sha256 for file in spec.files},
        receipt=spec.receipt.digest if spec.receipt else None,
    )


def lora(world: RunWorld, base: BaseEntry) -> FrozenLora | None:
    """Return the LoRA settings of base lora_trl with nothing left unset but targetModules: unset, every linear layer."""
    asked = world.spec.lora
    if asked is None or world.spec.base != "lora_trl":
        return None
    method = asked.method or "sft"
    defaults = {
        "trainer": base.spec.default_trainer,
        "method": method,
        "rank": rank_of(world),
        "alpha": alpha_of(world),
        "learningRate": LEARNING_RATE[method],
        "maxLength": base.spec.context_length,
        "microBatch": MICRO_BATCH,
        "packing": method == "sft" and (asked.trainer or base.spec.default_trainer) == "Halo",
    } | ({"beta": BETA} if method == "dpo" else {})
    return FrozenLora.model_validate(defaults | asked.to_json())
