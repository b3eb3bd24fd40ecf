"""What the proof stands on: a control plane of its own, the chart, the catalog, and a namespace for each repetition."""

from __future__ import annotations

import os
import subprocess
import uuid
from decimal import Decimal
from typing import Any

from embedded.binaries import tools
from embedded.processes import Processes
from embedded.settings import Home
from tests.api.client import Api, Object
from tests.api.grpo_scene import JUDGE, NOW, PLURALS, body
from tests.api.kube import OPERATOR_NAMESPACE, ROOT, Kubectl, eventually, hack
from tests.api.operator_process import catalog, dataset, training_job
from tests.api.stage import CLAIMS, GROUP, Stage, plural

NAME = "ledger"
REGION = "eu-west"
# Amounts that no float adds up.
PRICE = {"region": REGION, "usdPerHour": 2.49, "markup": 1.17}
GRPO_HOURS = Decimal("0.001")


class Stand:
    """The cluster; what is cluster-wide is made once."""

    def __init__(self) -> None:
        self.home = Home(NAME)
        self.kubectl = Kubectl(tools(), self.home.kubeconfig)

    def up(self) -> Api:
        self.down()
        hack("cluster", "up", "--name", NAME, "--no-node", "--audit")
        helm = [str(tools() / "helm"), "upgrade", "--install", "halo", str(ROOT / "charts" / "halo"), "--wait"]
        where = ["--namespace", OPERATOR_NAMESPACE, "--create-namespace", "--set", "replicas=0,webhook.enabled=false"]
        environment = os.environ | {"KUBECONFIG": str(self.home.kubeconfig)}
        done = subprocess.run([*helm, *where], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        self.kubectl("wait", "--for=condition=Established", "crd", "-l", "app.kubernetes.io/part-of=halo")
        api = Api.connect(self.home.kubeconfig)
        base, gpu = catalog(NAME)
        base["spec"] |= {"offers": ["lora_trl", "grpo"]}
        gpu["spec"] |= {"prices": [PRICE]}
        for entry in (base, gpu):
            api.post(f"{GROUP}/{plural(entry)}", entry)
        return api

    def pids(self) -> list[int]:
        processes = Processes(self.home.root)
        return [pid for name in processes.alive() if (pid := processes.pid(name)) is not None]

    def down(self) -> None:
        hack("cluster", "down", "--name", NAME, "--purge")


class Room(Stage):
    """A namespace with all that runs of both kinds need, and a wallet for so many equal holds. Its pods are played by another."""

    def __init__(self, api: Api, credit: Decimal) -> None:
        self.api, self.base, self.namespace = api, NAME, f"ledger-{uuid.uuid4().hex[:8]}"
        self.credit = credit
        meta = {"name": self.namespace}
        api.post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        for claim in CLAIMS:
            self.claim(claim)
        wallet = {
            "wallet": {"creditUsd": float(credit)},
            "storage": {"claim": "halo-artifacts"},
            "startsPerMinute": 1000,
        }
        self.make(body("Workspace", "workspace", **wallet))
        self.make(dataset(NAME, "chat"))
        self.make(body("Dataset", "log", kind="traffic", source="pvc://halo-data/log.jsonl", baseModels=[NAME]))
        self.make(body("Criterion", "helpful", unit="request", rubric="Is the answer right and short?", judge=JUDGE))
        # As calibration and the count of traffic will write them.
        self._says("criteria", "helpful", {"conditions": [true("Calibrated")]})
        self._says("datasets", "log", {"traffic": {"successful": 500, "tags": []}})
        eventually(lambda: self.state("chat", "datasets") == "Inspected", f"{self.namespace}: chat is inspected", 120)

    def make(self, made: Object) -> Object:
        return self.api.post(self.path(PLURALS.get(made["kind"]) or plural(made)), made)

    def workspace(self) -> Object | None:
        return self.api.get(self.path("workspaces", "workspace"))

    def leave(self) -> None:
        """Delete all of it; volumes are the cluster's."""
        self.api.delete(f"/api/v1/namespaces/{self.namespace}")
        for claim in CLAIMS:
            self.api.delete(f"/api/v1/persistentvolumes/{self.namespace}-{claim}")

    def is_gone(self) -> bool:
        return self.api.get(f"/api/v1/namespaces/{self.namespace}") is None

    def _says(self, kind: str, name: str, status: Object) -> None:
        self.api.patch(f"{self.path(kind, name)}/status", {"status": status})


def true(type_: str) -> dict[str, str]:
    return {"type": type_, "status": "True", "reason": type_, "message": "so it is", "lastTransitionTime": NOW}


def a_training_job(name: str) -> Object:
    return training_job(NAME, name)


def a_grpo_run(name: str, reward: Decimal) -> Object:
    spec: dict[str, Any] = {
        "model": NAME,
        "reward": {"mode": "single", "criterionId": "helpful"},
        "promptCount": 100,
        "rewardBudgetUsd": float(reward),
        "gpuHourBudget": float(GRPO_HOURS),
        "platformGpu": {"gpuType": NAME, "region": REGION},
    }
    return body("GrpoRun", name, **spec)
