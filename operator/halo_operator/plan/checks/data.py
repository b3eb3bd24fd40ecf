"""Checks of a run's data set: is it there, of the right kind, inspected, and are its rows short enough and enough."""

from __future__ import annotations

from halo_api.conditions import Reason, condition_of
from halo_api.dataset import Inspection
from halo_operator.plan.references import references
from halo_operator.plan.refusal import Refusal, part
from halo_operator.plan.resolve import ROWS
from halo_operator.plan.split import split_of
from halo_operator.plan.world import RunWorld

# What this version reads, and so can count.
INSPECTED_KINDS = (*ROWS.values(), "tasks")


def dataset_is_there(world: RunWorld) -> Refusal | None:
    """A data set of the same commit may still come."""
    name = references(world.spec).dataset
    if name is None or world.catalog.dataset is not None:
        return None
    return Refusal(
        Reason.DATASET_PENDING,
        f"{part(world)}.dataset: found {name!r}, but there is no such Dataset in namespace {world.meta.namespace}; create it, and the run goes on by itself",
        pending=True,
    )


def kind_of(world: RunWorld) -> str:
    """Return the kind of rows that the run trains on."""
    if world.spec.base != "lora_trl":
        return "tasks"
    return ROWS[(world.spec.lora and world.spec.lora.method) or "sft"]


def dataset_has_the_kind(world: RunWorld) -> Refusal | None:
    """Each use has its kind of rows."""
    dataset, wanted = world.catalog.dataset, kind_of(world)
    if dataset is None or dataset.spec.kind == wanted:
        return None
    use = world.spec.base if world.spec.base != "lora_trl" else f"method {'dpo' if wanted == 'preference' else 'sft'}"
    return Refusal(
        Reason.DATASET_UNFIT,
        f"{part(world)}.dataset: {use} trains on kind {wanted}, found Dataset {dataset.name} of kind {dataset.spec.kind}; name another Dataset",
    )


def dataset_is_usable(world: RunWorld) -> Refusal | None:
    """Inspection must have read it to the end."""
    dataset = world.catalog.dataset
    if dataset is None:
        return None
    field = f"{part(world)}.dataset: found Dataset {dataset.name}, which"
    stalled = condition_of(dataset.status.conditions, "Stalled")
    if stalled and stalled.status == "True" and stalled.observed_generation == dataset.generation:
        words = f"{field} can't be used: {stalled.message}; mend that in a new Dataset"
        return Refusal(Reason.DATASET_INVALID, words)
    if world.spec.base_model not in dataset.spec.base_models:
        words = (
            f"{field} is counted for {', '.join(dataset.spec.base_models)} and not for baseModel {world.spec.base_model}; "
            "add it to the Dataset's spec.baseModels"
        )
        return Refusal(Reason.DATASET_NOT_COUNTED, words, pending=True)
    if inspection_of(world) is None and dataset.spec.kind in INSPECTED_KINDS:
        ready = condition_of(dataset.status.conditions, "Ready")
        # What holds the inspection up is worth a word; that it goes on is not.
        why = f" ({ready.message})" if ready and ready.reason not in (Reason.INSPECTING, Reason.INSPECTED) else ""
        words = f"{field} is being inspected{why}; the run starts when it has been"
        return Refusal(Reason.DATASET_PENDING, words, pending=True)
    return None


def inspection_of(world: RunWorld) -> Inspection | None:
    """Return what the run's base counted in the run's data set, at the base's own revision."""
    dataset, base = world.catalog.dataset, world.catalog.base
    if dataset is None or base is None:
        return None
    return next(
        (i for i in dataset.status.inspections if i.base_model == base.name and i.revision == base.spec.revision), None
    )


def longest_row_of(world: RunWorld) -> int | None:
    """Return the longest row that a lora_trl run will train, in tokens, after what overlength does; None before inspection."""
    lora, base, found = world.spec.lora, world.catalog.base, inspection_of(world)
    if lora is None or base is None or found is None:
        return None
    if (lora.overlength or "refuse") == "refuse":
        return found.longest_row
    return min(found.longest_row, lora.max_length or base.spec.context_length)


def rows_fit_the_base(world: RunWorld) -> Refusal | None:
    """Rows are never cut silently."""
    lora, base, found = world.spec.lora, world.catalog.base, inspection_of(world)
    if lora is None or base is None or world.spec.base != "lora_trl":
        return None
    context = base.spec.context_length
    if lora.max_length is not None and lora.max_length > context:
        return Refusal(
            Reason.ROW_TOO_LONG,
            f"spec.lora.maxLength: found {lora.max_length}, more than {base.name}'s context of {context} tokens; lower it",
        )
    limit = lora.max_length or context
    if found is None or (lora.overlength or "refuse") != "refuse" or found.longest_row <= limit:
        return None
    return Refusal(
        Reason.ROW_TOO_LONG,
        f"spec.lora.dataset: found {longer_than(found, limit)} of up to {found.longest_row} tokens, more than the {limit} that fit; raise spec.lora.maxLength "
        f"(at most {context}), shorten the rows, or set spec.lora.overlength to drop or truncate",
    )


def longer_than(found: Inspection, limit: int) -> str:
    """Say how many rows are longer: exactly at a length that was counted, else between the counts of those beside it."""
    least = max((one.rows for one in found.longer if one.tokens >= limit), default=1)
    most = min((one.rows for one in found.longer if one.tokens <= limit), default=found.rows)
    if not found.longer:
        return "rows"
    return f"{most} of {found.rows} rows" if least == most else f"{least} to {most} of {found.rows} rows"


def tasks_are_enough(world: RunWorld) -> Refusal | None:
    """Each step samples distinct tasks; rejection sampling needs at least one."""
    dataset, recipe = world.catalog.dataset, world.catalog.recipe
    rows = dataset.status.rows if dataset else None
    if dataset is None or rows is None or world.spec.base == "lora_trl" or dataset.spec.kind != "tasks":
        return None
    if world.spec.rlvr is None or recipe is None:
        needed, why = 1, "one is needed"
    else:
        split, size = split_of(world), recipe.spec.rollouts.group_size
        needed = max(1, world.spec.batch * max(split.trainer, 1) // size)
        why = f"a step samples batch {world.spec.batch} x {split.trainer} trainer GPUs / {size} episodes a task = {needed} of them"
    if rows >= needed:
        return None
    return Refusal(
        Reason.DATASET_UNFIT,
        f"{part(world)}.dataset: found Dataset {dataset.name} with {rows} tasks, and {why}; add tasks, or lower spec.batch",
    )


DATA = (dataset_is_there, dataset_has_the_kind, dataset_is_usable, rows_fit_the_base, tasks_are_enough)
