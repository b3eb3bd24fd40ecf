"""Lets go of every pod before an uninstall: without an operator nobody would ever remove the finalizer that keeps outcomes.

Runs go on to their end without an operator and keep their outcome as termination message; they can be deleted at any time.
"""

from __future__ import annotations

import logging

from halo_operator.cluster import Cluster, NotFound, Object
from halo_operator.plan.names import METERED_FINALIZER, RUN_LABEL

log = logging.getLogger(__name__)


async def release_all(cluster: Cluster, namespaces: tuple[str, ...]) -> int:
    """Remove our finalizer from every pod of a run and return how many there were."""
    count = 0
    for namespace in namespaces or (None,):
        for pod in await cluster.list_all("Pod", namespace, labels=RUN_LABEL):
            operations = letting_go(pod)
            if not operations:
                continue
            try:
                await cluster.patch("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"], operations)
            except NotFound:
                continue
            count += 1
    log.info("released %d pods", count)
    return count


def letting_go(pod: Object) -> list[Object]:
    """Return the JSON patch that removes our finalizer from exactly this pod, or nothing when it has none."""
    finalizers = pod["metadata"].get("finalizers", [])
    if METERED_FINALIZER not in finalizers:
        return []
    path = f"/metadata/finalizers/{finalizers.index(METERED_FINALIZER)}"
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod["metadata"]["uid"]},
        {"op": "test", "path": path, "value": METERED_FINALIZER},
        {"op": "remove", "path": path},
    ]
