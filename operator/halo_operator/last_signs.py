"""Looks up the last sign of life of pods whose node tells no more of them: metering ends there."""

from __future__ import annotations

from datetime import datetime

from halo_api.training_job import TrainingJobStatus
from halo_operator.cluster import Cluster, Object, Rejected
from halo_operator.plan.pod_view import all_of, heartbeat_of, parse_time
from halo_operator.plan.world import PodView
from halo_operator.reports import Reports

HEARTBEATS = "kube-node-lease"


async def views_of(
    cluster: Cluster, reports: Reports, pods: list[Object], status: TrainingJobStatus, now: datetime
) -> tuple[PodView, ...]:
    """Return the pods' facts; one on a lost node ended with its last report or the node's last heartbeat, whichever is later.

    Of a report that another process took, before a restart, the status tells.
    """
    views = all_of(pods, now)
    signs = {}
    for view in views:
        if not (view.lost and view.metered):
            continue
        # No lease, or no right to read it: what the pod's own status shows is taken then.
        lease = await _heartbeat(cluster, view.node) if view.node else None
        server = view.ref.name if view.role == "rollout" else ""
        written = status.progress if view.attempt == status.attempt and not server else None
        heard = [
            heartbeat_of(lease, view) if lease else None,
            reports.heard(view.run_uid or "", view.attempt, server)
            or parse_time(written.updated_at if written else None),
        ]
        if known := [time for time in heard if time]:
            signs[view.ref.uid] = max(known)
    return all_of(pods, now, signs) if signs else views


async def _heartbeat(cluster: Cluster, node: str) -> Object | None:
    try:
        return await cluster.get("Lease", HEARTBEATS, node)
    except Rejected:
        return None
