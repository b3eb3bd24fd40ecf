"""What is in the API and not built yet: an otherwise good job is refused until it is. This check comes last."""

from __future__ import annotations

from collections.abc import Iterator

from halo_api.conditions import Reason
from halo_operator.plan.refusal import Refusal
from halo_operator.plan.world import RunWorld

# The recipes whose environment, objective and way of sampling are built.
RLVR_RECIPES = ("sql_v2", "sql_v3", "sql_v4_dapo_sync", "sql_v4_dapo_sync_lora")


def everything_is_built(world: RunWorld) -> Refusal | None:
    """The first thing that this version can't do yet speaks."""
    field = next(missing(world), None)
    return Refusal(Reason.NOT_YET_AVAILABLE, field) if field else None


def missing(world: RunWorld) -> Iterator[str]:
    """Yield what this version can't do of what is asked, in words."""
    spec, base = world.spec, world.catalog.base
    if rlvr := spec.rlvr:
        for name, phase in (("warmup", rlvr.warmup), ("retention", rlvr.retention), ("judge", rlvr.judge)):
            if phase is not None:
                yield f"spec.rlvr.{name}: found one, which this version does not have yet; remove it"
        if rlvr.recipe not in RLVR_RECIPES:
            yield f"spec.rlvr.recipe: found {rlvr.recipe}, which this version does not train yet; use {' or '.join((', '.join(RLVR_RECIPES[:-1]), RLVR_RECIPES[-1]))}"
    if spec.base == "halo_rft":
        yield f"spec.base: found {spec.base}, which this version does not train yet; use lora_trl or halo_rlvr"
    if base is not None and not base.spec.source.startswith("pvc://"):
        yield f"spec.baseModel: the weights of {base.name} are at {base.spec.source}, found no pvc:// source, and this version reads no other yet; put them on a claim"
