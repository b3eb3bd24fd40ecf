"""Metrics under controller-runtime's names, so that existing dashboards work; never a run's name in a label."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from halo_operator.queue import Key, WorkQueue

RECONCILES = Counter("controller_runtime_reconcile", "Reconciles", ["controller", "result"])
SECONDS = Histogram("controller_runtime_reconcile_time_seconds", "Seconds a reconcile took", ["controller"])
DEPTH = Gauge("workqueue_depth", "Keys waiting for a worker", ["name"])
ADMISSIONS = Counter("halo_admission_reviews", "Reviews that the webhook was asked for", ["kind", "result"])
ADMISSION_SECONDS = Histogram("halo_admission_review_seconds", "Seconds until the webhook answered")
LEADER = Gauge("leader_election_master_status", "1 while this replica leads", ["name"])


def observe(queue: WorkQueue) -> None:
    """Count every reconcile of the queue."""

    def record(key: Key, seconds: float, failed: bool) -> None:
        RECONCILES.labels(key.kind.lower(), "error" if failed else "success").inc()
        SECONDS.labels(key.kind.lower()).observe(seconds)

    queue.observe = record
    DEPTH.labels("halo").set_function(lambda: len(queue))
