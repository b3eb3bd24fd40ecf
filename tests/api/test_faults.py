"""What can happen to a run and its pods, on the real API server: nothing is relaunched in vain, nothing is lost, nothing is left."""

from __future__ import annotations

import pytest

from halo_api.conditions import Reason
from tests.api import pods
from tests.api.client import Object
from tests.api.operator_process import OperatorProcess, training_job
from tests.api.pods import checkpoint, failed, report, resumes_at, run_file, trained
from tests.api.stage import Stage, attempts, steps

pytestmark = pytest.mark.api


def running(stage: Stage, **spec: object) -> Object:
    stage.inspected_dataset()
    pod = stage.start(**spec)
    pods.run(stage.node, pod)
    stage.until_state("Running")
    return pod


# --- deletions


@pytest.mark.parametrize("cascade", ["foreground", "background", "orphan"])
def test_a_running_run_is_deleted_and_nothing_of_it_stays(
    stage: Stage, operator: OperatorProcess, cascade: str
) -> None:
    pod = running(stage)
    stage.kubectl("delete", "trainingjob", "run", f"--cascade={cascade}", "--wait=false")
    stage.until_stopping(pod)
    pods.stopped(stage.node, pod, checkpoint(pod, 7))
    stage.until(lambda: not stage.all_pods("run"), "the pod is gone")
    stage.until(lambda: stage.api.get(stage.path("trainingjobs", "run")) is None, "the run is gone")
    assert [p["metadata"]["name"] for p in stage.all_pods()] == []
    assert "Relaunching" not in [e["reason"] for e in stage.events()]


def test_a_namespace_with_a_running_run_is_deleted_and_nothing_is_stuck(
    stage: Stage, operator: OperatorProcess
) -> None:
    pod = running(stage)
    stage.kubectl("delete", "namespace", stage.namespace, "--wait=false")
    stage.until_stopping(pod)
    pods.stopped(stage.node, pod)
    stage.until(lambda: not stage.all_pods(), "the pod is gone")
    # The namespace controller looks again after half the pod's grace period.
    stage.until(lambda: stage.api.get(f"/api/v1/namespaces/{stage.namespace}") is None, "the namespace is gone", 90)


# --- pods that end badly


def test_a_pod_that_is_force_deleted_is_followed_by_one_that_goes_on_from_the_last_checkpoint(
    stage: Stage, operator: OperatorProcess
) -> None:
    pod = running(stage)
    stage.push_until_acknowledged(operator, pod, report(pod, 1, step=10, saved=(5, 10)))
    stage.kubectl("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0", "--wait=false")
    pods.end(stage.node, pod, 137)
    second = stage.pod(attempt=2)
    first_work, work = run_file(pod).train, run_file(second).train
    assert first_work
    assert work
    assert work.resume
    assert (work.resume.step, work.resume.uri) == (10, checkpoint(pod, 10).uri)
    assert work.output != first_work.output
    assert stage.status()["attempts"][0]["reason"] == "Interrupted"
    assert "going on as attempt 2 from step 10" in stage.condition("Running")["message"]


def test_an_old_attempt_reports_to_deaf_ears(stage: Stage, operator: OperatorProcess) -> None:
    pod = running(stage)
    stage.push_until_acknowledged(operator, pod, report(pod, 1, step=5, saved=(5,)))
    # The pod is cut off: its node says that it ended, but its process lives on and still pushes.
    stage.kubectl(
        "patch",
        "pod",
        pod["metadata"]["name"],
        "--type=merge",
        "-p",
        '{"metadata": {"finalizers": ["halo.training/metered", "test.example/partitioned"]}}',
    )
    pods.end(stage.node, pod, 1, "the node says so")
    second = stage.pod(attempt=2)
    pods.run(stage.node, second)
    stage.until_state("Running")
    before = stage.status()
    code, answer = stage.push(operator, pod, report(pod, 99, step=19, saved=(5, 19), outcome=trained(pod)))
    assert (code, answer) == (410, "the report is about an attempt that is over")
    stage.push_until_acknowledged(operator, second, report(second, 1, step=10, saved=(10,)))
    assert stage.status()["checkpoints"][:1] == before["checkpoints"]
    assert [(c["step"], c["attempt"]) for c in stage.status()["checkpoints"]] == [(5, 1), (10, 2)]
    stage.kubectl("patch", "pod", pod["metadata"]["name"], "--type=merge", "-p", '{"metadata": {"finalizers": null}}')


