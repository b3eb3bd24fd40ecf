"""A namespace with all that a GrpoRun's checks look at: a wallet, judges, an alias, counted traffic, a base and GPU classes."""

from __future__ import annotations

import time
import uuid
from typing import Any

from tests.api.client import Api, Object
from tests.api.kube import Kubectl, eventually

GROUP = "/apis/halo.training/v1alpha1"
PLURALS = {
    "GrpoRun": "grporuns",
    "Dataset": "datasets",
    "Criterion": "criteria",
    "ModelAlias": "modelaliases",
    "Workspace": "workspaces",
    "Adapter": "adapters",
    "BaseModel": "basemodels",
    "GpuClass": "gpuclasses",
}
WORKSPACE = {"wallet": {"creditUsd": 1000}, "storage": {"claim": "halo-artifacts"}, "autoProvision": True}
JUDGE = {"url": "https://judge.example/v1", "model": "judge-1", "inputUsd": 0.4, "outputUsd": 1.6}
TOOLS = {"proxyBaseUrl": "http://tools:8080/v1"}
NOW = "2026-11-29T12:00:00Z"


def body(kind: str, name: str, /, **spec: Any) -> Object:
    return {"apiVersion": "halo.training/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


class GrpoScene:
    """What a test does and sees. Statuses that calibration and inspection will write once are written here as they will."""

    def __init__(self, installed: Kubectl) -> None:
        self.api = Api.connect(installed.kubeconfig)
        self.namespace = f"grpo-{uuid.uuid4().hex[:8]}"
        self.kubectl = Kubectl(installed.tools, installed.kubeconfig, self.namespace)
        self.kubectl("create", "namespace", self.namespace)
        # Base models and GPU classes are the cluster's: names of the test's own.
        self.base, self.gpu, self.own = self.namespace, self.namespace, f"{self.namespace}-own"
        self.catalog = [
            body("BaseModel", self.base, source="pvc://halo-models/x", revision="sha256-0000000", parametersB=8, contextLength=32768, offers=["lora_trl", "grpo"]),
            body("GpuClass", self.gpu, memoryGiB=80, prices=[{"region": "eu-west", "usdPerHour": 2.5, "markup": 1.2}]),
            body("GpuClass", self.own, memoryGiB=80, byo=True),
        ]  # fmt: skip
        for entry in self.catalog:
            self.api.post(f"{GROUP}/{PLURALS[entry['kind']]}", entry)
        self.create(body("Workspace", "workspace", **WORKSPACE))
        for name, unit in (("helpful", "request"), ("solved", "trace")):
            self.create(body("Criterion", name, unit=unit, rubric="Is the answer right and short?", judge=JUDGE))
            self.says("Criterion", name, Calibrated="True")
        self.create(body("ModelAlias", "support", baseModel=self.base))
        self.create(body("Dataset", "log", kind="traffic", source="pvc://halo-data/log.jsonl", baseModels=[self.base]))
        self.counts(successful=500, tags=[{"tag": "support", "prompts": 119}])

    def close(self) -> None:
        for entry in self.catalog:
            self.api.delete(f"{GROUP}/{PLURALS[entry['kind']]}/{entry['metadata']['name']}")
        self.kubectl("delete", "namespace", self.namespace, "--wait=false")

    def path(self, kind: str, name: str = "") -> str:
        return f"{GROUP}/namespaces/{self.namespace}/{PLURALS[kind]}" + (f"/{name}" if name else "")

    def create(self, made: Object) -> Object:
        return self.api.post(self.path(made["kind"]), made)

    def change(self, kind: str, name: str, **spec: Any) -> None:
        self.api.patch(self.path(kind, name), {"spec": spec})

    def says(self, kind: str, name: str, status: Object | None = None, **conditions: str) -> None:
        """Set conditions of an object as whoever looks after it would."""
        listed = [
            {"type": type_, "status": value, "reason": type_, "message": "so it is", "lastTransitionTime": NOW}
            for type_, value in conditions.items()
        ]
        self.api.patch(f"{self.path(kind, name)}/status", {"status": {"conditions": listed, **(status or {})}})

    def counts(self, name: str = "log", **traffic: Any) -> None:
        """Have a data set counted. The operator goes on writing the rest of that status."""
        self.api.patch(f"{self.path('Dataset', name)}/status", {"status": {"traffic": traffic}})

    def spec(self, **changes: Any) -> Object:
        """A good spec; None takes a field away."""
        spec = {
            "model": self.base,
            "reward": {"mode": "single", "criterionId": "helpful"},
            "promptCount": 100,
            "rewardBudgetUsd": 25,
            "gpuHourBudget": 10,
            "platformGpu": {"gpuType": self.gpu, "region": "eu-west"},
        } | changes
        return {key: value for key, value in spec.items() if value is not None}

    def start(self, name: str, **changes: Any) -> Object:
        return self.create(body("GrpoRun", name, **self.spec(**changes)))

    def status(self, name: str) -> Object:
        return dict(self.api.request("GET", self.path("GrpoRun", name)).get("status", {}))

    def book(self) -> Object:
        """The Workspace's status."""
        return dict(self.api.request("GET", self.path("Workspace", "workspace")).get("status", {}))

    def condition(self, name: str, type_: str) -> Object:
        found = self.status(name).get("conditions", [])
        return next((c for c in found if c["type"] == type_), {"status": "", "reason": "", "message": ""})

    def settled(self, name: str, seconds: float = 10) -> Object:
        """The condition Accepted, once there is one."""
        end = time.monotonic() + seconds
        while not (found := self.condition(name, "Accepted"))["reason"]:
            assert time.monotonic() < end, f"{name}: nobody has looked within {seconds} s"
            time.sleep(0.1)
        return found

    def until(self, name: str, reason: str, seconds: float = 10) -> Object:
        """The condition Accepted, once it has that reason."""
        eventually(lambda: self.condition(name, "Accepted")["reason"] == reason, f"{name} is {reason}", seconds)
        return self.condition(name, "Accepted")

    def events(self, name: str) -> list[Object]:
        found = self.api.items(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")
        return [event for event in found if event["regarding"]["name"] == name]
