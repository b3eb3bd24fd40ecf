"""Bad input: each is one sentence that names the field, what was found and the cure, and nothing of it is left running."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from halo_api.conditions import Reason
from tests.api import pods
from tests.api.kube import Kubectl
from tests.api.operator_process import OperatorProcess, dataset, replica, training_job
from tests.api.pods import failed, trained
from tests.api.stage import GROUP, Stage, attempts

pytestmark = pytest.mark.api

# What the issue allows until a condition says so.
TOLD_WITHIN = 10
START_TIMEOUT = 6


@pytest.fixture(scope="module")
def operator(installed_chart: Kubectl, alone: None) -> Iterator[OperatorProcess]:
    """One that soon gives up on pods that can't start."""
    with replica(installed_chart, HALO_START_TIMEOUT_SECONDS=str(START_TIMEOUT)) as operator:
        yield operator.wait_until_leading()


# --- refused by the operator; what kubectl apply itself refuses stands in tests/refusals


REFUSED_SOON = [
    ("an unknown base", {"baseModel": "smol"}, "UnknownBaseModel", ["spec.baseModel", "'smol'", "kubectl get basemodels"]),
    ("an unknown GPU", {"gpu": {"type": "h1000"}}, "UnknownGpuClass", ["spec.gpu.type", "'h1000'", "kubectl get gpuclasses"]),
    ("dpo by a base's trainer Halo", {"lora": {"dataset": "chat", "method": "dpo"}}, "TrainerUnfit", ["spec.lora.method", "Halo", "set spec.lora.trainer: TRL"]),
    ("a base that offers no RLVR", {"base": "halo_rlvr", "lora": None, "rlvr": {"dataset": "chat"}, "gpu": {"count": 2}}, "BaseNotOffered", ["spec.baseModel", "offers lora_trl", "found base halo_rlvr"]),
    ("a batch smaller than its GPUs", {"gpu": {"count": 8}, "batch": 4}, "Unfit", ["spec.batch", "found 4", "at least 8"]),
    ("GPUs that leave a node half used", {"gpu": {"count": 12}, "batch": 12}, "Unfit", ["spec.gpu.count", "found 12", "use 8 or 16"]),
]  # fmt: skip


@pytest.mark.parametrize(("what", "spec", "reason", "words"), REFUSED_SOON, ids=[row[0] for row in REFUSED_SOON])
def test_a_condition_refuses(
    stage: Stage, operator: OperatorProcess, what: str, spec: dict[str, Any], reason: str, words: list[str]
) -> None:
    body = training_job(stage.base, **{k: v for k, v in spec.items() if k != "gpu"})
    body["spec"]["gpu"] |= spec.get("gpu", {})
    if body["spec"]["lora"] is None:
        del body["spec"]["lora"]
    stage.create(body)
    stage.until_state("Refused", seconds=TOLD_WITHIN)
    found = stage.condition("Accepted")
    assert (found["status"], found["reason"]) == ("False", reason)
    assert [word for word in words if word not in found["message"]] == [], found["message"]
    assert stage.condition("Failed")["status"] == "True"
    assert stage.all_pods() == []


def test_what_is_not_built_yet_is_refused_once_all_else_is_right(stage: Stage, operator: OperatorProcess) -> None:
    stage.inspected_dataset()
    stage.api.patch(f"{GROUP}/basemodels/{stage.base}", {"spec": {"source": "hf://org/smol"}})
    stage.create(training_job(stage.base))
    stage.until_state("Refused", seconds=TOLD_WITHIN)
    found = stage.condition("Accepted")
    assert (found["status"], found["reason"]) == ("False", "NotYetAvailable")
    assert "found no pvc:// source" in found["message"]


def test_a_missing_dataset_is_waited_for(stage: Stage, operator: OperatorProcess) -> None:
    stage.create(training_job(stage.base))
    stage.until_state("Waiting", seconds=TOLD_WITHIN)
    words = "spec.lora.dataset: found 'chat', but there is no such Dataset in namespace"
    assert stage.status()["waiting"].startswith(words)
    assert stage.all_pods() == []
    stage.inspected_dataset()
    assert pods.run_file(stage.pod()).data.name == "chat"


