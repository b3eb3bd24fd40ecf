"""Lays a run's GPUs out over nodes: one trainer pod a node, all alike."""

from __future__ import annotations

from halo_api.run_status import Topology


def topology(gpus: int, per_node: int) -> Topology:
    """Return the layout of `gpus` GPUs; above one node, `gpus` must be a multiple of `per_node` (a check says so)."""
    if gpus <= per_node:
        return Topology(nodes=1, gpus_per_node=gpus)
    return Topology(nodes=gpus // per_node, gpus_per_node=per_node)
