"""Metrics under controller-runtime's names, so that existing dashboards work, and of money; never a run's name in a label.

Amounts are floats here, as Prometheus has nothing else; what is exact stands in the Workspace and its LedgerPages.
"""

from __future__ import annotations

from contextlib import suppress

from prometheus_client import Counter, Gauge, Histogram

from halo_api.conditions import ConditionType, Reason, condition_of
from halo_api.training_job import TrainingJobSpec, TrainingJobStatus
from halo_api.workspace import WorkspaceStatus
from halo_operator.plan import money
from halo_operator.plan.book.world import BookPlan, BookWorld
from halo_operator.plan.claim import outcome_of
from halo_operator.plan.stopping import overrun_seconds
from halo_operator.queue import Key, WorkQueue

RECONCILES = Counter("controller_runtime_reconcile", "Reconciles", ["controller", "result"])
SECONDS = Histogram("controller_runtime_reconcile_time_seconds", "Seconds a reconcile took", ["controller"])
DEPTH = Gauge("workqueue_depth", "Keys waiting for a worker", ["name"])
ADMISSIONS = Counter("halo_admission_reviews", "Reviews that the webhook was asked for", ["kind", "result"])
ADMISSION_SECONDS = Histogram("halo_admission_review_seconds", "Seconds until the webhook answered")
LEADER = Gauge("leader_election_master_status", "1 while this replica leads", ["name"])

T = ConditionType
OF_A_BOOK = ["namespace", "unit"]
BOOK = {
    "credit": Gauge("halo_workspace_credit", "All that was ever paid in or granted", OF_A_BOOK),
    "held": Gauge("halo_workspace_held", "The sum of the open holds", OF_A_BOOK),
    "spent": Gauge("halo_workspace_spent", "The sum of what was ever charged", OF_A_BOOK),
    "balance": Gauge("halo_workspace_balance", "What is free: credit less held less spent", OF_A_BOOK),
}
PLACED = Counter("halo_holds_placed", "Holds placed or raised", ["unit"])
REFUSED_HOLDS = Counter("halo_holds_refused", "Holds and raises for which too little was free", ["unit"])
CHARGED = Counter("halo_charged", "The sum of the charges since the operator started, in their unit", ["unit"])
REFUSED_RUNS = Counter("halo_runs_refused", "Runs that were refused, by reason", ["kind", "reason"])
BUDGET_STOPS = Counter("halo_budget_stops", "Runs that were stopped at their budget")
VERIFICATIONS = Counter(
    "halo_adapter_verifications", "Verifications of adapters that ended, by what they found", ["reason"]
)
OVERRUN = Histogram(
    "halo_overrun_seconds",
    "Seconds that a run went on beyond its budget, which are not charged",
    buckets=(0, 1, 2, 5, 10, 15, 30, 45, 60, 90, 120, 300, 900),
)


def observe(queue: WorkQueue) -> None:
    """Count every reconcile of the queue."""

    def record(key: Key, seconds: float, failed: bool) -> None:
        RECONCILES.labels(key.kind.lower(), "error" if failed else "success").inc()
        SECONDS.labels(key.kind.lower()).observe(seconds)

    queue.observe = record
    DEPTH.labels("halo").set_function(lambda: len(queue))


def book(namespace: str, status: WorkspaceStatus) -> None:
    """Show a Workspace's book as its status has it."""
    found: dict[str, dict[str, str]] = {}
    if status.balance is not None:
        found["USD"] = {"balance": status.balance, "held": status.held or "0", "spent": status.spent or "0"}
    if (use := status.allocation) is not None:
        found["H100Hours"] = {"balance": use.balance, "held": use.held, "spent": use.spent}
    for unit in ("USD", "H100Hours"):
        if unit not in found:
            _hide(namespace, unit)
            continue
        amounts = {name: money.micro(amount) for name, amount in found[unit].items()}
        for name, amount in (amounts | {"credit": sum(amounts.values())}).items():
            BOOK[name].labels(namespace, unit).set(amount / money.MICRO)


def no_book(namespace: str) -> None:
    """Show nothing more of a Workspace that is gone."""
    for unit in ("USD", "H100Hours"):
        _hide(namespace, unit)


def booked(world: BookWorld, plan: BookPlan) -> None:
    """Count what a plan of a book decided, once it is written."""
    for wish in plan.placed:
        PLACED.labels(wish.unit).inc()
    for wish in plan.refused:
        REFUSED_HOLDS.labels(wish.unit).inc()
    for end in plan.charged:
        if hold := world.status.holds.get(end.run.uid):
            CHARGED.labels(hold.unit).inc(min(end.used, money.micro(hold.amount)) / money.MICRO)


def ended(kind: str, spec: TrainingJobSpec, status: TrainingJobStatus) -> None:
    """Count how a run ended: refused, or stopped at its budget."""
    ready, failed = condition_of(status.conditions, T.READY), condition_of(status.conditions, T.FAILED)
    if ready and failed and ready.reason == Reason.REFUSED:
        refused(kind, failed.reason)
    elif outcome_of(status) in (Reason.BUDGET_REACHED, Reason.BUDGET_BEFORE_FIRST_CHECKPOINT):
        stopped_at_budget(overrun_seconds(spec, status))


def refused(kind: str, reason: str) -> None:
    """Count a run that was refused for good."""
    REFUSED_RUNS.labels(kind, reason).inc()


def stopped_at_budget(overrun_seconds: float) -> None:
    """Count a run that was stopped at its budget, and by how much it went beyond."""
    BUDGET_STOPS.inc()
    OVERRUN.observe(max(overrun_seconds, 0.0))


def _hide(namespace: str, unit: str) -> None:
    for gauge in BOOK.values():
        with suppress(KeyError):
            gauge.remove(namespace, unit)
