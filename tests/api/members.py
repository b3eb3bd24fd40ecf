"""A member with the `edit` role, what they could make, and a run's pod as operator and node make it."""

from __future__ import annotations

import json
from typing import Any

from tests.api.kube import Kubectl, eventually

RUN_POD = "support-sft-trainer-0-a1-0f3c9a12de"
NODE = "system:node:node-0"


def member(admin: Kubectl) -> Kubectl:
    """A member of the namespace with the cluster's own `edit` role."""
    admin("create", "rolebinding", "alice", "--clusterrole=edit", "--user=alice")
    alice = admin.as_user("alice")
    eventually(
        lambda: alice.run("get", "serviceaccount", "default").returncode == 0, "the role and the account are there"
    )
    return alice


def pod(name: str = "fresh", spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "localhost/one:1", "resources": {"requests": {"cpu": "2m"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"restartPolicy": "Never", "containers": [container], **(spec or {})},
    }


def report_token(audience: str = "halo-report") -> dict[str, Any]:
    source = {"serviceAccountToken": {"audience": audience, "path": "token", "expirationSeconds": 600}}
    return {"volumes": [{"name": "token", "projected": {"sources": [source]}}]}


def owner(run: dict[str, Any]) -> dict[str, Any]:
    names = {"name": run["metadata"]["name"], "uid": run["metadata"]["uid"]}
    return {
        "apiVersion": run["apiVersion"],
        "kind": run["kind"],
        **names,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def training_job(name: str = "support-sft") -> dict[str, Any]:
    return {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "base": "lora_trl",
            "baseModel": "small",
            "gpu": {"type": "h100", "count": 1},
            "steps": 10,
            "batch": 4,
            "lora": {"dataset": "chat"},
        },
    }


def dataset(name: str = "chat") -> dict[str, Any]:
    spec = {"kind": "chat", "source": "pvc://halo-data/chat.jsonl", "baseModels": ["small"]}
    return {"apiVersion": "halo.training/v1alpha1", "kind": "Dataset", "metadata": {"name": name}, "spec": spec}


def create(kubectl: Kubectl, body: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(kubectl("create", "-o", "json", "-f", "-", stdin=body))
    return made


def run_pod(alice: Kubectl, operator: Kubectl) -> dict[str, Any]:
    """A pod of a run as the operator makes it, bound to a node."""
    run = create(alice, training_job())
    body = pod(
        RUN_POD,
        report_token() | {"nodeName": "node-0", "automountServiceAccountToken": False},
        labels={"halo.training/run": "support-sft"},
        # As large as a run file gets: the policies' cost must not grow past its limit with it.
        annotations={"halo.training/run-file": "x" * 100_000, "halo.training/ca": "old"},
        finalizers=["halo.training/metered"],
        ownerReferences=[owner(run)],
    )
    return create(operator, body)


def as_kubelet(admin: Kubectl, name: str, **status: Any) -> None:
    """Write a pod's status as its node does."""
    kubelet = admin.as_user(NODE, "system:nodes")
    eventually(
        lambda: kubelet.run("get", "pod", name).returncode == 0, "the API server knows that the pod is on the node"
    )
    now = json.loads(kubelet("get", "pod", name, "-o", "json"))
    path = f"/api/v1/namespaces/{admin.namespace}/pods/{name}/status"
    kubelet("replace", "--raw", path, "-f", "-", stdin=now | {"status": now["status"] | status})


def release(operator: Kubectl, name: str = RUN_POD) -> None:
    """Drop the pod's finalizer, so that the namespace can go."""
    operator("patch", "pod", name, "--type=json", "-p", '[{"op": "remove", "path": "/metadata/finalizers"}]')
