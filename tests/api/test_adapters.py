"""Adapters are verified by a pod and by the operator's keys, on a real API server: whatever was tampered with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import pytest

from halo_api.conditions import Reason
from halo_api.receipt import KEYS_CONFIG_MAP, RECEIPT_ANNOTATION
from halo_operator.signing import ReceiptSigner
from tests.api import pods
from tests.api.adapter_scene import (
    CUT,
    GOING,
    RIGHT,
    SYSTEM,
    body_of,
    found,
    operators_key,
    publish,
    publish_body,
    until,
    until_over,
    verdict,
)
from tests.api.audit import AuditLog, Entry
from tests.api.kube import OPERATOR, Kubectl
from tests.api.operator_process import OperatorProcess, training_job
from tests.api.stage import Stage
from tests.unit.builders_receipt import OTHER_KEY

pytestmark = pytest.mark.api


def later(stage: Stage) -> None:
    """Wait for a second that is later than the one in which the last verification began: times have no finer ones."""
    began = stage.status("run", "adapters")["verification"]["startedAt"]
    stage.until(lambda: pods.now() > began, "the clock has gone on")


def test_an_adapter_is_verified_and_again_before_a_run_continues_it(stage: Stage, operator: OperatorProcess) -> None:
    stage.inspected_dataset()
    publish(stage)
    first = stage.verify_pod()
    until(stage, GOING)
    (claim,) = [v["persistentVolumeClaim"] for v in first["spec"]["volumes"] if "persistentVolumeClaim" in v]
    assert claim == {"claimName": "halo-artifacts", "readOnly": True}
    assert "nvidia.com/gpu" not in json.dumps(first["spec"])
    pods.run(stage.node, first)
    found(stage)
    until_over(stage, RIGHT)
    assert stage.status("run", "adapters")["verification"]["keyId"] == operators_key(stage).key_id

    later(stage)
    stage.create(training_job(stage.base, "child", parent={"adapter": "run"}))
    stage.until(lambda: "verified again" in stage.condition("Accepted", "child")["message"], "the child waits")
    second = stage.verify_pod()
    assert second["metadata"]["name"] != first["metadata"]["name"]
    assert verdict(stage) == RIGHT
    found(stage)
    stage.until(lambda: stage.condition("Accepted", "child")["status"] == "True", "the child is accepted", 30)
    until_over(stage, RIGHT)


def test_a_parent_that_was_tampered_with_is_caught_before_it_is_used(stage: Stage, operator: OperatorProcess) -> None:
    stage.inspected_dataset()
    publish(stage)
    found(stage)
    until_over(stage, RIGHT)
    later(stage)
    stage.create(training_job(stage.base, "child", parent={"adapter": "run"}))
    found(stage, "run", CUT)
    until_over(stage, ("False", "Truncated", "False"))
    stage.until_state("Refused", "child")
    assert "adapter_model.safetensors: found 7 bytes of 200" in stage.condition("Failed", "child")["message"]
    assert "Truncated" in [e["reason"] for e in stage.events()]
    # Its files are put back: the next one that names it has it looked at again.
    later(stage)
    stage.create(training_job(stage.base, "second", parent={"adapter": "run"}))
    found(stage)
    until_over(stage, RIGHT)
    stage.until(lambda: stage.condition("Accepted", "second")["status"] == "True", "the second is accepted", 30)


def test_every_receipt_that_is_not_its_own_is_named(stage: Stage, operator: OperatorProcess) -> None:
    one, other = body_of(stage, "one"), body_of(stage, "other", 2)
    swapped = [two["metadata"].pop("annotations") for two in (one, other)]
    one["metadata"]["annotations"], other["metadata"]["annotations"] = reversed(swapped)
    garbage, missing = body_of(stage, "garbage"), body_of(stage, "missing")
    garbage["metadata"]["annotations"] = {RECEIPT_ANNOTATION: "\N{PILE OF POO} no receipt"}
    del missing["metadata"]["annotations"]
    bodies = {
        "OtherAdapter": [one, other],
        "BadEnvelope": [garbage],
        "NoReceipt": [missing],
        "UnknownKey": [body_of(stage, "unknown", key=OTHER_KEY)],
        "Changed": [body_of(stage, "changed", rank=8)],
    }
    for body in chain(*bodies.values()):
        publish_body(stage, body)
    for reason, those in bodies.items():
        for body in those:
            name = body["metadata"]["name"]
            found(stage, name)
            until_over(stage, ("False", reason, "False"), name)


@contextmanager
def announced(stage: Stage, key: ReceiptSigner) -> Iterator[None]:
    """The ConfigMap has another public key, as after a rotation."""
    path, file = f"{SYSTEM}/configmaps/{KEYS_CONFIG_MAP}", f"{key.key_id}.pem"
    stage.api.patch(path, {"data": {file: key.public_pem}})
    try:
        yield
    finally:
        stage.api.patch(path, {"data": {file: None}})


def test_what_a_rotated_key_signed_is_good_until_the_key_is_taken_out(stage: Stage, operator: OperatorProcess) -> None:
    stage.inspected_dataset()
    with announced(stage, OTHER_KEY):
        publish(stage, key=OTHER_KEY)
        found(stage)
        until_over(stage, RIGHT)
    later(stage)
    stage.create(training_job(stage.base, "child", parent={"adapter": "run"}))
    found(stage)
    until_over(stage, ("False", "UnknownKey", "False"))
    stage.until_state("Refused", "child")


def test_an_imported_adapter_is_ready_without_a_receipt(stage: Stage, operator: OperatorProcess) -> None:
    body = body_of(stage, trained_by=None, receipt=None)
    del body["metadata"]["annotations"]
    stage.create(body)
    found(stage)
    until_over(stage, ("False", "NoReceipt", "True"))
    stage.kubectl("wait", "adapter", "run", "--for=condition=Ready", "--timeout=10s")


def test_what_holds_a_verification_up_is_said_until_it_is_there(stage: Stage, operator: OperatorProcess) -> None:
    publish(stage, uri="pvc://late/adapters/run")
    until(stage, ("Unknown", "Unschedulable", "False"))
    assert 'persistentvolumeclaim "late" not found' in stage.status("run", "adapters")["waiting"]
    stage.claim("late")
    pods.run(stage.node, stage.verify_pod())
    until(stage, GOING)
    found(stage)
    until_over(stage, RIGHT)
    stage.api.delete(f"/api/v1/persistentvolumes/{stage.namespace}-late")

    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"count/pods": "0"}}}
    path = f"/api/v1/namespaces/{stage.namespace}/resourcequotas"
    stage.api.post(path, quota)
    stage.until(lambda: "used" in stage.api.request("GET", f"{path}/none").get("status", {}), "the quota counts")
    publish(stage, "second")
    until(stage, ("Unknown", "PodRejected", "False"), "second")
    assert "exceeded quota" in stage.status("second", "adapters")["waiting"]
    stage.api.delete(f"{path}/none")
    found(stage, "second")
    until_over(stage, RIGHT, "second")


def test_a_pod_that_can_not_read_or_is_killed_is_followed_by_another(stage: Stage, operator: OperatorProcess) -> None:
    publish(stage)
    first = stage.verify_pod()
    stage.finish(first, pods.failed(Reason.PERMISSION_DENIED, "/volumes/halo-artifacts/x is not open to user 65532"))
    until(stage, ("Unknown", "PermissionDenied", "False"))
    assert "is not open to user 65532; it is tried again" in stage.status("run", "adapters")["waiting"]
    stage.until(lambda: first["metadata"]["uid"] not in [p["metadata"]["uid"] for p in stage.verify_pods()], "another")
    second = stage.verify_pod()
    assert second["metadata"]["labels"]["halo.training/attempt"] == "2"
    pods.run(stage.node, second)
    stage.api.delete(pods.path_of(second), gracePeriodSeconds=0)
    stage.until(
        lambda: [p["metadata"]["uid"] for p in stage.verify_pods()] != [second["metadata"]["uid"]], "it is gone"
    )
    found(stage)
    until_over(stage, RIGHT)


def test_a_deleted_adapter_takes_its_pod_along_and_its_name_begins_anew(
    stage: Stage, operator: OperatorProcess
) -> None:
    publish(stage)
    old = stage.verify_pod()
    pods.run(stage.node, old)
    stage.api.delete(stage.path("adapters", "run"), propagationPolicy="Background")
    made = publish(stage, seed=2)
    stage.until_stopping(old)
    stage.until(lambda: len(stage.verify_pods()) == 2, "the new one has its own pod")
    (new,) = [p for p in stage.verify_pods() if p["metadata"]["uid"] != old["metadata"]["uid"]]
    assert new["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    # What the old one says is nothing to the new one.
    pods.finish(stage.node, old, pods.verified(made, CUT))
    assert verdict(stage)[0] == "Unknown"
    found(stage, pod=new)
    until_over(stage, RIGHT)


def test_twenty_adapters_at_once_take_a_pod_each_and_then_nothing(
    stage: Stage, installed_chart: Kubectl, operator: OperatorProcess
) -> None:
    log, names = AuditLog(installed_chart.kubeconfig), [f"run-{n}" for n in range(20)]
    for n, name in enumerate(names):
        publish(stage, name, n)
    for name in names:
        found(stage, name)
    for name in names:
        until_over(stage, RIGHT, name)
    made = [e for e in log.entries() if e.namespace == stage.namespace and e.resource == "pods" and e.verb == "create"]
    assert len([e for e in made if e.stored]) == len(names)
    written = [e for e in log.entries() if e.namespace == stage.namespace and e.resource == "adapters/status"]
    # That it is being verified, the verdict, and perhaps a word of a pod that was slow to be played.
    assert len(written) <= 3 * len(names)
    # Annotated by whom may do so, it costs a look and no write.
    quiet = AuditLog(installed_chart.kubeconfig)
    for name in names:
        stage.api.patch(stage.path("adapters", name), {"metadata": {"annotations": {"team/note": "now"}}})

    def asked() -> list[Entry]:
        return [e for e in quiet.entries() if e.user == OPERATOR and e.namespace == stage.namespace]

    stage.until(lambda: {e.name for e in asked() if e.resource == "adapters"} == set(names), "it looked at each")
    assert [str(e) for e in asked() if e.stored and e.resource != "events"] == []


def test_members_may_delete_adapters_and_nothing_else(stage: Stage, operator: OperatorProcess) -> None:
    stage.kubectl("create", "rolebinding", "alice", "--clusterrole=edit", "--user=alice")
    alice = stage.kubectl.as_user("alice")
    publish(stage)
    stage.until(lambda: alice.run("get", "adapter", "run").returncode == 0, "the role binding is in force")
    status = ("patch", "adapter", "run", "--subresource=status", "--type=merge", "-p", '{"status": {"waiting": "x"}}')
    assert "forbidden" in alice.refused(*status)
    assert "forbidden" in alice.refused("annotate", "adapter", "run", f"{RECEIPT_ANNOTATION}=x", "--overwrite")
    alice("delete", "adapter", "run")
