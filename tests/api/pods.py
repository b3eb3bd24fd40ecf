"""The life of a run's pods as their node writes it: the real scheduler binds them, and what a kubelet would report is
played, under a node's own identity and rights, by the tests. No container runs."""

from __future__ import annotations

import ssl
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import urllib3

from halo_api.adapter import AdapterFile, AdapterSpec
from halo_api.conditions import Reason
from halo_api.digests import files_digest
from halo_api.report import (
    AdapterConfig,
    AdapterReport,
    Answer,
    CheckpointReport,
    FileProblem,
    InspectionReport,
    Outcome,
    ProgressReport,
    Report,
    VerificationReport,
)
from halo_api.run_file import CA_ANNOTATION, REPORT_AUDIENCE, RUN_ANNOTATION, RunFile, address
from halo_operator.plan.pod_view import parse_time
from tests.api.client import STRATEGIC, Api, Object, Refused
from tests.api.kube import OPERATOR_NAMESPACE, eventually

NODE = "played-node"
REPORT_HOST = f"halo-operator.{OPERATOR_NAMESPACE}.svc"
DIGEST = "sha256:" + "ab" * 32
HEARTBEAT_SECONDS = 8.0


def stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def now() -> str:
    return stamp(datetime.now(UTC))


class PlayedNode:
    """A Node with GPUs that keeps its heartbeat, and lets go of pods that are no run's when they are deleted.

    Of runs it plays by itself, while it `publishes`, the pods that do: few tests are about them. Its clock may be `ahead` of the API server's, or behind: whatever it says of a pod is told by that clock.
    """

    ahead = timedelta()
    publishes = True

    def __init__(self, admin: Api) -> None:
        self.api = admin.as_user(f"system:node:{NODE}", "system:nodes")
        self.admin = admin
        self._stop = threading.Event()
        admin.delete(f"/api/v1/nodes/{NODE}")
        labels = {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux"}
        self.api.post(
            "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}}
        )
        self._beat()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        eventually(
            lambda: not self.api.request("GET", f"/api/v1/nodes/{NODE}")["spec"].get("taints"), "the node is ready"
        )

    def now(self) -> str:
        return stamp(datetime.now(UTC) + self.ahead)

    def leave(self) -> None:
        self._stop.set()
        self._thread.join()
        self.admin.delete(f"/api/v1/nodes/{NODE}")

    def _live(self) -> None:
        beats = 0
        while not self._stop.wait(1.0):
            beats += 1
            try:
                if beats % HEARTBEAT_SECONDS == 0:
                    self._beat()
                for pod in self.admin.items(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE}"):
                    meta = pod["metadata"]
                    if "deletionTimestamp" in meta and "halo.training/run" not in meta.get("labels", {}):
                        self.admin.delete(path_of(pod), gracePeriodSeconds=0)
                    if self.publishes and waits_to_publish(pod):
                        finish(self, pod, published(pod))
            except (Refused, OSError, AssertionError):
                # It is tried again at the next beat; a pod may have gone meanwhile.
                continue

    def _beat(self) -> None:
        sizes = {"cpu": "64", "memory": "512Gi", "pods": "500", "nvidia.com/gpu": "16"}
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "",
            "lastHeartbeatTime": now(),
            "lastTransitionTime": now(),
        }
        status = {"capacity": sizes, "allocatable": sizes, "conditions": [ready]}
        self.api.patch(f"/api/v1/nodes/{NODE}/status", {"status": status}, STRATEGIC)


def path_of(pod: Object, subresource: str = "") -> str:
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}" + (f"/{subresource}" if subresource else "")


def run_file(pod: Object) -> RunFile:
    return RunFile.model_validate_json(pod["metadata"]["annotations"][RUN_ANNOTATION])


def waits_to_publish(pod: Object) -> bool:
    role, phase = pod["metadata"].get("labels", {}).get("halo.training/role"), pod["status"]["phase"]
    return role == "publish" and phase not in ("Succeeded", "Failed")


def resumes_at(pod: Object) -> int:
    """The step whose checkpoint it goes on from, 0 if it starts anew."""
    plan = run_file(pod).training
    return plan.resume.step if plan and plan.resume else 0


