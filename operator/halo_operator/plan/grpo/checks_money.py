"""The facts about a GrpoRun's GPUs and money: they can be had, have a price, and the wallet can hold all of it."""

from __future__ import annotations

from halo_api.conditions import Reason
from halo_operator.plan import money
from halo_operator.plan.grpo.commitment import PROVISIONED_GPUS, committed
from halo_operator.plan.grpo.world import GrpoWorld
from halo_operator.plan.refusal import Refusal, listed


def there_is_storage(world: GrpoWorld) -> Refusal | None:
    """Without a place for adapters nothing can be orchestrated."""
    if world.catalog.workspace.spec.storage is not None:
        return None
    return Refusal(
        Reason.STORAGE_NOT_CONFIGURED,
        f"metadata.namespace: found {world.meta.namespace}, whose Workspace has no storage, so that orchestration is not configured; "
        "set spec.storage.claim of the Workspace",
    )


def provisioning_is_configured(world: GrpoWorld) -> Refusal | None:
    """The platform provisions only where it was told to."""
    if not world.spec.auto_provision or world.catalog.workspace.spec.auto_provision:
        return None
    return Refusal(
        Reason.PROVISIONING_NOT_CONFIGURED,
        f"spec.autoProvision: found true, but the Workspace of namespace {world.meta.namespace} has no autoProvision: true; "
        "set spec.platformGpu instead, or ask the platform team",
    )


def gpu_class_is_known(world: GrpoWorld) -> Refusal | None:
    """The GPU type must be one of the cluster's; without one, the run goes only to the user's own compute."""
    names, wanted = [gpu.name for gpu in world.catalog.gpus], world.spec.platform_gpu
    if wanted is not None:
        if wanted.gpu_type in names:
            return None
        return Refusal(
            Reason.UNKNOWN_GPU_CLASS,
            f"spec.platformGpu.gpuType: found {wanted.gpu_type!r}, which is no GpuClass of this cluster (kubectl get gpuclasses); "
            f"{listed(wanted.gpu_type, names)}",
        )
    if world.spec.auto_provision or any(gpu.spec.byo for gpu in world.catalog.gpus):
        return None
    return Refusal(
        Reason.UNKNOWN_GPU_CLASS,
        "spec.platformGpu: found none, so that the run needs compute of your own, but no GpuClass has byo: true; "
        "set spec.platformGpu, or mark a GpuClass",
    )


def gpu_has_a_price(world: GrpoWorld) -> Refusal | None:
    """What is billed has a price before it starts."""
    if committed(world.spec, world.catalog.gpus):
        return None
    wanted = world.spec.platform_gpu
    if wanted is None:
        return Refusal(
            Reason.NO_PRICE,
            "spec.autoProvision: found true, but no GpuClass has an active price; set prices of a GpuClass",
        )
    regions = sorted(
        price.region
        for gpu in world.catalog.gpus
        if gpu.name == wanted.gpu_type and not gpu.spec.byo
        for price in gpu.spec.prices
        if price.active
    )
    where = f"it has one in {', '.join(regions[:10])}" if regions else f"{wanted.gpu_type} has none in any region"
    return Refusal(
        Reason.NO_PRICE,
        f"spec.platformGpu.region: found {wanted.region!r}, but no price is set for {wanted.gpu_type} there; {where}",
    )


def there_is_a_wallet(world: GrpoWorld) -> Refusal | None:
    """Both budgets are held on it; what is held stays held, also when the wallet is taken away."""
    workspace = world.catalog.workspace
    if workspace.free_usd is not None or world.meta.uid in workspace.status.holds:
        return None
    return Refusal(
        Reason.NO_WALLET,
        f"metadata.namespace: found {world.meta.namespace}. No wallet for this workspace; set spec.wallet.creditUsd of the Workspace",
    )


def wallet_covers_it(world: GrpoWorld) -> Refusal | None:
    """The whole commitment is held at the start, so that no budget can fail half way."""
    free, found = world.catalog.workspace.free_usd, committed(world.spec, world.catalog.gpus)
    if world.meta.uid in world.catalog.workspace.status.holds:
        return None
    if free is None or found is None or found.total <= free * money.MICRO:
        return None
    ceiling = f" ({PROVISIONED_GPUS} GPUs at the highest active rate)" if found.basis == "autoProvision" else ""
    return Refusal(
        Reason.INSUFFICIENT_FUNDS,
        f"spec.gpuHourBudget: found {money.usd(found.gpu)} USD of GPU time{ceiling} and spec.rewardBudgetUsd {money.usd(found.reward)} USD, "
        f"in all {money.usd(found.total)} USD, but the wallet has {money.plain(free)} USD free; lower a budget, or top up the wallet",
        code=402,
    )


def workspace_stays(world: GrpoWorld) -> Refusal | None:
    """A Workspace that is being deleted waits for its holds, and takes no new ones."""
    workspace = world.catalog.workspace
    if not workspace.deleting or world.meta.uid in workspace.status.holds:
        return None
    return Refusal(
        Reason.HOLD_PENDING,
        f"metadata.namespace: found {world.meta.namespace}, whose Workspace is being deleted and holds nothing new; "
        "wait until it is gone, or make another one",
        pending=True,
    )
