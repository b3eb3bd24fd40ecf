"""A run that is deleted and applied again under its name, at once."""

from __future__ import annotations

import pytest

from tests.api import pods
from tests.api.operator_process import OperatorProcess, training_job
from tests.api.stage import Stage

pytestmark = pytest.mark.api


def test_a_quota_that_counts_the_old_pod_holds_the_new_run_up_only_until_that_one_ends(
    stage: Stage, operator: OperatorProcess
) -> None:
    stage.inspected_dataset()
    stage.until(lambda: not stage.all_pods(), "the inspection's pod is gone")
    quota = {"metadata": {"name": "one-pod"}, "spec": {"hard": {"count/pods": "1"}}}
    path = f"/api/v1/namespaces/{stage.namespace}/resourcequotas"
    stage.api.post(path, quota)
    stage.until(lambda: "used" in stage.api.request("GET", f"{path}/one-pod").get("status", {}), "the quota counts")
    old = stage.start()
    pods.run(stage.node, old)
    stage.until_state("Running")

    stage.api.delete(stage.path("trainingjobs", "run"), propagationPolicy="Background")
    stage.until(lambda: stage.api.get(stage.path("trainingjobs", "run")) is None, "the run is gone")
    uid = stage.create(training_job(stage.base, "run"))["metadata"]["uid"]
    stage.until(lambda: "exceeded quota" in stage.condition("Scheduled")["message"], "the quota refuses the new pod")
    pods.stopped(stage.node, old)
    stage.until(
        lambda: [p["metadata"]["ownerReferences"][0]["uid"] for p in stage.all_pods()] == [uid], "it starts", 90
    )
