"""Checks of a run's recipe: is there one of that name that still takes jobs, and may this base train it."""

from __future__ import annotations

from halo_api.conditions import Reason
from halo_api.recipe_names import LISTED_ONLY
from halo_operator.plan.references import references
from halo_operator.plan.refusal import Refusal, listed, part
from halo_operator.plan.world import RunWorld


def recipe_is_known(world: RunWorld) -> Refusal | None:
    """The recipe must be one of the operator's."""
    name = references(world.spec).recipe
    if name is None or world.catalog.recipe is not None:
        return None
    return Refusal(
        Reason.UNKNOWN_RECIPE,
        f"{part(world)}.recipe: found {name!r}, which is no recipe (kubectl get recipes); {listed(name, world.catalog.recipe_names)}",
    )


def recipe_takes_new_jobs(world: RunWorld) -> Refusal | None:
    """A retired recipe serves the runs it has, and no other."""
    recipe = world.catalog.recipe
    if recipe is None or not recipe.spec.retired:
        return None
    instead = f"use {recipe.spec.successor}" if recipe.spec.successor else "use another recipe (kubectl get recipes)"
    return Refusal(
        Reason.RECIPE_RETIRED,
        f"{part(world)}.recipe: found {recipe.name}, which is retired and takes no new job; {instead}",
    )


def recipe_serves_the_base(world: RunWorld) -> Refusal | None:
    """Not every recipe's environment can be sampled for rejection sampling."""
    recipe = world.catalog.recipe
    if recipe is None or references(world.spec).recipe is None or world.spec.base in recipe.spec.bases:
        return None
    return Refusal(
        Reason.RECIPE_NOT_OFFERED,
        f"{part(world)}.recipe: {recipe.name} is for {' and '.join(recipe.spec.bases)}, found base {world.spec.base}; use another recipe",
    )


def base_model_trains_the_recipe(world: RunWorld) -> Refusal | None:
    """A base with an allow-list trains nothing else, and some recipes train only a base that lists them."""
    base, recipe = world.catalog.base, world.catalog.recipe
    if base is None or recipe is None:
        return None
    allowed = base.spec.recipes
    if allowed is not None and recipe.name not in allowed:
        return Refusal(
            Reason.RECIPE_NOT_OFFERED,
            f"{part(world)}.recipe: {base.name} trains only {', '.join(allowed)}, found {recipe.name}; use one of those or another base model",
        )
    if recipe.name in LISTED_ONLY and allowed is None:
        return Refusal(
            Reason.RECIPE_NOT_OFFERED,
            f"{part(world)}.recipe: {recipe.name} trains only base models that list it in spec.recipes, found {base.name}, which does not; use another recipe",
        )
    return None


def base_model_has_experts(world: RunWorld) -> Refusal | None:
    """There is no expert routing to replay in a dense base."""
    base, recipe = world.catalog.base, world.catalog.recipe
    if base is None or recipe is None or base.spec.moe or not recipe.spec.moe_only:
        return None
    return Refusal(
        Reason.RECIPE_NOT_OFFERED,
        f"{part(world)}.recipe: {recipe.name} replays expert routing and needs a mixture of experts, found {base.name}, which is dense; use {recipe.name.removesuffix('_r3') if recipe.name.endswith('_r3') else 'another recipe'} or a base model with moe: true",
    )


def mode_can_be_sampled(world: RunWorld) -> Refusal | None:
    """Reasoning needs a recipe that samples with thinking, and a base whose template has it."""
    base, recipe = world.catalog.base, world.catalog.recipe
    if world.spec.mode != "reasoning":
        return None
    if recipe is not None and not recipe.spec.rollouts.reasoning_allowed:
        return Refusal(
            Reason.MODE_UNFIT,
            f"spec.mode: found reasoning, but {recipe.name} samples without thinking; use final, or leave it out",
        )
    if base is not None and not base.spec.chat_template.thinking:
        return Refusal(
            Reason.MODE_UNFIT,
            f"spec.mode: found reasoning, but {base.name}'s chat template has no thinking (chatTemplate.thinking); use final, or another base model",
        )
    return None


def judge_is_allowed(world: RunWorld) -> Refusal | None:
    """Where the tests of programs are the reward there is nothing to judge."""
    recipe, rlvr = world.catalog.recipe, world.spec.rlvr
    if recipe is None or rlvr is None or rlvr.judge is None or recipe.spec.judge_allowed:
        return None
    return Refusal(
        Reason.RECIPE_NOT_OFFERED,
        f"spec.rlvr.judge: {recipe.name} takes none, since its tests are the whole reward, found criterion {rlvr.judge.criterion}; remove it",
    )


RECIPE = (
    recipe_is_known,
    recipe_takes_new_jobs,
    recipe_serves_the_base,
    base_model_trains_the_recipe,
    base_model_has_experts,
    mode_can_be_sampled,
    judge_is_allowed,
)