def test_an_adapter_is_never_replaced_by_another_run_of_its_name(stage: Stage, operator: OperatorProcess) -> None:
    stage.inspected_dataset()
    stage.finish(pod := stage.start(), trained(pod))
    stage.until_state("Succeeded")
    stage.kubectl("delete", "trainingjob", "run")
    stage.create(training_job(stage.base))
    stage.until_state("Refused", seconds=TOLD_WITHIN)
    found = stage.condition("Accepted")
    assert found["reason"] == "AdapterNameTaken"
    assert "choose another name, or delete that Adapter" in found["message"]


# --- refused by what read the data


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (Reason.BAD_ROW, "chat.jsonl line 17: found no assistant turn; add one, or remove the row"),
        (Reason.TEMPLATE_MISMATCH, "the base has no chat template; use an instruct model"),
        (Reason.DATASET_MISSING, "spec.source: found no file chat.jsonl on claim halo-data; put it there"),
    ],
)
def test_a_dataset_that_cannot_be_used_says_why_and_so_does_its_run(
    stage: Stage, operator: OperatorProcess, reason: Reason, message: str
) -> None:
    stage.create(training_job(stage.base))
    stage.create(dataset(stage.base))
    stage.finish(stage.pod("chat"), failed(reason, message))
    stage.until(
        lambda: stage.condition("Stalled", "chat", "datasets")["status"] == "True",
        "the Dataset is stalled",
        TOLD_WITHIN,
    )
    assert stage.condition("Ready", "chat", "datasets") | {"observedGeneration": 1} == stage.condition(
        "Ready", "chat", "datasets"
    )
    found = stage.condition("Ready", "chat", "datasets")
    assert (found["status"], found["reason"], found["message"]) == ("False", reason, message)
    stage.until_state("Refused", seconds=TOLD_WITHIN)
    assert stage.condition("Accepted")["reason"] == "DatasetInvalid"
    assert message in stage.condition("Accepted")["message"]
    assert stage.all_pods("run") == []


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (
            Reason.DATASET_CHANGED,
            "pvc://halo-data/chat.jsonl has digest sha256:1, the inspection found sha256:2; create a new Dataset",
        ),
        (Reason.DISK_FULL, "checkpoint-10: no space left on claim halo-artifacts; enlarge it"),
        (Reason.BASE_MISSING, "no config.json at pvc://halo-models/x; put the model there"),
    ],
)
def test_what_the_trainer_says_of_the_users_error_ends_the_run(
    stage: Stage, operator: OperatorProcess, reason: Reason, message: str
) -> None:
    stage.inspected_dataset()
    pod = stage.start()
    pods.run(stage.node, pod)
    stage.finish(pod, failed(reason, message))
    stage.until_state("Failed", seconds=TOLD_WITHIN)
    found = stage.condition("Failed")
    assert (found["status"], found["reason"], found["message"]) == ("True", reason, message)
    assert attempts(stage) == [(1, reason)]
    assert len(stage.all_pods("run")) == 1
    assert stage.condition("Stalled")["status"] == "True"


# --- pods that can't start


def test_an_image_that_cannot_be_pulled_is_told_and_soon_given_up(stage: Stage, operator: OperatorProcess) -> None:
    stage.inspected_dataset()
    pod = stage.start()
    pods.stuck(stage.node, pod, "ErrImagePull", 'failed to pull "halo-trainer:dev": not found')
    stage.until(lambda: "ErrImagePull" in stage.status().get("waiting", ""), "the run says so", TOLD_WITHIN)
    assert stage.condition("Scheduled")["reason"] == "ImagePullFailed"
    stage.until_state("Failed", seconds=START_TIMEOUT + TOLD_WITHIN)
    found = stage.condition("Failed")
    assert found["reason"] == "ImagePullFailed"
    assert found["message"].endswith(f"gave up after {START_TIMEOUT} s")
    pods.stopped(stage.node, pod)
    stage.until(lambda: all("finalizers" not in p["metadata"] for p in stage.all_pods("run")), "the pod is let go")
    stage.until(
        lambda: not [p for p in stage.all_pods("run") if p["status"]["phase"] in ("Pending", "Running")], "none is left"
    )


