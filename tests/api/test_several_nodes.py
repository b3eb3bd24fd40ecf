"""Runs of several nodes, and the Service by which their pods meet."""

from __future__ import annotations

import pytest

from halo_operator.plan import names
from tests.api import pods
from tests.api.operator_process import OperatorProcess, dataset, training_job
from tests.api.stage import Stage

pytestmark = pytest.mark.api

RUN = "7b-sft"
TWO_NODES = {"count": 16}


def test_a_service_that_a_member_made_first_is_named_and_nothing_spins(stage: Stage, operator: OperatorProcess) -> None:
    """The run's name starts with a digit, which a pod's may and a Service's may not."""
    stage.create(dataset(stage.base))
    run = training_job(stage.base, RUN)
    run["spec"]["gpu"] |= TWO_NODES
    run["spec"]["batch"] = 16
    uid = stage.create(run)["metadata"]["uid"]
    taken = names.rendezvous_service(RUN, uid)
    foreign = {"metadata": {"name": taken}, "spec": {"clusterIP": "None", "selector": {"app": "mine"}}}
    stage.api.post(stage.path("services"), foreign)
    pods.finish(stage.node, stage.pod("chat"), pods.inspected())

    stage.until(lambda: stage.condition("Scheduled", RUN)["reason"] == "PodRejected", "the run says what is in its way")
    assert stage.condition("Ready", RUN)["message"] == f"Service {taken} exists and is not this run's; delete it"
    assert stage.all_pods(RUN) == []

    stage.api.delete(stage.path("services", taken))
    stage.api.patch(stage.path("trainingjobs", RUN), {"metadata": {"labels": {"look": "again"}}})
    addresses = {pod["spec"]["subdomain"] for pod in (stage.pod(RUN, rank=0), stage.pod(RUN, rank=1))}
    assert addresses == {taken}
    assert stage.run(taken, "services")["metadata"]["ownerReferences"][0]["uid"] == uid
