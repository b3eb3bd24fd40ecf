"""vLLM itself loads what a run published, and answers with it."""

from __future__ import annotations

import json

import pytest

from tests.api.kube import eventually
from tests.cluster.conftest import Place
from tests.cluster.runs import apply_run, chat_file, dataset, get, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PROMPT = {
    "messages": [{"role": "user", "content": "Hi team. The router is cracked. It can wait."}],
    "max_tokens": 30,
    "temperature": 0,
}


def server_pod(uri: str) -> dict:
    mounts = {"models": "halo-models", "artifacts": "halo-artifacts"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "server"},
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "server",
                    "image": "localhost/halo-rollout:dev",
                    "imagePullPolicy": "Never",
                    "command": ["python", "-m", "halo_rollout", "serve", "--base", "pvc://halo-models/smollm2-135m-instruct", "--adapter", f"trained={uri}"],
                    "env": [{"name": "USER", "value": "halo"}],
                    "resources": {"requests": {"cpu": "500m", "memory": "4Gi"}, "limits": {"memory": "6Gi"}},
                    "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
                    "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 2, "failureThreshold": 120},
                    "volumeMounts": [
                        *({"name": name, "mountPath": f"/volumes/{claim}", "readOnly": True} for name, claim in mounts.items()),
                        {"name": "tmp", "mountPath": "/tmp"},
                        {"name": "shm", "mountPath": "/dev/shm"},
                    ],
                }
            ],
            "volumes": [
                *({"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}} for name, claim in mounts.items()),
                {"name": "tmp", "emptyDir": {}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
            ],
        },
    }  # fmt: skip


def test_vllm_serves_the_adapter_that_a_run_published(place: Place) -> None:
    chat_file(place, rows=400)
    dataset(place)
    apply_run(place, "served", steps=30, batch=8, saveSteps=30, lora={"rank": 16})
    wait_for(place, "served", "Succeeded", seconds=600)
    place.kubectl("apply", "-f", "-", stdin=server_pod(get(place, "adapter", "served")["spec"]["uri"]))
    eventually(
        lambda: "true" in place.kubectl("get", "pod", "server", "-o", "jsonpath={.status.containerStatuses[*].ready}"),
        "vLLM is ready",
        240,
    )

    def answer(model: str) -> str:
        # kubectl's own proxy would need the pod's port published; python is in the image, and this pod is no run's.
        code = (
            "import json,sys,urllib.request as u;"
            "print(json.load(u.urlopen(u.Request('http://127.0.0.1:8000/v1/chat/completions',sys.argv[1].encode(),"
            "{'Content-Type':'application/json'})))['choices'][0]['message']['content'])"
        )
        return place.kubectl("exec", "server", "--", "python", "-c", code, json.dumps(PROMPT | {"model": model}))

    assert json.loads(answer("trained")) == {"product": "router", "issue": "broken", "priority": "low"}
    assert "{" not in answer("base"), "the base doesn't know the format; only the adapter does"
