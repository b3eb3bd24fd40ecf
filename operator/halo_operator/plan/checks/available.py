"""What is in the API and not built yet: an otherwise good job is refused until it is. This check comes last."""

from __future__ import annotations

from collections.abc import Iterator

from halo_api.conditions import Reason
from halo_operator.plan.refusal import Refusal
from halo_operator.plan.world import RunWorld


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
    if spec.base != "lora_trl":
        yield f"spec.base: found {spec.base}, which this version does not train yet; use lora_trl"
    if base is not None and not base.spec.source.startswith("pvc://"):
        yield f"spec.baseModel: the weights of {base.name} are at {base.spec.source}, found no pvc:// source, and this version reads no other yet; put them on a claim"
