"""Lays a run's GPUs out over nodes: one trainer pod a node, all alike, and one pod a rollout server."""

from __future__ import annotations

from halo_api.run_status import RolloutServer, Topology
from halo_operator.plan.checks.layout import context_group
from halo_operator.plan.split import split_of
from halo_operator.plan.world import RunWorld


def topology(gpus: int, per_node: int) -> Topology:
    """Return the layout of the GPUs that train; above one node, `gpus` is a multiple of `per_node` (a check says so)."""
    nodes, each = (1, gpus) if gpus <= per_node else (gpus // per_node, per_node)
    return Topology(nodes=nodes, gpus_per_node=each, trainer_gpus=gpus)


def layout_of(world: RunWorld) -> Topology:
    """Return the whole layout of a run that the checks have accepted."""
    split = split_of(world)
    trainers = topology(split.trainer, world.catalog.gpu.spec.per_node if world.catalog.gpu else split.trainer)
    servers = split.replicas if split.rollout else 0
    group = context_group(world) or 1
    return trainers.model_copy(
        update={
            "rollout": [RolloutServer(server=n, gpus=split.rollout // servers) for n in range(servers)],
            "context_parallel": group if group > 1 else None,
            "groups": split.trainer // group if group > 1 else None,
        }
    )
