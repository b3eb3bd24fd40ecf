"""Resolves what a spec leaves unset: rank, alpha, learning rate and trainer, from parent, recipe, base or our defaults."""

from __future__ import annotations

from typing import Literal

from halo_operator.plan.world import RunWorld

RANK = 16
ALPHA = 32.0
LEARNING_RATE = {"sft": 2e-4, "dpo": 5e-6}
# The rows that a method trains on.
ROWS: dict[str, Literal["chat", "preference"]] = {"sft": "chat", "dpo": "preference"}
BETA = 0.1
MICRO_BATCH = 1


def rank_of(world: RunWorld) -> int:
    """Return the LoRA rank: the recipe's for halo_rlvr; else as asked, else the parent's, else 16."""
    if world.spec.rlvr is not None and world.catalog.recipe is not None:
        return world.catalog.recipe.spec.lora.rank
    asked = world.spec.lora.rank if world.spec.lora else None
    return asked or (world.catalog.parent.spec.rank if world.catalog.parent else RANK)


def alpha_of(world: RunWorld) -> float:
    """Return the LoRA alpha: the recipe's for halo_rlvr; else as asked, else the parent's, else 32."""
    if world.spec.rlvr is not None and world.catalog.recipe is not None:
        return world.catalog.recipe.spec.lora.alpha
    asked = world.spec.lora.alpha if world.spec.lora else None
    return asked or (world.catalog.parent.spec.alpha if world.catalog.parent else ALPHA)