def bind(node: PlayedNode, pod: Object) -> Object:
    """Wait for the scheduler."""
    there: Object = {}

    def bound() -> bool:
        there.update(node.admin.get(path_of(pod)) or {"spec": {}})
        return there["spec"].get("nodeName") == NODE

    try:
        eventually(bound, f"{pod['metadata']['name']} is bound", 60)
    except AssertionError as error:
        raise AssertionError(f"{error}; the scheduler says {there.get('status')}") from error
    return node.admin.request("GET", path_of(pod))


def bound_at(pod: Object) -> datetime:
    """When the scheduler bound it, by the API server's clock."""
    found = next(c for c in pod["status"]["conditions"] if c["type"] == "PodScheduled" and c["status"] == "True")
    at = parse_time(found["lastTransitionTime"])
    assert at
    return at


def write(node: PlayedNode, pod: Object, phase: str, state: Object, **extra: Any) -> None:
    """Write the status of a bound pod as its kubelet does, which took it over at once and keeps that time."""
    there = node.admin.request("GET", path_of(pod))
    taken_over = there["status"].get("startTime") or stamp(bound_at(there) + node.ahead)
    container = pod["spec"]["containers"][0]
    status = {
        "name": container["name"],
        "image": container["image"],
        "imageID": f"{container['image']}@{DIGEST}",
        "ready": "running" in state,
        "restartCount": 0,
        "state": state,
    }
    ready = {"type": "Ready", "status": str("running" in state), "lastTransitionTime": node.now()}
    body = {
        "status": {
            "phase": phase,
            "conditions": [ready],
            "containerStatuses": [status],
            "startTime": taken_over,
            **extra,
        }
    }

    def written() -> bool:
        try:
            node.api.patch(path_of(pod, "status"), body, STRATEGIC)
        except Refused as refused:
            # The API server's graph of nodes and pods learns of a binding a moment later.
            if refused.status != 403:
                raise
            return False
        return True

    eventually(written, f"the node writes the status of {pod['metadata']['name']}", 10)


def run(node: PlayedNode, pod: Object) -> None:
    """Its container runs."""
    bind(node, pod)
    write(node, pod, "Running", {"running": {"startedAt": node.now()}})


def stuck(node: PlayedNode, pod: Object, reason: str, message: str) -> None:
    """Its container can't start."""
    bind(node, pod)
    write(node, pod, "Pending", {"waiting": {"reason": reason, "message": message}})


def end(
    node: PlayedNode,
    pod: Object,
    exit_code: int,
    message: str = "",
    reason: str = "Error",
    after: float | None = None,
    **extra: Any,
) -> None:
    """Its container has ended, now or so many seconds after the binding; one that is being deleted goes then, as far as
    its finalizers let it."""
    bound = bound_at(bind(node, pod))
    finished = node.now() if after is None else stamp(bound + timedelta(seconds=after) + node.ahead)
    terminated = {
        "exitCode": exit_code,
        "reason": reason,
        "startedAt": stamp(bound + node.ahead),
        "finishedAt": finished,
        **({"message": message} if message else {}),
    }
    write(node, pod, "Failed" if exit_code else "Succeeded", {"terminated": terminated}, **extra)
    there = node.admin.get(path_of(pod))
    if there and "deletionTimestamp" in there["metadata"]:
        gone(node, there)


def gone(node: PlayedNode, pod: Object) -> None:
    """The kubelet's last word about a pod that is deleted."""
    node.api.delete(path_of(pod), gracePeriodSeconds=0, preconditions={"uid": pod["metadata"]["uid"]})


def finish(node: PlayedNode, pod: Object, outcome: Outcome, after: float | None = None) -> None:
    """Its role ended and the supervisor left this outcome."""
    code = 0 if outcome.result == "Succeeded" else 1
    end(node, pod, code, outcome.termination_message(), "Completed", after)


def oom(node: PlayedNode, pod: Object, message: str = "") -> None:
    """The kernel killed it for its memory."""
    end(node, pod, 137, message, "OOMKilled")


def stopped(
    node: PlayedNode, pod: Object, checkpoint: CheckpointReport | None = None, after: float | None = None
) -> None:
    """It was asked to stop, and did so with a checkpoint."""
    words = "asked to stop"
    outcome = Outcome(result="Failed", reason=Reason.INTERRUPTED, message=words, checkpoint=checkpoint)
    end(node, pod, 143, outcome.termination_message(), after=after)


