"""What a run's first trainer pod is told about Weights & Biases: where to, under which name, and the key, from a Secret."""

from __future__ import annotations

from halo_api.run_file import WandbPlan
from halo_api.run_status import Frozen
from halo_api.tracking import API_KEY_VARIABLE
from halo_operator.plan.world import Meta, Object


def wandb_plan(meta: Meta, frozen: Frozen) -> WandbPlan | None:
    """Return where the run's metrics go: one run of W&B's for all attempts."""
    wandb = frozen.tracking.wandb if frozen.tracking else None
    if wandb is None:
        return None
    return WandbPlan(
        project=wandb.project,
        entity=wandb.entity,
        base_url=wandb.base_url,
        id=meta.uid,
        name=f"{meta.namespace}/{meta.name}",
        secret=f"{wandb.secret_name}, key {wandb.secret_key}",
    )


def wandb_key(frozen: Frozen, rank: int) -> list[Object]:
    """Return the variable of the API key for the pod that has rank 0; optional, so that no run waits for a Secret."""
    wandb = frozen.tracking.wandb if frozen.tracking else None
    if wandb is None or rank:
        return []
    reference = {"name": wandb.secret_name, "key": wandb.secret_key, "optional": True}
    return [{"name": API_KEY_VARIABLE, "valueFrom": {"secretKeyRef": reference}}]
