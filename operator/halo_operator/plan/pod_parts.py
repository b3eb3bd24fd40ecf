"""The parts that the pods of trainers and of rollout servers share: their GPUs, where they may run, the adapter that both read."""

from __future__ import annotations

import re

from halo_api.run_file import ParentPlan
from halo_api.run_status import Frozen, FrozenParent
from halo_operator.plan.world import Object

DEFAULT_TAINT_SECONDS = 60


def parent_plan(parent: FrozenParent) -> ParentPlan:
    """Return what the trainer starts from, with what it must find there."""
    return ParentPlan(name=parent.name, uri=parent.uri, digest=parent.digest, files=parent.files)


def gpu_placement(frozen: Frozen) -> Object:
    """Return where a pod with GPUs may run."""
    return {
        "nodeSelector": frozen.gpu.node_selector,
        "tolerations": [t.to_json() for t in frozen.gpu.tolerations] + lost_node_tolerations(),
    }


def gpu_resources(frozen: Frozen, gpus: int) -> Object:
    """Return the requests and limits of a pod with so many GPUs; memory is limited at what it asks for."""
    memory = times(frozen.gpu.per_gpu.memory, gpus)
    gpu = {frozen.gpu.resource_name: str(gpus)}
    return {
        "requests": {"cpu": times(frozen.gpu.per_gpu.cpu, gpus), "memory": memory, **gpu},
        "limits": {"memory": memory, **gpu},
    }


def times(quantity: str, count: int) -> str:
    """Return a Kubernetes quantity multiplied by a whole number."""
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", quantity)
    if found is None:
        raise ValueError(f"{quantity!r} is no quantity")
    number = float(found[1]) * count
    return f"{number:g}{found[2]}" if not number.is_integer() else f"{int(number)}{found[2]}"


def lost_node_tolerations() -> list[Object]:
    """Return the tolerations that let a lost node's pods go after a minute: a run has checkpoints, it need not wait five."""
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": DEFAULT_TAINT_SECONDS}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    ]
