"""Checks of the catalog: is there such a base and GPU class, and does the base offer what is asked."""

from __future__ import annotations

from halo_api.conditions import Reason
from halo_operator.plan.refusal import Refusal, listed
from halo_operator.plan.world import RunWorld


def spec_has_its_part(world: RunWorld) -> Refusal | None:
    """The schema says it too, unless the CRDs are of another version than the operator."""
    spec = world.spec
    parts = (
        ("lora_trl", "spec.lora", spec.lora),
        ("halo_rlvr", "spec.rlvr", spec.rlvr),
        ("halo_rft", "spec.rft", spec.rft),
    )
    missing = [field for base, field, found in parts if base == spec.base and found is None]
    # halo_rft takes a few settings of spec.lora too.
    apart = {spec.base, "lora_trl"} if spec.base == "halo_rft" else {spec.base}
    extra = [field for base, field, found in parts if base not in apart and found is not None]
    if spec.base == "lora_trl" and spec.lora is not None and spec.lora.dataset is None:
        missing.append("spec.lora.dataset")
    if not missing and not extra:
        return None
    words = [*(f"no {field}" for field in missing), *extra]
    return Refusal(
        Reason.INVALID_SPEC,
        f"spec: found base {spec.base} with {' and '.join(words)}; mend that, and upgrade the CRDs, which should have said so",
    )


def fine_tuning_is_on(world: RunWorld) -> Refusal | None:
    """A namespace without the feature answers as if there were no such API."""
    if world.catalog.workspace.spec.features.fine_tuning:
        return None
    return Refusal(
        Reason.FEATURE_OFF,
        f"spec: found a run in namespace {world.meta.namespace}, whose Workspace has features.fineTuning: false; set it to true, or use another namespace",
        code=404,
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


def base_model_offers_the_method(world: RunWorld) -> Refusal | None:
    """The catalog says by which methods a base is fine-tuned on a data set."""
    base, lora = world.catalog.base, world.spec.lora
    if base is None or lora is None or world.spec.base != "lora_trl":
        return None
    method = lora.method or "sft"
    if method in base.spec.methods:
        return None
    return Refusal(
        Reason.BASE_NOT_OFFERED,
        f"spec.lora.method: {base.name} offers {', '.join(base.spec.methods)}, found {method}; use one of those or another base model",
    )


def weights_stay_frozen(world: RunWorld) -> Refusal | None:
    """No base offers training of its own weights."""
    if world.spec.trainable == "lora":
        return None
    return Refusal(
        Reason.BASE_NOT_OFFERED, "spec.trainable: found full, which no base model offers yet; use lora, or leave it out"
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


def adapter_name_is_free(world: RunWorld) -> Refusal | None:
    """The adapter gets the run's name; one that another run made is never overwritten."""
    adapter = world.catalog.adapter
    if adapter is None or adapter.run_uid == world.meta.uid:
        return None
    return Refusal(
        Reason.ADAPTER_NAME_TAKEN,
        f"metadata.name: found {adapter.name!r}, but an Adapter of that name was made by another run; choose another name, or delete that Adapter",
    )


def trainer_fits(world: RunWorld) -> Refusal | None:
    """Where spec.lora.trainer is unset the base's default trainer decides; the schema has refused an explicit misfit."""
    base, lora = world.catalog.base, world.spec.lora
    if base is None or lora is None or world.spec.base != "lora_trl":
        return None
    trainer = lora.trainer or base.spec.default_trainer
    found = f"found trainer {trainer}, " + ("" if lora.trainer else f"the default of {base.name}, ")
    if lora.method == "dpo" and trainer != "TRL":
        return Refusal(Reason.TRAINER_UNFIT, f"spec.lora.method: {found}which has no dpo; set spec.lora.trainer: TRL")
    asked = {
        "spec.lora.bundle": lora.bundle,
        "spec.lora.packing": lora.packing or None,
        "spec.contextParallel": world.spec.context_parallel,
    }
    for field, value in asked.items():
        if value is not None and trainer != "Halo":
            return Refusal(
                Reason.TRAINER_UNFIT, f"{field}: {found}which has none; set spec.lora.trainer: Halo, or remove it"
            )
    return None


CATALOG = (
    spec_has_its_part,
    fine_tuning_is_on,
    base_model_is_known,
    base_model_offers_it,
    base_model_offers_the_method,
    weights_stay_frozen,
    gpu_class_is_known,
    trainer_fits,
    adapter_name_is_free,
)
