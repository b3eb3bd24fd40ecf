"""A run's money on the real API server: held before it starts, charged by its pods' own times, raised, and let go of."""

from __future__ import annotations

import re
import urllib.request
from datetime import timedelta
from pathlib import Path

import pytest

from halo_api.report import Deadline
from halo_api.run_file import DEADLINE_ANNOTATION
from halo_operator.plan.names import HOLD_FINALIZER
from tests.api import pods
from tests.api.audit import AuditLog
from tests.api.client import Object
from tests.api.kube import Kubectl
from tests.api.operator_process import OperatorProcess, training_job
from tests.api.pods import checkpoint, report, run_file, trained
from tests.api.stage import Stage
from tests.api.test_cli_ledger import Halo

pytestmark = pytest.mark.api

BUDGET = {"h100Hours": 0.5}
BUDGET_SECONDS = 1800.0
HEARTBEATS = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def funded(stage: Stage, hours: float = 10) -> None:
    """A shared allocation of which each run takes its share, and a data set."""
    stage.grant(allocation={"h100Hours": hours})
    stage.inspected_dataset()


def gone(stage: Stage, name: str = "run") -> bool:
    return stage.api.get(stage.path("trainingjobs", name)) is None


def finalizers(stage: Stage, name: str = "run") -> list[str]:
    return list(stage.run(name)["metadata"].get("finalizers", []))


def deadline(stage: Stage, pod: Object) -> Deadline:
    """What the pod's annotation tells it now."""
    there = stage.api.request("GET", pods.path_of(pod))
    return Deadline.model_validate_json(there["metadata"]["annotations"][DEADLINE_ANNOTATION])


def to_train(stage: Stage, seconds: float) -> float:
    """Of so many seconds, those that the role may train: the rest is set aside for publishing."""
    phases = stage.status()["estimate"]["phases"]
    return round(seconds - next(float(p["seconds"]) for p in phases if p["name"] == "publish"), 3)