def test_a_run_says_what_holds_up_the_inspection_of_its_dataset(stage: Stage, operator: OperatorProcess) -> None:
    stage.create(dataset(stage.base))
    pods.stuck(stage.node, stage.pod("chat"), "ErrImagePull", 'failed to pull "halo-trainer:dev": not found')
    stage.create(training_job(stage.base))
    stage.until(lambda: stage.state("chat", "datasets") == "ImagePullFailed", "the Dataset says so", TOLD_WITHIN)
    stage.until(lambda: "ErrImagePull" in stage.status().get("waiting", ""), "and so does the run", TOLD_WITHIN)
    assert stage.condition("Accepted")["reason"] == "DatasetPending"
    stage.finish(stage.pod("chat"), pods.inspected())
    assert stage.pod()


def test_gpus_that_no_node_has_are_told_and_waited_for(stage: Stage, operator: OperatorProcess) -> None:
    stage.inspected_dataset()
    stage.api.patch(
        f"/apis/halo.training/v1alpha1/gpuclasses/{stage.base}",
        {"spec": {"nodeSelector": {"gpu.example/product": "none"}}},
    )
    stage.start()
    stage.until_state("Queued", seconds=TOLD_WITHIN)
    found = stage.condition("Scheduled")
    assert (found["status"], found["reason"]) == ("False", "Unschedulable")
    assert "0/1 nodes are available" in found["message"]
    assert "node affinity" in found["message"]
    # The scheduler's own, so nothing holds GPUs, and nothing gives up: a node may come.
    assert stage.condition("Failed")["status"] == "False"
    stage.kubectl("delete", "trainingjob", "run", "--timeout=20s")
    stage.until(lambda: not stage.all_pods("run"), "the pod is gone")


def test_a_namespace_that_refuses_the_pod_is_told_and_tried_again(stage: Stage, operator: OperatorProcess) -> None:
    stage.inspected_dataset()
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    stage.api.post(f"/api/v1/namespaces/{stage.namespace}/resourcequotas", quota)
    path = f"/api/v1/namespaces/{stage.namespace}/resourcequotas/none"
    stage.until(lambda: "hard" in stage.api.request("GET", path).get("status", {}), "the quota is in force")
    stage.create(training_job(stage.base))
    stage.until(lambda: "exceeded quota: none" in stage.status().get("waiting", ""), "the run says so", TOLD_WITHIN)
    found = stage.condition("Scheduled")
    assert (found["status"], found["reason"]) == ("False", "PodRejected")
    stage.api.delete(path)
    # Whatever changes the run, or a minute, makes it try again.
    stage.kubectl("label", "trainingjob", "run", "team=support")
    assert stage.pod()
    stage.until(lambda: "waiting" not in stage.status(), "it waits no more")


# --- strange but good


def test_a_name_of_253_characters_with_dots_works_to_the_end(stage: Stage, operator: OperatorProcess) -> None:
    name = ".".join(["a" * 49 + "-b"] * 5)[:253].rstrip(".-")
    assert len(name) > 250
    stage.inspected_dataset()
    pod = stage.start(name)
    assert len(pod["metadata"]["name"]) <= 63
    pods.run(stage.node, pod)
    stage.push_until_acknowledged(operator, pod, pods.report(pod, 1, step=5, saved=(5,)))
    stage.finish(pod, trained(pod))
    stage.until_state("Succeeded", name)
    assert stage.adapter(name)
    # Events are told after all else.
    told = {"Started", "CheckpointSaved", "Succeeded"}
    stage.until(lambda: {e["reason"] for e in stage.events(name)} == told, "its events are told")