# --- what the role in the pod would say


def checkpoint(pod: Object, step: int) -> CheckpointReport:
    plan = run_file(pod).training
    assert plan
    return CheckpointReport(step=step, uri=f"{plan.output}/checkpoint-{step}", digest=DIGEST, loss=1.5, at=now())


def trained(pod: Object) -> Outcome:
    """The training went well to the last step."""
    plan = run_file(pod).training
    assert plan
    file = AdapterFile(path="adapter_model.safetensors", sha256=DIGEST, size=1000)
    made = AdapterReport(uri=f"{plan.output}/adapter", digest=files_digest([file]), step=plan.steps, files=(file,))
    return Outcome(result="Succeeded", reason=Reason.SUCCEEDED, adapter=made, checkpoint=checkpoint(pod, plan.steps))


def published(pod: Object) -> Outcome:
    """The adapter that was trained lies where its digest says."""
    plan = run_file(pod).publish
    assert plan
    file = AdapterFile(path="adapter_model.safetensors", sha256=DIGEST, size=1000)
    digest = files_digest([file])
    made = AdapterReport(uri=f"{plan.store}/{address(digest)}", digest=digest, step=plan.source.step, files=(file,))
    return Outcome(result="Succeeded", reason=Reason.SUCCEEDED, adapter=made)


def inspected(rows: int = 100, longest_row: int = 200, sha256: str = DIGEST) -> Outcome:
    """The inspection went well."""
    found = InspectionReport(
        sha256=sha256, rows=rows, tokens=rows * 50, trained_tokens=rows * 20, longest_row=longest_row
    )
    return Outcome(result="Succeeded", reason=Reason.INSPECTED, inspection=found)


def verified(adapter: Object, *problems: FileProblem) -> Outcome:
    """The files of an Adapter were hashed, and are as they were published but for some."""
    spec = AdapterSpec.model_validate(adapter["spec"])
    config = AdapterConfig(base=spec.base.name, revision=spec.base.revision, rank=spec.rank, alpha=spec.alpha)
    found = VerificationReport(digest=DIGEST if problems else spec.digest, problems=problems, config=config)
    return Outcome(result="Succeeded", reason=Reason.SUCCEEDED, verification=found)


def failed(reason: Reason, message: str) -> Outcome:
    return Outcome(result="Failed", reason=reason, message=message)


def report(
    pod: Object, sequence: int, step: int = 0, saved: tuple[int, ...] = (), outcome: Outcome | None = None
) -> Report:
    file = run_file(pod)
    assert file.training
    return Report(
        run_uid=file.run.uid,
        attempt=file.run.attempt,
        sequence=sequence,
        phase="Done" if outcome else "Working",
        progress=ProgressReport(
            step=step, steps=file.training.steps, loss=2.0 - step / 100, learning_rate=1e-4, tokens_per_second=900.0
        ),
        checkpoints=tuple(checkpoint(pod, one) for one in saved),
        outcome=outcome,
    )


def token_of(node: PlayedNode, pod: Object) -> str:
    """The report token that the kubelet mounts into the pod."""
    meta = pod["metadata"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [REPORT_AUDIENCE], "boundObjectRef": bound, "expirationSeconds": 3600},
    }
    made = node.api.post(f"/api/v1/namespaces/{meta['namespace']}/serviceaccounts/default/token", body)
    return str(made["status"]["token"])


def push(port: int, pod: Object, token: str, body: Report) -> tuple[int, Answer | str]:
    """Push a report as the pod's supervisor does, to the replica on this port; its certificate names the Service."""
    context = ssl.create_default_context(cadata=pod["metadata"]["annotations"][CA_ANNOTATION])
    with urllib3.HTTPSConnectionPool(
        "127.0.0.1", port, ssl_context=context, server_hostname=REPORT_HOST, assert_hostname=REPORT_HOST, retries=False
    ) as pool:
        headers = {"Authorization": f"Bearer {token}"}
        text = body.model_dump_json(by_alias=True, exclude_none=True)
        answer = pool.request("POST", "/v1/reports", body=text, headers=headers, timeout=10)
    said = answer.data.decode()
    return answer.status, Answer.model_validate_json(said) if answer.status == 200 else said
