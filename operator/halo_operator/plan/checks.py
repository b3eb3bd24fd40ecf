"""The facts that decide whether a run is accepted: one check a fact, in order; the first that fails speaks."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from halo_api.conditions import Reason, condition_of
from halo_api.dataset import Inspection
from halo_operator.plan.world import RunWorld


@dataclass(frozen=True)
class Refusal:
    """Why a run is not accepted; `pending` when what is missing may still appear, `code` as the webhook answers it."""

    reason: Reason
    message: str
    pending: bool = False
    code: int = 400


Check = Callable[[RunWorld], Refusal | None]


def first_refusal(world: RunWorld, checks: Iterable[Check] | None = None) -> Refusal | None:
    """Return the first refusal, or None when the run is accepted."""
    found = (check(world) for check in (checks if checks is not None else ADMISSION))
    return next((refusal for refusal in found if refusal), None)


def listed(found: str, known: Sequence[str]) -> str:
    """Name what would do: the near names, else all of them, else how to make one."""
    near = difflib.get_close_matches(found, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"there are: {', '.join(sorted(known)[:10])}" if known else "there are none yet"


def base_is_available(world: RunWorld) -> Refusal | None:
    """Other kinds of training come later; until then a good job of theirs is refused."""
    if world.spec.base == "lora_trl":
        return None
    return Refusal(
        Reason.NOT_YET_AVAILABLE,
        f"spec.base: found {world.spec.base}, which this version does not train yet; use lora_trl",
    )


def base_model_is_known(world: RunWorld) -> Refusal | None:
    """The base model must be in the catalog."""
    if world.catalog.base is not None:
        return None
    found = world.spec.base_model
    return Refusal(
        Reason.UNKNOWN_BASE_MODEL,
        f"spec.baseModel: found {found!r}, which is not in the catalog (kubectl get basemodels); {listed(found, world.catalog.base_names)}",
    )


def base_model_offers_it(world: RunWorld) -> Refusal | None:
    """The catalog says what a base can train."""
    base = world.catalog.base
    if base is None or (base.spec.fine_tunable and world.spec.base in base.spec.offers):
        return None
    what = ", ".join(base.spec.offers) if base.spec.fine_tunable else "nothing any more (fineTunable is false)"
    return Refusal(
        Reason.BASE_NOT_OFFERED,
        f"spec.baseModel: {base.name} offers {what}, found base {world.spec.base}; use another base model",
    )


def gpu_class_is_known(world: RunWorld) -> Refusal | None:
    """The GPU type must be one of the cluster's classes."""
    if world.catalog.gpu is not None:
        return None
    found = world.spec.gpu.type
    return Refusal(
        Reason.UNKNOWN_GPU_CLASS,
        f"spec.gpu.type: found {found!r}, which is no GpuClass of this cluster (kubectl get gpuclasses); {listed(found, world.catalog.gpu_names)}",
    )


def trainer_is_available(world: RunWorld) -> Refusal | None:
    """TRL, and with it DPO, comes later."""
    lora, base = world.spec.lora, world.catalog.base
    trainer = (lora.trainer if lora else None) or (base.spec.default_trainer if base else "Halo")
    if lora and lora.method == "dpo":
        return Refusal(
            Reason.NOT_YET_AVAILABLE, "spec.lora.method: found dpo, which this version does not train yet; use sft"
        )
    if trainer != "Halo":
        return Refusal(
            Reason.NOT_YET_AVAILABLE,
            f"spec.lora.trainer: found {trainer}, which this version does not have yet; set trainer: Halo",
        )
    return None


def gpus_fill_their_nodes(world: RunWorld) -> Refusal | None:
    """A run of several nodes uses every one of them alike."""
    gpu, count = world.catalog.gpu, world.spec.gpu.count
    if gpu is None or count <= gpu.spec.per_node or count % gpu.spec.per_node == 0:
        return None
    per = gpu.spec.per_node
    return Refusal(
        Reason.UNFIT,
        f"spec.gpu.count: found {count}, more than one node's {per} and not a multiple of it; use {count // per * per} or {(count // per + 1) * per}",
    )


