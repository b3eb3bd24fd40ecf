"""Lets go of everything before an uninstall: without an operator nobody would ever remove the finalizers.

Runs go on to their end without an operator and keep their outcome as termination message; they can be deleted at any time.
Holds stay in the Workspace's status: an operator that is installed again goes on from there.
"""

from __future__ import annotations

import logging

from halo_operator.cluster import Cluster, Conflict, NotFound, Object
from halo_operator.finalizers import change, removing
from halo_operator.plan.names import HOLD_FINALIZER, METERED_FINALIZER, RUN_LABEL

log = logging.getLogger(__name__)

TRIES = 5
HELD_KINDS = ("TrainingJob", "GrpoRun", "Workspace")


async def release_all(cluster: Cluster, namespaces: tuple[str, ...]) -> int:
    """Remove our finalizers from every pod, run and Workspace, and return how many pods there were."""
    count = 0
    for namespace in namespaces or (None,):
        for pod in await cluster.list_all("Pod", namespace, labels=RUN_LABEL):
            count += await let_go(cluster, pod, METERED_FINALIZER)
    held = 0
    for namespace in namespaces or (None,):
        for kind in HELD_KINDS:
            for body in await cluster.list_meta(kind, namespace):
                held += await let_go(cluster, body, HOLD_FINALIZER)
    log.info("released %d pods, and %d runs and Workspaces with open holds", count, held)
    return count


async def let_go(cluster: Cluster, body: Object, finalizer: str) -> bool:
    """Remove a finalizer from exactly this object; return whether it had it."""
    found: Object | None = body
    for _ in range(TRIES):
        if found is None or not (operations := removing(found, finalizer)):
            return False
        try:
            await change(cluster, found, operations)
        except NotFound:
            return False
        except Conflict:
            # Its finalizers are others by now, or it is another object, which nobody holds any more.
            found = await cluster.get(body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])
        else:
            return True
    raise Conflict(409, f"{body['kind']} {body['metadata']['name']} changes all the time")
