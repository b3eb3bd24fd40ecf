"""From the trainer's end to the Adapter, with real writes: pods that vanish, operators that die, one Adapter with its receipt."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator

import pytest

from halo_api.conditions import Reason
from halo_api.digests import bytes_digest
from halo_api.receipt import RECEIPT_ANNOTATION
from halo_api.run_file import address
from tests.api import pods
from tests.api.client import Object
from tests.api.kube import Kubectl
from tests.api.operator_process import OperatorProcess, replica
from tests.api.pods import path_of, run_file, trained
from tests.api.stage import Stage, attempts

pytestmark = pytest.mark.api


@pytest.fixture(autouse=True)
def played_by_the_tests(stage: Stage) -> Iterator[None]:
    stage.node.publishes = False
    yield
    stage.node.publishes = True


def ended(stage: Stage) -> Object:
    """A run whose trainer has just ended well."""
    stage.inspected_dataset()
    pod = stage.start()
    pods.run(stage.node, pod)
    stage.finish(pod, trained(pod))
    return pod


def predicate(adapter: Object) -> Object:
    envelope = json.loads(adapter["metadata"]["annotations"][RECEIPT_ANNOTATION])
    return dict(json.loads(b64decode(envelope["payload"]))["predicate"])


def test_publishing_goes_on_whoever_dies_and_ends_with_one_adapter(stage: Stage, installed_chart: Kubectl) -> None:
    with replica(installed_chart) as operator:
        operator.wait_until_leading()
        trainer = ended(stage)
        first = stage.pod(publishes=True)
        assert (stage.state(), attempts(stage)) == ("Publishing", [(1, "Succeeded")])
        stage.until(lambda: "finalizers" not in stage.api.request("GET", path_of(trainer))["metadata"], "it is let go")
    # Nobody looks, and everything that ran is gone; somebody suspends the run.
    for pod in (trainer, first):
        stage.api.delete(path_of(pod), gracePeriodSeconds=0)
    stage.api.patch(stage.path("trainingjobs", "run"), {"spec": {"suspend": True}})
    with replica(installed_chart) as operator:
        operator.wait_until_leading()
        again = stage.pod(publishes=True)
        assert again["metadata"]["uid"] != first["metadata"]["uid"]
        assert run_file(again).publish == run_file(first).publish
        stage.finish(again, pods.failed(Reason.INTERRUPTED, "its node went"))
        third = stage.pod(rank=1, publishes=True)
        assert stage.adapter() is None
        stage.finish(third, pods.published(third))
        stage.until_state("Succeeded")
    adapter, status = stage.adapter(), stage.status()
    assert adapter
    folder = address(adapter["spec"]["digest"])
    assert adapter["spec"]["uri"] == status["adapter"]["uri"] == f"pvc://halo-artifacts/adapters/{folder}"
    envelope = adapter["metadata"]["annotations"][RECEIPT_ANNOTATION]
    assert bytes_digest(envelope.encode()) == status["receipt"]["digest"] == adapter["spec"]["receipt"]["digest"]
    image = trainer["spec"]["containers"][0]["image"]
    assert predicate(adapter)["images"] == {role: [f"{image}@{pods.DIGEST}"] for role in ("publish", "trainer")}
    assert "trained" not in status


def test_the_workspaces_claim_is_where_its_adapters_lie(stage: Stage, operator: OperatorProcess) -> None:
    stage.claim("team-store")
    stage.grant(storage={"claim": "team-store"})
    trainer = ended(stage)
    publisher = stage.pod(publishes=True)
    for pod in (trainer, publisher):
        claims = [v.get("persistentVolumeClaim", {}) for v in pod["spec"]["volumes"]]
        assert {"claimName": "team-store"} in [
            {"claimName": c.get("claimName")} for c in claims if not c.get("readOnly")
        ]
    stage.finish(publisher, pods.published(publisher))
    stage.until_state("Succeeded")
    assert stage.status()["adapter"]["uri"].startswith("pvc://team-store/adapters/sha256-")
