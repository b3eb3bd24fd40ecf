"""Splits a run's GPUs into those that train and those that serve rollouts, and long rows over the ones that train."""

from __future__ import annotations

import math
from dataclasses import dataclass

from halo_operator.plan.world import RunWorld

# A row that is not longer trains whole on one GPU; a longer one is split in pieces of at most this many tokens.
WHOLE_ROW = 32_768
GROUPS = (2, 4, 8)


@dataclass(frozen=True)
class Split:
    """How the GPUs of a run are used; `because` says where an unset number of rollout GPUs came from."""

    count: int
    rollout: int = 0
    replicas: int = 1
    because: str = ""

    @property
    def trainer(self) -> int:
        """GPUs that train."""
        return self.count - self.rollout

    @property
    def arithmetic(self) -> str:
        """The sum, as a refusal shows it."""
        return f"gpu.count {self.count} - rolloutGpus {self.rollout}{self.because} = {self.trainer} to train"


def split_of(world: RunWorld) -> Split:
    """Return the split that the spec asks for, with what is unset taken from the base or the Workspace."""
    count, rlvr, base = world.spec.gpu.count, world.spec.rlvr, world.catalog.base
    if rlvr is None:
        return Split(count)
    if rlvr.rollout_gpus is not None:
        return Split(count, rlvr.rollout_gpus, rlvr.rollout_replicas)
    if base is not None and base.spec.gpus > 1:
        return Split(count, base.spec.gpus, rlvr.rollout_replicas, f" (unset: {base.name}'s gpus)")
    workspace = world.catalog.workspace
    because = " (unset: the Workspace's pipeline.rolloutGpus)" if workspace.exists else " (unset)"
    return Split(count, workspace.spec.pipeline.rollout_gpus, rlvr.rollout_replicas, because)


def group_for(longest_row: int) -> int | None:
    """Return how many GPUs share a row of that many tokens; None when it would take more than there can be."""
    if longest_row <= WHOLE_ROW:
        return 1
    needed = math.ceil(longest_row / WHOLE_ROW)
    return next((group for group in GROUPS if group >= needed), None)
