"""What the operator asks of the API server, by the server's own audit log: nothing while nothing happens, little while it does."""

from __future__ import annotations

import re
import time
import urllib.request

import pytest

from tests.api import pods
from tests.api.adapter_scene import RIGHT, found, until_over
from tests.api.audit import AuditLog
from tests.api.kube import OPERATOR, Kubectl, eventually
from tests.api.operator_process import OperatorProcess, replica, training_job
from tests.api.stage import Stage

pytestmark = pytest.mark.api

# Longer than the minute after which the operator looks again at what waits.
IDLE_SECONDS = 65
# As the bench's target has it; the life of the trainer's pod is counted.
MOST_WRITES = 14
# The life of the pod that publishes: made, bound, its event, its end.
MOST_TO_PUBLISH = 4


@pytest.fixture(scope="module")
def audit(installed_chart: Kubectl) -> AuditLog:
    return AuditLog(installed_chart.kubeconfig)


def written_by_the_operator(log: AuditLog) -> list[str]:
    """Its writes but the renewals of its lease, done or refused."""
    return [str(e) for e in log.entries() if e.user == OPERATOR and e.is_write and e.resource != "leases"]


def reconciled(operator: OperatorProcess) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{operator.health_port}/metrics", timeout=10) as answer:
        found = re.findall(
            r'^controller_runtime_reconcile_total\{.*result="success".*\} (\S+)', answer.read().decode(), re.M
        )
    return int(sum(map(float, found)))


def settled(log: AuditLog) -> None:
    """Wait until it has written nothing for some seconds."""
    last, since = -1, time.monotonic()

    def quiet() -> bool:
        nonlocal last, since
        if (count := len(written_by_the_operator(log))) != last:
            last, since = count, time.monotonic()
        return time.monotonic() - since > 7

    eventually(quiet, "the operator has nothing more to write", 90)


def identities(stage: Stage) -> dict[str, str]:
    return {p["metadata"]["name"]: p["metadata"]["uid"] for p in stage.all_pods()}


def versions(stage: Stage) -> dict[str, str]:
    kinds = ("trainingjobs", "datasets", "adapters", "workspaces")
    found = [*(item for kind in kinds for item in stage.api.items(stage.path(kind))), *stage.all_pods()]
    return {f"{o['metadata']['name']}": o["metadata"]["resourceVersion"] for o in found}


def of_every_kind(stage: Stage, operator: OperatorProcess) -> None:
    """Runs that are over and charged, refused, waiting, queued, running, short of a raise, and their Workspace."""
    stage.grant(allocation={"h100Hours": 40})
    stage.inspected_dataset()
    share = {"budget": {"h100Hours": 8}}
    done = stage.start("done", **share)
    stage.finish(done, pods.trained(done))
    found(stage, "done")
    until_over(stage, RIGHT, "done")
    stage.create(training_job(stage.base, "refused", baseModel="smol", **share))
    stage.create(training_job(stage.base, "waiting", lora={"dataset": "later"}, **share))
    # The node has 16 GPUs.
    whole = {"gpu": {"type": stage.base, "count": 8}, "batch": 8, **share}
    for name in ("running", "running-too"):
        pods.run(stage.node, pod := stage.start(name, **whole))
    stage.start("queued", **whole)
    stage.push_until_acknowledged(operator, pod, pods.report(pod, 1, step=5, saved=(5,)))
    for name, state in (("done", "Succeeded"), ("refused", "Refused"), ("waiting", "Waiting"), ("queued", "Queued")):
        stage.until_state(state, name)
    stage.api.patch(stage.path("trainingjobs", "running"), {"spec": {"budget": {"h100Hours": 80}}})
    stage.until(lambda: "more must be held" in stage.condition("Reserved", "running")["message"], "its raise waits")
    stage.until(lambda: set(stage.held()) == {"running", "running-too", "queued"}, "three holds are open")
    assert [name for name, _, _ in stage.entries()] == ["done"]


def test_an_idle_operator_writes_nothing_and_an_upgrade_restarts_nothing(
    stage: Stage, installed_chart: Kubectl, audit: AuditLog
) -> None:
    with replica(installed_chart) as operator:
        operator.wait_until_leading()
        of_every_kind(stage, operator)
        settled(audit)
        before, there = versions(stage), identities(stage)
        idle = AuditLog(installed_chart.kubeconfig)
        end = time.monotonic() + IDLE_SECONDS
        eventually(
            lambda: time.monotonic() > end or written_by_the_operator(idle), "the minute is over", IDLE_SECONDS + 10
        )
        assert written_by_the_operator(idle) == []
        renewals = [e for e in idle.entries() if e.user == OPERATOR and e.resource == "leases" and e.is_write]
        assert len(renewals) > IDLE_SECONDS / 10

    with replica(installed_chart, HALO_TRAINER_IMAGE="localhost/halo-trainer:next") as upgraded:
        upgraded.wait_until_leading()
        kinds = ("trainingjobs", "datasets", "adapters", "workspaces")
        objects = sum(len(stage.api.items(stage.path(kind))) for kind in kinds)
        eventually(lambda: reconciled(upgraded) >= objects, "it has looked at everything")
        settled(idle)
    assert written_by_the_operator(idle) == []
    assert (versions(stage), identities(stage)) == (before, there)


def test_a_run_of_one_pod_costs_few_writes(stage: Stage, installed_chart: Kubectl, operator: OperatorProcess) -> None:
    stage.inspected_dataset()
    stage.until(lambda: not stage.all_pods("chat"), "the inspection's pod is gone")
    log = AuditLog(installed_chart.kubeconfig)
    pod = stage.start()
    pods.run(stage.node, pod)
    stage.until_state("Running")
    stage.finish(pod, pods.trained(pod))
    stage.until_state("Succeeded")
    settled(log)
    mine = [e for e in log.entries() if e.namespace == stage.namespace and e.stored]
    # Its verification is the adapter's own: 20 of them at once are counted in test_adapters. An event of the inspection may
    # be told late.
    others = ("chat.", "chat-")
    cost = [
        str(e)
        for e in mine
        if "-verify-" not in e.name and e.resource != "adapters/status" and not e.name.startswith(others)
    ]
    publishing = [line for line in cost if "-publish-" in line]
    assert len(publishing) <= MOST_TO_PUBLISH, "\n".join(publishing)
    assert len(cost) - len(publishing) <= MOST_WRITES, "\n".join(cost)


def test_the_operator_never_asks_for_what_its_roles_do_not_allow(audit: AuditLog) -> None:
    """Last in this module, since it looks at all that came before."""
    asked = [e for e in audit.entries() if e.user == OPERATOR]
    assert asked
    assert [str(e) for e in asked if not e.allowed] == []
    written = {
        "adapters",
        "adapters/status",
        "datasets/status",
        "grporuns/status",
        "events",
        "leases",
        "pods",
        "secrets",
        "services",
        "trainingjobs/status",
        "recipes",
        # Their finalizer, and the book.
        "grporuns",
        "trainingjobs",
        "workspaces",
        "workspaces/status",
        "ledgerpages",
        # The public keys of receipts.
        "configmaps",
    }
    assert {e.resource for e in asked if e.stored} <= written