def hours(seconds: float) -> str:
    """So many seconds of one GPU as they are charged: in millionths of an hour, rounded up."""
    micro = -(-int(seconds * 1000) * 1000 // 3600)
    return f"{micro / 1_000_000:.6f}".rstrip("0").rstrip(".")


# --- one run


def test_a_run_is_held_before_it_starts_and_charged_by_its_pod_s_own_times(
    stage: Stage, operator: OperatorProcess, installed_chart: Kubectl, tmp_path: Path
) -> None:
    funded(stage)
    log = AuditLog(installed_chart.kubeconfig)
    pod = stage.start(budget=BUDGET)
    assert stage.held() == {"run": "0.5"}
    assert finalizers(stage) == [HOLD_FINALIZER]
    assert (stage.condition("Reserved")["status"], stage.condition("Reserved")["reason"]) == ("True", "BudgetHeld")
    done = [f"{e.verb} {e.resource}" for e in log.entries() if e.namespace == stage.namespace and e.stored]
    wanted = ("patch trainingjobs", "update workspaces/status", "update trainingjobs/status", "create pods")
    assert [what for what in done if what in wanted] == list(wanted)
    assert columns(stage) == {"balance": "9.5", "held": "0.5", "spent": "0"}
    pods.run(stage.node, pod)
    stage.until_state("Running")
    pods.finish(stage.node, pod, trained(pod), after=754)
    stage.until_state("Succeeded")
    stage.until(lambda: finalizers(stage) == [], "its finalizer is gone")
    assert stage.entries() == [("run", hours(754), "Succeeded")]
    assert columns(stage) == {"balance": "9.790555", "held": "0", "spent": "0.209445"}
    usage = stage.status()["usage"]
    assert (usage["gpuSeconds"], usage["settlement"]["charged"]) == ({"trainer": "754"}, "0.209445")
    told = {e["reason"]: e["note"] for e in stage.events()}
    assert told["BudgetHeld"].startswith("0.5 H100-hours are held")
    assert told["Charged"] == "0.209445 of 0.5 H100-hours are charged, 0.290555 released"
    check = Halo(stage, tmp_path)("--check")
    assert (check.returncode, check.stdout) == (0, "adds up: 1 entry, 0 pages and 0 open holds\n")
    shown = metrics(operator)
    label = f'{{namespace="{stage.namespace}",unit="H100Hours"}}'
    assert [shown[f"halo_workspace_{what}{label}"] for what in ("held", "spent")] == ["0.0", "0.209445"]
    assert not [line for line in shown if '"run"' in line]


def columns(stage: Stage) -> dict[str, str]:
    """What `kubectl get workspace` says of the allocation."""
    head, line = stage.kubectl("get", "workspace", "-o", "wide").splitlines()
    # Each cell begins where its column's name does, and may be empty.
    found = {name[0]: line[name.start() :].split("  ")[0] for name in re.finditer(r"\S+", head)}
    return {"balance": found["H100-FREE"], "held": found["H100-HELD"], "spent": found["H100-SPENT"]}


def metrics(operator: OperatorProcess) -> dict[str, str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{operator.health_port}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return dict(line.rsplit(" ", 1) for line in lines)


@pytest.mark.parametrize("minutes", [5, -5])
def test_a_node_whose_clock_is_wrong_is_charged_the_same(
    stage: Stage, operator: OperatorProcess, minutes: float
) -> None:
    funded(stage)
    stage.node.ahead = timedelta(minutes=minutes)
    try:
        pod = stage.start(budget=BUDGET)
        pods.run(stage.node, pod)
        stage.until_state("Running")
        pods.finish(stage.node, pod, trained(pod), after=754)
        stage.until(lambda: stage.entries() == [("run", hours(754), "Succeeded")], "it is charged to the second")
    finally:
        stage.node.ahead = timedelta()


@pytest.mark.slow
def test_a_lost_node_is_charged_to_its_last_sign_of_life(stage: Stage, operator: OperatorProcess) -> None:
    funded(stage)
    pod = stage.start(budget=BUDGET, backoffLimit=0)
    pods.run(stage.node, pod)
    stage.push_until_acknowledged(operator, pod, report(pod, 1, step=5, saved=(5,)))
    last = pods.bound_at(stage.pod()) + timedelta(seconds=200)
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": pods.NODE},
        "spec": {"holderIdentity": pods.NODE, "renewTime": last.strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
    }
    stage.node.api.post(HEARTBEATS, lease)
    try:
        stage.api.delete(pods.path_of(pod), gracePeriodSeconds=1)
        stage.until_state("Failed", seconds=120)
        stage.until(lambda: stage.entries() == [("run", hours(200), "BackoffLimitExceeded")], "it is charged")
    finally:
        stage.api.delete(f"{HEARTBEATS}/{pods.NODE}")


def test_a_raise_is_held_first_and_reaches_a_pod_whose_pushes_do_not_arrive(
    stage: Stage, operator: OperatorProcess
) -> None:
    funded(stage, hours=2)
    pod = stage.start(budget=BUDGET)
    pods.run(stage.node, pod)
    stage.until_state("Running")
    assert run_file(pod).deadline == Deadline(sequence=0, remaining_seconds=to_train(stage, BUDGET_SECONDS))
    assert "may only be raised" in raise_to(stage, 0.4, refused=True)
    raise_to(stage, 1.5)
    stage.until(lambda: deadline(stage, pod).sequence > 0, "the annotation tells of the raise")
    assert deadline(stage, pod).remaining_seconds == to_train(stage, 3 * BUDGET_SECONDS)
    assert stage.held() == {"run": "1.5"}
    assert stage.status()["hold"]["raises"] == 1
    first = deadline(stage, pod)
    raise_to(stage, 4)
    short = "for which 2.5 H100-hours more must be held, but 0.5 are free; the run goes on with the 1.5 that it has"
    stage.until(lambda: short in stage.condition("Reserved")["message"], "it says that its raise is not held")
    assert (stage.condition("Reserved")["status"], stage.state()) == ("True", "Running")
    assert (stage.held(), deadline(stage, pod)) == ({"run": "1.5"}, first)
    stage.grant(allocation={"h100Hours": 5})
    stage.until(lambda: deadline(stage, pod).sequence > first.sequence, "the raise is taken up", 120)
    assert deadline(stage, pod).remaining_seconds == to_train(stage, 8 * BUDGET_SECONDS)
    assert (stage.held(), stage.condition("Reserved")["message"]) == ({"run": "4"}, "4 H100-hours are held")


def raise_to(stage: Stage, hours: float, refused: bool = False) -> str:
    change = f'{{"spec": {{"budget": {{"h100Hours": {hours}}}}}}}'
    return (stage.kubectl.refused if refused else stage.kubectl)(
        "patch", "trainingjob", "run", "--type=merge", "-p", change
    )


# --- deletions

STATES = ("waiting", "queued", "running", "suspended", "over")


def in_every_state(stage: Stage) -> Object:
    """A run in each state that one may be deleted in; return the pod of the one that runs, which does not end by itself."""
    funded(stage)
    stage.create(training_job(stage.base, "waiting", budget=BUDGET, lora={"dataset": "later"}))
    pod = stage.start("over", budget=BUDGET)
    pods.finish(stage.node, pod, trained(pod), after=36)
    # Its adapter is published, and verified, before no pod finds a node any more.
    stage.until_state("Succeeded", "over")
    verifies = stage.verify_pod("over")
    pods.finish(stage.node, verifies, pods.verified(stage.api.request("GET", stage.path("adapters", "over"))))
    pod = stage.start("suspended", budget=BUDGET)
    pods.run(stage.node, pod)
    stage.until_state("Running", "suspended")
    stage.api.patch(stage.path("trainingjobs", "suspended"), {"spec": {"suspend": True}})
    stage.until_stopping(pod)
    pods.stopped(stage.node, pod, checkpoint(pod, 7), after=72)
    running = stage.start("running", budget=BUDGET)
    pods.run(stage.node, running)
    cordon(stage, True)
    stage.start("queued", budget=BUDGET)
    for name, state in zip(STATES, ("Waiting", "Queued", "Running", "Suspended", "Succeeded"), strict=True):
        stage.until_state(state, name)
    stage.until(lambda: set(stage.held()) == {"queued", "running", "suspended"}, "three holds are open")
    return running


def owners(stage: Stage) -> list[str]:
    """The runs of which there are pods; that of an adapter, which outlives its run, is not the run's."""
    found = [p["metadata"]["annotations"]["halo.training/owner"].split("/") for p in stage.all_pods()]
    return sorted({name for kind, name in found if kind != "Adapter"})


def cordon(stage: Stage, closed: bool) -> None:
    stage.api.patch(f"/api/v1/nodes/{pods.NODE}", {"spec": {"unschedulable": closed or None}})


@pytest.mark.parametrize("cascade", ["foreground", "background", "orphan"])
def test_a_run_is_deleted_in_any_state_and_its_hold_becomes_what_it_used(
    stage: Stage, operator: OperatorProcess, tmp_path: Path, cascade: str
) -> None:
    try:
        stuck = in_every_state(stage)
        stage.kubectl("delete", "trainingjob", *STATES, f"--cascade={cascade}", "--wait=false")
        stage.until(lambda: all(gone(stage, name) for name in STATES if name != "running"), "all but the stuck one go")
        stage.until_stopping(stuck)
        assert set(stage.held()) == {"running"}
        assert finalizers(stage, "running").count(HOLD_FINALIZER) == 1
        pods.end(stage.node, stuck, 137, after=108)
        stage.until(lambda: gone(stage, "running"), "the stuck one goes once it was killed")
        left = ["over"] if cascade == "orphan" else []
        stage.until(lambda: owners(stage) == left, "no pod is left but one that ended before and was orphaned")
    finally:
        cordon(stage, False)
    charged = {name: (amount, why) for name, amount, why in stage.entries()}
    assert charged == {
        "over": ("0.01", "Succeeded"),
        "suspended": ("0.02", "Cancelled"),
        "running": ("0.03", "Cancelled"),
        "queued": ("0", "Cancelled"),
    }
    book = stage.book()
    assert (book.get("holds", {}), book["allocation"]["held"], book["allocation"]["spent"]) == ({}, "0", "0.06")
    assert Halo(stage, tmp_path)("--check").returncode == 0


def test_a_namespace_goes_with_its_runs_in_every_state_and_with_its_open_holds(
    stage: Stage, operator: OperatorProcess
) -> None:
    try:
        stuck = in_every_state(stage)
        stage.kubectl("delete", "namespace", stage.namespace, "--wait=false")
        stage.until_stopping(stuck)
        pods.end(stage.node, stuck, 137)
        stage.until(
            lambda: stage.api.get(f"/api/v1/namespaces/{stage.namespace}") is None, "the namespace is gone", 180
        )
    finally:
        cordon(stage, False)


def test_a_workspace_waits_for_its_holds_and_what_was_spent_outlives_it(
    stage: Stage, operator: OperatorProcess, tmp_path: Path
) -> None:
    funded(stage)
    pod = stage.start(budget=BUDGET)
    pods.run(stage.node, pod)
    stage.until_state("Running")
    stage.kubectl("delete", "workspace", "workspace", "--wait=false")
    stage.until(lambda: "is being deleted" in stage.book().get("waiting", ""), "it says that it waits")
    stage.create(training_job(stage.base, "late", budget=BUDGET))
    stage.until_state("Waiting", "late")
    assert "whose Workspace is being deleted and holds nothing new" in stage.status("late")["waiting"]
    assert set(stage.held()) == {"run"}
    pods.finish(stage.node, pod, trained(pod), after=360)
    stage.until(lambda: stage.api.get(stage.path("workspaces", "workspace")) is None, "the Workspace is gone")
    stage.until(lambda: finalizers(stage) == [], "the run's finalizer is gone")
    (page,) = stage.api.items(stage.path("ledgerpages"))
    assert [(e["run"]["name"], e["charged"]) for e in page["spec"]["entries"]] == [("run", "0.1")]
    stage.kubectl("delete", "trainingjob", "late")
    stage.grant(allocation={"h100Hours": 10})
    stage.until(lambda: stage.book()["allocation"]["spent"] == "0.1", "the new one knows what was spent")
    second = stage.start("second", budget=BUDGET)
    pods.finish(stage.node, second, trained(second), after=360)
    stage.until(lambda: stage.entries() == [("second", "0.1", "Succeeded")], "it is charged")
    assert stage.book()["allocation"] == {"granted": "10", "held": "0", "spent": "0.2", "balance": "9.8"}
    assert Halo(stage, tmp_path)("--check").stdout == "adds up: 2 entries, 1 page and 0 open holds\n"