def gpus_divide_the_batch(world: RunWorld) -> Refusal | None:
    """Each GPU trains rows of every step."""
    count, batch = world.spec.gpu.count, world.spec.batch
    if batch >= count:
        return None
    return Refusal(
        Reason.UNFIT,
        f"spec.batch: found {batch} rows a step for {count} GPUs, so that some would have none; use at least {count}",
    )


def dataset_is_there(world: RunWorld) -> Refusal | None:
    """A data set of the same commit may still come."""
    if world.catalog.dataset is not None or world.spec.lora is None:
        return None
    name = world.spec.lora.dataset
    return Refusal(
        Reason.DATASET_PENDING,
        f"spec.lora.dataset: found {name!r}, but there is no such Dataset in namespace {world.meta.namespace}; create it, and the run goes on by itself",
        pending=True,
    )


def dataset_is_usable(world: RunWorld) -> Refusal | None:
    """Inspection must have read it to the end."""
    dataset = world.catalog.dataset
    if dataset is None:
        return None
    stalled = condition_of(dataset.status.conditions, "Stalled")
    if stalled and stalled.status == "True" and stalled.observed_generation == dataset.generation:
        return Refusal(
            Reason.DATASET_INVALID, f"spec.lora.dataset: Dataset {dataset.name} can't be used: {stalled.message}"
        )
    if world.spec.base_model not in dataset.spec.base_models:
        return Refusal(
            Reason.DATASET_NOT_COUNTED,
            f"spec.lora.dataset: Dataset {dataset.name} is counted for {', '.join(dataset.spec.base_models)}, found baseModel "
            f"{world.spec.base_model}; add it to the Dataset's spec.baseModels",
            pending=True,
        )
    if inspection_of(world) is None:
        ready = condition_of(dataset.status.conditions, "Ready")
        # What holds the inspection up is worth a word; that it goes on is not.
        why = f": {ready.message}" if ready and ready.reason not in (Reason.INSPECTING, Reason.INSPECTED) else ""
        return Refusal(
            Reason.DATASET_PENDING, f"spec.lora.dataset: Dataset {dataset.name} is being inspected{why}", pending=True
        )
    return None


def inspection_of(world: RunWorld) -> Inspection | None:
    """Return what the run's base counted in the run's data set, at the base's own revision."""
    dataset, base = world.catalog.dataset, world.catalog.base
    if dataset is None or base is None:
        return None
    return next(
        (i for i in dataset.status.inspections if i.base_model == base.name and i.revision == base.spec.revision), None
    )


def rows_fit_the_base(world: RunWorld) -> Refusal | None:
    """Rows are never cut silently."""
    lora, base, found = world.spec.lora, world.catalog.base, inspection_of(world)
    if lora is None or base is None or found is None:
        return None
    context = base.spec.context_length
    if lora.max_length is not None and lora.max_length > context:
        return Refusal(
            Reason.ROW_TOO_LONG,
            f"spec.lora.maxLength: found {lora.max_length}, more than {base.name}'s context of {context} tokens; lower it",
        )
    limit = lora.max_length or context
    if (lora.overlength or "refuse") != "refuse" or found.longest_row <= limit:
        return None
    return Refusal(
        Reason.ROW_TOO_LONG,
        f"spec.lora.dataset: the longest row has {found.longest_row} tokens, more than the {limit} that fit; raise spec.lora.maxLength "
        f"(at most {context}), shorten the rows, or set spec.lora.overlength to drop or truncate",
    )


def adapter_name_is_free(world: RunWorld) -> Refusal | None:
    """The adapter gets the run's name; one that another run made is never overwritten."""
    adapter = world.catalog.adapter
    if adapter is None or adapter.run_uid == world.meta.uid:
        return None
    return Refusal(
        Reason.ADAPTER_NAME_TAKEN,
        f"metadata.name: found {adapter.name!r}, but an Adapter of that name was made by another run; choose another name, or delete that Adapter",
    )


ADMISSION: tuple[Check, ...] = (
    base_is_available,
    base_model_is_known,
    base_model_offers_it,
    gpu_class_is_known,
    trainer_is_available,
    gpus_fill_their_nodes,
    gpus_divide_the_batch,
    adapter_name_is_free,
    dataset_is_there,
    dataset_is_usable,
    rows_fit_the_base,
)
