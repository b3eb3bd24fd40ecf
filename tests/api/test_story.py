"""One run from `kubectl apply` to a published adapter, as a user sees it with kubectl alone."""

from __future__ import annotations

import json

import pytest

from halo_api.run_file import DIGEST_VARIABLE, RUN_ANNOTATION, digest_of
from tests.api import pods
from tests.api.kube import Kubectl
from tests.api.operator_process import OperatorProcess, dataset, training_job
from tests.api.stage import Stage

pytestmark = pytest.mark.api


def test_from_apply_to_a_published_adapter(stage: Stage, operator: OperatorProcess) -> None:
    kubectl = stage.kubectl
    kubectl("apply", "-f", "-", stdin=dataset(stage.base))
    kubectl("apply", "-f", "-", stdin=training_job(stage.base))
    stage.until_state("Waiting")
    assert "is being inspected" in stage.status()["waiting"]
    stage.finish(stage.pod("chat"), pods.inspected(rows=120, longest_row=300))

    pod = stage.pod()
    accepted = stage.condition("Accepted")
    assert (accepted["status"], accepted["message"]) == ("True", f"120 rows, 1 x 1 {stage.base}")
    pods.run(stage.node, pod)
    stage.until_state("Running")
    stage.push_until_acknowledged(operator, pod, pods.report(pod, 1, step=5, saved=(5,)))
    stage.push_until_acknowledged(operator, pod, pods.report(pod, 2, step=10, saved=(5, 10)))
    columns = kubectl("get", "trainingjobs", "--no-headers").split()
    # Between them is what it used so far.
    assert (columns[:7], columns[8]) == (["run", "lora_trl", stage.base, "sft", "Running", "10", "50"], "1.9")

    stage.push_until_acknowledged(
        operator, pod, pods.report(pod, 3, step=20, saved=(10, 20), outcome=pods.trained(pod))
    )
    assert stage.state() == "Publishing"
    stage.finish(pod, pods.trained(pod))
    kubectl("wait", "--for=condition=Complete", "trainingjob/run", "--timeout=20s")
    status = stage.status()
    assert [c["step"] for c in status["checkpoints"]] == [5, 10, 20]
    assert status["adapter"]["name"] == "run"
    assert (status["progress"]["step"], status["progress"]["percent"]) == (20, 100)
    columns = kubectl("get", "trainingjobs", "--no-headers").split()
    assert (columns[4:7], columns[8:10]) == (["Succeeded", "20", "100"], ["1.8", "run"])
    adapter = json.loads(kubectl("get", "adapter", "run", "-o", "json"))["spec"]
    assert adapter["trainedBy"] == {
        "kind": "TrainingJob",
        "name": "run",
        "uid": stage.run()["metadata"]["uid"],
        "step": 20,
    }
    assert adapter["base"] == {"name": stage.base, "revision": "sha256-0000000"}

    story = kubectl("describe", "trainingjob", "run").split("Events:")[1]
    told = [line.split()[1] for line in story.splitlines()[3:]]
    assert told == ["DatasetPending", "Started", "CheckpointSaved", "CheckpointSaved", "CheckpointSaved", "Succeeded"]
    kubectl("delete", "trainingjob", "run", "--timeout=20s")
    stage.until(lambda: nothing_left(kubectl), "no pod, Service or ConfigMap is left")
    kubectl("get", "adapter", "run")


def nothing_left(kubectl: Kubectl) -> bool:
    """Nothing of the run: its Adapter stays, and a pod that verifies it is the Adapter's."""
    found = kubectl("get", "pods,services,configmaps", "-l", "halo.training/role!=verify", "-o", "name").split()
    return set(found) == {"configmap/kube-root-ca.crt"}


def test_a_pod_knows_its_work_by_a_run_file_whose_digest_it_checks(stage: Stage, operator: OperatorProcess) -> None:
    stage.inspected_dataset()
    pod = stage.start(seed=7, lora={"dataset": "chat", "rank": 8})
    text = pod["metadata"]["annotations"][RUN_ANNOTATION]
    container = pod["spec"]["containers"][0]
    assert {"name": DIGEST_VARIABLE, "value": digest_of(text)} in container["env"]
    file = pods.run_file(pod)
    assert file.train
    assert (file.train.seed, file.train.lora.rank, file.train.lora.learning_rate) == (7, 8, 2e-4)
    assert file.data.sha256 == pods.DIGEST
    uid = stage.run()["metadata"]["uid"]
    assert file.train.output == f"pvc://halo-artifacts/{uid}/a1"
    # The namespace enforces the restricted standard, so that the pod is there says that it keeps it.
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["metadata"]["finalizers"] == ["halo.training/metered"]


def test_a_run_of_two_nodes_leaves_nothing_when_it_is_deleted(stage: Stage, operator: OperatorProcess) -> None:
    stage.inspected_dataset()
    stage.start(gpu={"type": stage.base, "count": 16}, batch=16)
    both = [stage.pod(rank=0), stage.pod(rank=1)]
    service = stage.kubectl("get", "services", "-o", "jsonpath={.items[*].metadata.name}")
    for rank, pod in enumerate(both):
        file = pods.run_file(pod)
        assert (file.layout.nodes, file.layout.node_rank) == (2, rank)
        assert file.layout.rendezvous == f"a1-r0.{service}.{stage.namespace}.svc:29500"
        assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == (f"a1-r{rank}", service)
        pods.run(stage.node, pod)
    stage.until_state("Running")
    stage.kubectl("delete", "trainingjob", "run", "--timeout=20s")
    for pod in both:
        pods.stopped(stage.node, pod)
    stage.until(lambda: nothing_left(stage.kubectl), "no pod, Service or ConfigMap is left")


@pytest.mark.parametrize("kind", ["trainingjobs", "datasets", "adapters", "basemodels", "gpuclasses"])
def test_explain_describes_every_field(installed_chart: Kubectl, kind: str) -> None:
    text = installed_chart("get", "--raw", "/openapi/v3/apis/halo.training/v1alpha1")
    schemas = json.loads(text)["components"]["schemas"]
    name = {
        "trainingjobs": "TrainingJob",
        "datasets": "Dataset",
        "adapters": "Adapter",
        "basemodels": "BaseModel",
        "gpuclasses": "GpuClass",
    }[kind]
    schema = next(v for k, v in schemas.items() if k.endswith(f".{name}"))
    assert undescribed(schema) == []
    assert "<string>" in installed_chart("explain", kind, "--recursive")


def undescribed(schema: dict, path: str = "") -> list[str]:
    """The fields below that have no description."""
    found = []
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        if here in (".metadata", ".apiVersion", ".kind"):
            continue
        if not field.get("description") and not any("description" in one for one in field.get("allOf", ())):
            found.append(here)
        found += undescribed(field, here) + undescribed(field.get("items", {}), f"{here}[]")
    return found