@pytest.mark.parametrize("message", ["", "from the supervisor"])
def test_a_pod_that_was_killed_for_its_memory_says_so_and_is_not_tried_again(
    stage: Stage, operator: OperatorProcess, message: str
) -> None:
    pod = running(stage)
    said = (
        failed(Reason.OUT_OF_MEMORY, "step 3 needs more than 1Gi; lower spec.lora.microBatch").termination_message()
        if message
        else ""
    )
    pods.oom(stage.node, pod, said)
    stage.until_state("Failed")
    found = stage.condition("Failed")
    assert found["reason"] == "OutOfMemory"
    assert "spec.lora.microBatch" in found["message"]
    assert attempts(stage) == [(1, "OutOfMemory")]
    assert len(stage.all_pods("run")) == 1


def test_too_many_failures_end_the_run(stage: Stage, operator: OperatorProcess) -> None:
    pod = running(stage, backoffLimit=1)
    pods.end(stage.node, pod, 1, "no luck")
    second = stage.pod(attempt=2)
    pods.end(stage.node, second, 1, "no luck either")
    stage.until_state("Failed")
    found = stage.condition("Failed")
    assert found["reason"] == "BackoffLimitExceeded"
    assert "2 attempts failed, spec.backoffLimit allows 1 relaunches" in found["message"]
    assert "no luck either" in found["message"]


def test_a_run_is_suspended_and_goes_on_without_a_failure(stage: Stage, operator: OperatorProcess) -> None:
    pod = running(stage)
    stage.push_until_acknowledged(operator, pod, report(pod, 1, step=5, saved=(5,)))
    stage.kubectl("patch", "trainingjob", "run", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    stage.until_stopping(pod)
    pods.stopped(stage.node, pod, checkpoint(pod, 7))
    stage.until_state("Suspended")
    assert stage.condition("Ready")["message"] == "suspended after step 7"
    stage.until(lambda: not stage.all_pods("run"), "the pod is gone")
    stage.kubectl("patch", "trainingjob", "run", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    second = stage.pod(attempt=2)
    assert resumes_at(second) == 7
    pods.run(stage.node, second)
    stage.until_state("Running")
    assert stage.status()["failures"] == 0
    assert attempts(stage)[0] == (1, "Suspended")
    assert stage.condition("Suspended")["status"] == "False"


def test_a_new_run_does_not_mind_the_pods_of_an_old_one_of_its_name(stage: Stage, operator: OperatorProcess) -> None:
    old = running(stage)
    stage.kubectl("delete", "trainingjob", "run", "--wait=false")
    stage.until(lambda: stage.api.get(stage.path("trainingjobs", "run")) is None, "the run is gone")
    stage.create(training_job(stage.base))
    stage.until(lambda: len(stage.all_pods("run")) == 2, "the new run has its pod beside the old one's")
    pods.stopped(stage.node, old, checkpoint(old, 7))
    stage.until(lambda: len(stage.all_pods("run")) == 1, "the old one's is gone")
    new = stage.pod()
    pods.run(stage.node, new)
    stage.until_state("Running")
    assert steps(stage) == []
    assert pods.run_file(new).run.uid == stage.run()["metadata"]["uid"]


def test_a_run_that_is_over_shows_that_it_saw_a_late_change(stage: Stage, operator: OperatorProcess) -> None:
    stage.finish(pod := running(stage), trained(pod))
    stage.until_state("Succeeded")
    stage.kubectl("patch", "trainingjob", "run", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    stage.until(
        lambda: stage.status()["observedGeneration"] == stage.run()["metadata"]["generation"] == 2, "it is seen"
    )
    assert stage.state() == "Succeeded"
