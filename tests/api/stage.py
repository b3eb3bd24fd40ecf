"""A namespace of a test's own with all that a run needs: claims, a base model, a GPU class and an inspected data set."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from halo_api import API_VERSION
from halo_api.report import Outcome, Report
from halo_api.workspace import WORKSPACE
from halo_operator.plan.names import HOLD_FINALIZER
from tests.api import pods
from tests.api.client import Object, Refused
from tests.api.kube import OPERATOR, Kubectl, eventually
from tests.api.operator_process import OperatorProcess, catalog, dataset, training_job
from tests.api.pods import PlayedNode

GROUP = "/apis/halo.training/v1alpha1"
CLAIMS = ("halo-models", "halo-data", "halo-artifacts")
LABELS = {"pod-security.kubernetes.io/enforce": "restricted", "halo-tests": "stage"}


class Stage:
    """What a test does and sees; `kubectl` is for what a user would type, the rest asks the API server directly."""

    def __init__(self, installed: Kubectl, node: PlayedNode, namespace: str = "") -> None:
        self.node, self.api = node, node.admin
        self.namespace = namespace or f"run-{uuid.uuid4().hex[:8]}"
        # Base models and GPU classes are the cluster's: a name of the test's own.
        self.base = self.namespace
        self.kubectl = Kubectl(installed.tools, installed.kubeconfig, self.namespace)
        self.tokens: dict[str, str] = {}

    def open(self) -> None:
        self.api.post(
            "/api/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace, "labels": LABELS}},
        )
        for claim in CLAIMS:
            self.claim(claim)
        for entry in catalog(self.base):
            self.api.post(f"{GROUP}/{plural(entry)}", entry)

    def close(self) -> None:
        """Leave nothing: what no kubelet will end and no operator is there to let go is let go here."""
        self.api.delete(f"/api/v1/namespaces/{self.namespace}")
        operator = self.api.as_user(OPERATOR)
        for kind in ("trainingjobs", "datasets"):
            for item in self.api.items(self.path(kind)):
                self.api.delete(self.path(kind, item["metadata"]["name"]), propagationPolicy="Background")
        self.let_go_of_holds()
        for pod in self.all_pods():
            if pod["metadata"].get("finalizers"):
                # The operator may let it go first.
                with suppress(Refused):
                    operator.patch(pods.path_of(pod), {"metadata": {"finalizers": None}})
            self.api.delete(pods.path_of(pod), gracePeriodSeconds=0)
        for entry in catalog(self.base):
            self.api.delete(f"{GROUP}/{plural(entry)}/{self.base}")
        for claim in CLAIMS:
            self.api.delete(f"/api/v1/persistentvolumes/{self.namespace}-{claim}")

    @classmethod
    def left_behind(cls, installed: Kubectl, node: PlayedNode) -> list[Stage]:
        """The stages of sessions that were killed: their runs would still take the node's GPUs."""
        found = node.admin.items("/api/v1/namespaces?labelSelector=halo-tests%3Dstage")
        return [cls(installed, node, one["metadata"]["name"]) for one in found]

    def let_go_of_holds(self) -> None:
        """Take our finalizer off what no operator is there to settle."""
        for kind in ("trainingjobs", "workspaces"):
            for item in self.api.items(self.path(kind)):
                if HOLD_FINALIZER in item["metadata"].get("finalizers", []):
                    with suppress(Refused):
                        self.api.patch(self.path(kind, item["metadata"]["name"]), {"metadata": {"finalizers": None}})

    def path(self, kind: str, name: str = "") -> str:
        core = kind in ("pods", "services", "configmaps", "persistentvolumeclaims", "serviceaccounts")
        group = "/api/v1" if core else "/apis/events.k8s.io/v1" if kind == "events" else GROUP
        return f"{group}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def claim(self, name: str) -> None:
        """A claim with its volume. Bound here, in the order that the binder can't take amiss: it would need seconds."""
        volume, size = f"{self.namespace}-{name}", {"storage": "1Gi"}
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        asked = {"metadata": {"name": name}, "spec": {**common, "resources": {"requests": size}}}
        made = self.api.post(self.path("persistentvolumeclaims"), asked)
        claim = {"namespace": self.namespace, "name": name, "uid": made["metadata"]["uid"]}
        spec = {**common, "capacity": size, "hostPath": {"path": "/nowhere"}, "claimRef": claim}
        self.api.post("/api/v1/persistentvolumes", {"metadata": {"name": volume}, "spec": spec})
        bound = {"pv.kubernetes.io/bind-completed": "yes"}
        path = self.path("persistentvolumeclaims", name)
        self.api.patch(path, {"metadata": {"annotations": bound}, "spec": {"volumeName": volume}})

    # --- what a user does

    def create(self, body: Object) -> Object:
        return self.api.post(self.path(plural(body)), body)

    def inspected_dataset(self, name: str = "chat") -> None:
        """A data set, its inspection already over."""
        self.create(dataset(self.base, name))
        pods.finish(self.node, self.pod(name), pods.inspected())
        self.until(lambda: self.state(name, "datasets") == "Inspected", f"{name} is inspected")

    def start(self, name: str = "run", **spec: Any) -> Object:
        """A run, its first pod made."""
        self.create(training_job(self.base, name, **spec))
        return self.pod(name)

    def grant(self, **spec: Any) -> Object:
        """Give the namespace a Workspace, or another grant to the one that it has; wait until its book is opened."""
        if self.api.get(self.path("workspaces", WORKSPACE)):
            made = self.api.patch(self.path("workspaces", WORKSPACE), {"spec": spec})
        else:
            made = self.create(
                {"apiVersion": API_VERSION, "kind": "Workspace", "metadata": {"name": WORKSPACE}, "spec": spec}
            )
        seen = made["metadata"]["generation"]
        self.until(lambda: self.book().get("observedGeneration") == seen, "the Workspace was looked at")
        return made

    # --- what there is

    def book(self) -> Object:
        """The Workspace's status."""
        return self.status(WORKSPACE, "workspaces")

    def held(self) -> dict[str, str]:
        """What is held, by run."""
        return {hold["run"]["name"]: hold["amount"] for hold in self.book().get("holds", {}).values()}

    def entries(self) -> list[tuple[str, str, str]]:
        """The settled entries that are in no page: the run, what was charged, and why it ended."""
        return [(e["run"]["name"], e["charged"], e["outcome"]) for e in self.book().get("settled", [])]

    def run(self, name: str = "run", kind: str = "trainingjobs") -> Object:
        return self.api.request("GET", self.path(kind, name))

    def status(self, name: str = "run", kind: str = "trainingjobs") -> Object:
        return dict(self.run(name, kind).get("status", {}))

    def condition(self, type_: str, name: str = "run", kind: str = "trainingjobs") -> Object:
        found = self.status(name, kind).get("conditions", [])
        return next((c for c in found if c["type"] == type_), {"status": "", "reason": "", "message": ""})

    def state(self, name: str = "run", kind: str = "trainingjobs") -> str:
        return str(self.condition("Ready", name, kind)["reason"])

    def all_pods(self, owner: str = "") -> list[Object]:
        """Every pod, or those of the run or data set of that name."""
        found = [(p, owner_of(p)) for p in self.api.items(self.path("pods"))]
        return [p for p, (kind, name) in found if not owner or (name == owner and kind != "Adapter")]

    def verify_pods(self, adapter: str = "run") -> list[Object]:
        """The pods that hash the files of an adapter."""
        return [p for p in self.api.items(self.path("pods")) if owner_of(p) == ("Adapter", adapter)]

    def verify_pod(self, adapter: str = "run") -> Object:
        """The pod that hashes the files of an adapter, once it is made."""
        self.until(lambda: self.verify_pods(adapter), f"there is a pod that verifies {adapter}")
        return self.verify_pods(adapter)[-1]

    def pod(
        self, owner: str = "run", attempt: int = 1, rank: int = 0, seconds: float = 180, *, publishes: bool = False
    ) -> Object:
        """The pod of an attempt, once it is made; the one that `publishes` what the attempt left, or one that works before."""
        wanted = {"halo.training/attempt": str(attempt), "halo.training/rank": str(rank)}
        found: list[Object] = []

        def made() -> bool:
            mine = [p for p in self.all_pods(owner) if wanted.items() <= p["metadata"]["labels"].items()]
            work = [p for p in mine if role_of(p) != "rollout"]
            found[:] = [p for p in work if (role_of(p) == "publish") == publishes]
            return bool(found)

        self.until(made, f"there is a pod of attempt {attempt} of {owner}", seconds)
        return found[0]

    def servers(self, owner: str = "run") -> list[Object]:
        """The pods of a run's rollout servers that have not ended, in the order of servers."""
        found = [p for p in self.all_pods(owner) if role_of(p) == "rollout"]
        live = [p for p in found if p["status"]["phase"] not in ("Succeeded", "Failed")]
        return sorted(live, key=lambda p: p["metadata"]["labels"]["halo.training/rank"])

    def events(self, name: str = "run") -> list[Object]:
        found = [e for e in self.api.items(self.path("events")) if e["regarding"].get("name") == name]
        return sorted(found, key=lambda e: e.get("eventTime") or "")

    def adapter(self, name: str = "run") -> Object | None:
        return self.api.get(self.path("adapters", name))

    # --- waiting

    def until(self, holds: Callable[[], Any], what: str, seconds: float = 180) -> None:
        eventually(lambda: bool(holds()), what, seconds)

    def until_state(self, state: str, name: str = "run", seconds: float = 180) -> None:
        end = time.monotonic() + seconds
        while self.state(name) != state:
            assert time.monotonic() < end, f"{name} is {self.condition('Ready', name)}, not {state}"
            time.sleep(0.1)

    def until_stopping(self, pod: Object) -> None:
        path = pods.path_of(pod)
        self.until(lambda: "deletionTimestamp" in self.api.request("GET", path)["metadata"], "the pod is asked to stop")

    # --- what the pod says

    def push(self, operator: OperatorProcess, pod: Object, body: Report) -> tuple[int, Any]:
        uid = pod["metadata"]["uid"]
        if uid not in self.tokens:
            self.tokens[uid] = pods.token_of(self.node, pods.bind(self.node, pod))
        return pods.push(operator.report_port, pod, self.tokens[uid], body)

    def push_until_acknowledged(
        self, operator: OperatorProcess, pod: Object, body: Report, seconds: float = 180
    ) -> None:
        """Push as the supervisor does: again until everything is in the status."""

        def acknowledged() -> bool:
            code, answer = self.push(operator, pod, body)
            assert code in (200, 503), answer
            return code == 200 and answer.acknowledged

        self.until(acknowledged, f"report {body.sequence} is acknowledged", seconds)

    def finish(self, pod: Object, outcome: Outcome) -> None:
        pods.finish(self.node, pod, outcome)


def role_of(pod: Object) -> str:
    """What work a pod of a run does."""
    return str(pod["metadata"]["labels"]["halo.training/role"])


def owner_of(pod: Object) -> tuple[str, str]:
    """The kind and name of what a pod is of."""
    kind, _, name = pod["metadata"].get("annotations", {}).get("halo.training/owner", "").partition("/")
    return kind, name


def plural(body: Object) -> str:
    kinds = {"GpuClass": "gpuclasses"}
    return kinds.get(body["kind"], body["kind"].lower() + "s")


def steps(stage: Stage) -> list[int]:
    """The steps whose checkpoints the status keeps."""
    return [c["step"] for c in stage.status().get("checkpoints", [])]


def attempts(stage: Stage) -> list[tuple[int, str]]:
    """The attempts and what they ended for."""
    return [(a["attempt"], a.get("reason", "")) for a in stage.status().get("attempts", [])]
