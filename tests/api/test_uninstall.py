"""What the chart runs before an uninstall, beside an operator that still leads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from halo_operator.plan.names import HOLD_FINALIZER
from tests.api import pods
from tests.api.audit import AuditLog
from tests.api.kube import OPERATOR_NAMESPACE, Kubectl
from tests.api.operator_process import OperatorProcess, replica, training_job
from tests.api.stage import Stage

pytestmark = pytest.mark.api

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{OPERATOR_NAMESPACE}/leases/halo-operator"


WORKSPACE = {
    "apiVersion": "halo.training/v1alpha1",
    "kind": "Workspace",
    "metadata": {"name": "workspace", "finalizers": ["team/keep", HOLD_FINALIZER]},
    "spec": {},
}


def test_after_the_release_nothing_is_held_and_no_operator_makes_another(
    installed_chart: Kubectl, stage: Stage
) -> None:
    try:
        with replica(installed_chart) as operator:
            operator.wait_until_leading()
            stage.inspected_dataset()
            pods.run(stage.node, stage.start())
            stage.until_state("Running")
            # As a run and its Workspace are while something is held.
            stage.create(WORKSPACE)
            stage.api.patch(stage.path("trainingjobs", "run"), {"metadata": {"finalizers": [HOLD_FINALIZER]}})
            release(operator, released=1, let_go=2)
            stage.create(training_job(stage.base, "late"))
            assert operator.ended() == 1
            assert "lost the lease" in operator.said()
            log = AuditLog(installed_chart.kubeconfig)
            looks_at_the_lease = lambda: sum(e.resource == "leases" and e.verb == "get" for e in log.entries())  # noqa: E731
            before = looks_at_the_lease()
            operator.start()
            stage.until(lambda: looks_at_the_lease() >= before + 4, "it asked for the lease again and again")
            assert stage.all_pods("late") == []
            assert [p["metadata"].get("finalizers") for p in stage.all_pods("run")] == [None]
            assert "finalizers" not in stage.run()["metadata"]
            assert stage.run("workspace", "workspaces")["metadata"]["finalizers"] == ["team/keep"]
    finally:
        if stage.api.get(stage.path("workspaces", "workspace")):
            stage.api.patch(stage.path("workspaces", "workspace"), {"metadata": {"finalizers": None}})
        # Those who come next must not wait for it.
        stage.api.delete(LEASE)


def release(operator: OperatorProcess, released: int, let_go: int) -> None:
    """Run what the chart runs; say how many pods, and runs and Workspaces, it must let go of."""
    done = subprocess.run(
        [sys.executable, "-m", "halo_operator", "release"],
        env=operator.environment | {"HALO_POD_NAME": "halo-operator-release"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"released {released} pods, and {let_go} runs and Workspaces" in done.stdout
