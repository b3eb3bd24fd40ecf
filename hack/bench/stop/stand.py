"""What the runs stand on: the embedded cluster with this checkout's Halo, a namespace with storage, and an allocation for them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import uuid
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

from tests.api.client import Api, Object, Refused
from tests.api.kube import OPERATOR_NAMESPACE, ROOT, Kubectl, eventually, hack
from tests.cluster.conftest import CATALOG, Place, helm
from tests.cluster.runs import BASE, chat_file, dataset, wait_for

from .operator import Operator

GROUP = "/apis/halo.training/v1alpha1"
GPU_CLASS = "bench-budget"
EQUIVALENT = Decimal(1)
GPUS = 1
# Far beyond what the budget pays.
STEPS, BATCH, SAVE_STEPS = 50_000, 1, 1
LEAST = re.compile(r"less than the ([0-9.]+) H100-hours")


class Stand:
    """The cluster and, from `open` on, a namespace in it."""

    def __init__(self, as_is: bool, turn: Path | None) -> None:
        hack("cluster", "up")
        tools, kubeconfig = Path(hack("cluster", "bin")), Path(hack("cluster", "kubeconfig"))
        self.kubectl = Kubectl(tools, kubeconfig)
        self.api = Api.connect(kubeconfig)
        if not as_is:
            self._install()
        self._make_class()
        self.operator = Operator(self.kubectl, self.api, turn)
        self.namespace = f"budget-{uuid.uuid4().hex[:8]}"
        kubectl = Kubectl(tools, kubeconfig, self.namespace)
        self.place = Place(kubectl, self.api, Path(hack("storage", self.namespace)))

    def _install(self) -> None:
        hack("images", "build", "operator", "trainer")
        hack("base-model")
        helm()
        # A rebuilt image has the same name: only a restart brings this checkout's code in.
        self.kubectl("-n", OPERATOR_NAMESPACE, "rollout", "restart", "deployment/halo-operator")
        self.kubectl("-n", OPERATOR_NAMESPACE, "rollout", "status", "deployment/halo-operator", "--timeout=50s")
        self.kubectl("apply", "-f", str(CATALOG))

    def _make_class(self) -> None:
        """The catalog's H100 asks for half a core: eight trainers need a node to themselves, and here share two cores."""
        h100 = self.api.get(f"{GROUP}/gpuclasses/h100")
        assert h100 is not None, "the catalog has no h100"
        spec = h100["spec"] | {"perGpu": {"cpu": "50m", "memory": "2Gi"}}
        body = {"apiVersion": h100["apiVersion"], "kind": "GpuClass", "metadata": {"name": GPU_CLASS}, "spec": spec}
        self.kubectl("apply", "--server-side", "-f", "-", stdin=body)

    def open(self, runs: int, margin: Decimal) -> Decimal:
        """Make the namespace ready for so many runs, one after another or at once; return the budget of each in H100-hours."""
        ready = lambda: self.place.kubectl.run("get", "serviceaccount", "default").returncode == 0  # noqa: E731
        eventually(ready, "the namespace has its ServiceAccount")
        self._workspace(Decimal(1))
        chat_file(self.place)
        dataset(self.place)
        wait_for(self.place, "tickets", "Inspected", kind="dataset")
        budget = self._least() + margin
        # Exactly what they hold if all are charged all: no run may take another's.
        self._workspace(budget * runs)
        return budget

    def close(self, keep: bool) -> None:
        self.operator.close()
        if keep:
            return
        for pod in self.api.items(f"/api/v1/namespaces/{self.namespace}/pods"):
            with suppress(AssertionError, Refused):
                self.api.delete(f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}")
        self.place.kubectl("delete", "namespace", self.namespace, "--wait=false")
        gone = lambda: self.place.kubectl.run("get", "namespace", self.namespace).returncode != 0  # noqa: E731
        eventually(gone, f"{self.namespace} is gone, nothing holds it", 180)
        self.kubectl("delete", "pv", "-l", f"halo-storage={self.namespace}")
        self.kubectl("delete", "gpuclass", GPU_CLASS)
        shutil.rmtree(self.place.folder)

    # --- the API

    def path(self, kind: str, name: str = "") -> str:
        return f"{GROUP}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=halo.training/role=trainer"

    def start(self, name: str, budget: Decimal) -> Object:
        return self.api.post(self.path("trainingjobs"), training_job(name, budget))

    def workspace(self) -> Object:
        found = self.api.get(self.path("workspaces", "workspace"))
        assert found is not None, "the Workspace is gone"
        return found

    def adapter(self, name: str) -> tuple[Object | None, Path | None]:
        """The Adapter, and the folder of its files."""
        found = self.api.get(self.path("adapters", name))
        return found, self.place.path_of(found["spec"]["uri"]) if found else None

    def ledger_check(self) -> str:
        """Return what `kubectl halo ledger --check` finds wrong, or nothing."""
        environment = os.environ | {
            "KUBECONFIG": str(self.kubectl.kubeconfig),
            "PATH": f"{self.kubectl.tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "operator"),
        }
        command = [sys.executable, "-m", "halo_cli", "ledger", "--check", "-n", self.namespace]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()

    def _workspace(self, hours: Decimal) -> None:
        spec = {"allocation": {"h100Hours": float(hours)}, "storage": {"claim": "halo-artifacts"}}
        meta = {"name": "workspace"}
        body = {"apiVersion": "halo.training/v1alpha1", "kind": "Workspace", "metadata": meta, "spec": spec}
        self.place.kubectl("apply", "--server-side", "-f", "-", stdin=body)
        granted = lambda: (  # noqa: E731
            self.workspace().get("status", {}).get("observedGeneration") == self.workspace()["metadata"]["generation"]
        )
        eventually(granted, "the Workspace is ready")

    def _least(self) -> Decimal:
        """The least budget that a run is accepted with: what the refusal of one with less says."""
        try:
            self.api.post(f"{self.path('trainingjobs')}?dryRun=All", training_job("least", Decimal("0.001")))
        except Refused as refused:
            if found := LEAST.search(str(refused)):
                return Decimal(found[1])
            raise
        raise AssertionError("a budget of 3.6 s was accepted")


def training_job(name: str, budget: Decimal) -> Object:
    return {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "base": "lora_trl",
            "baseModel": BASE,
            "gpu": {"type": GPU_CLASS, "count": GPUS},
            "steps": STEPS,
            "batch": BATCH,
            "saveSteps": SAVE_STEPS,
            "budget": {"h100Hours": float(budget)},
            "lora": {"dataset": "tickets", "rank": 4, "learningRate": 0.001},
        },
    }
