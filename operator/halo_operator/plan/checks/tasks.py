"""Checks of a run's tasks: does the recipe's environment run them, and is there room behind the longest opening prompt."""

from __future__ import annotations

from halo_api.conditions import Reason
from halo_operator.plan.checks.data import inspection_of
from halo_operator.plan.refusal import Refusal, part
from halo_operator.plan.world import RunWorld

# Environments whose tasks are not told by a data set's lines: the customer's harness, and the package of a bridged recipe.
ELSEWHERE = ("harness", "bridged")


def tasks_are_of_the_recipes_environment(world: RunWorld) -> Refusal | None:
    """One environment scores all episodes of a run."""
    dataset, recipe, found = world.catalog.dataset, world.catalog.recipe, inspection_of(world)
    if dataset is None or recipe is None or found is None or dataset.spec.kind != "tasks":
        return None
    wanted = recipe.spec.environment.name
    other = next((one for one in found.environments if one.name != wanted), None)
    if other is None or wanted in ELSEWHERE:
        return None
    return Refusal(
        Reason.DATASET_UNFIT,
        f"{part(world)}.dataset: {recipe.name} runs tasks of environment {wanted}, found Dataset {dataset.name} with {other.rows} "
        f"of environment {other.name}; name another Dataset, or another recipe",
    )


def openings_leave_room(world: RunWorld) -> Refusal | None:
    """An episode whose opening prompt fills its context can't answer."""
    dataset, recipe, found = world.catalog.dataset, world.catalog.recipe, inspection_of(world)
    base = world.catalog.base
    if dataset is None or recipe is None or base is None or found is None or dataset.spec.kind != "tasks":
        return None
    most = min(recipe.spec.rollouts.context_tokens or base.spec.context_length, base.spec.context_length)
    if found.longest_row < most:
        return None
    return Refusal(
        Reason.ROW_TOO_LONG,
        f"{part(world)}.dataset: found a task in Dataset {dataset.name} whose opening prompt has {found.longest_row} tokens, and an "
        f"episode of {recipe.name} on {base.name} may have {most}; shorten the task, or choose a base with a longer context",
    )


TASKS = (tasks_are_of_the_recipes_environment, openings_leave_room)
