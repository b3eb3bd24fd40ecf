"""What the bench stands on: a control plane of its own, nodes that kwok plays, the chart, storage, a catalog and a data set."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from embedded.binaries import KWOK_CONTROLLER, installed, tools
from embedded.processes import Process, Processes
from embedded.settings import Home, write
from tests.api.kube import OPERATOR_NAMESPACE, ROOT, Kubectl, eventually, hack
from tests.api.operator_process import OperatorProcess, catalog, dataset, free_port

NAME = "bench"
NAMESPACE = "bench"
NODES = 150
GPUS_PER_NODE = 8
DATASET = "chat"
CLAIMS = ("halo-models", "halo-data", "halo-artifacts")
# kwok's own defaults, as its users run it; the lease keeps the node lifecycle controller content.
KWOK_OPTIONS = {
    "manageAllNodes": True,
    "cidr": "10.64.0.1/12",
    "nodeIP": "127.0.0.1",
    "nodePort": 0,
    "nodeLeaseDurationSeconds": 40,
    "podPlayStageParallelism": 16,
    "nodePlayStageParallelism": 4,
    "nodeLeaseParallelism": 4,
}


class Stand:
    """The cluster that every configuration is measured on."""

    def __init__(self) -> None:
        self.home = Home(NAME)
        self.processes = Processes(self.home.root)
        self.kubectl = Kubectl(tools(), self.home.kubeconfig, NAMESPACE)

    def up(self) -> None:
        """Start it from nothing, so that no earlier object or log is in the way."""
        # What ended the last bench may have left it standing.
        self.down()
        kwok = installed(KWOK_CONTROLLER) / "kwok"
        hack("cluster", "up", "--name", NAME, "--no-node", "--audit")
        self._play_nodes(kwok)
        self._install_chart()
        self._apply(everything())
        # A pod of an unbound claim is unschedulable at first, which costs writes that no run of a real cluster has.
        self.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", "pvc", "--all", "--timeout=60s")
        self._inspect()

    def down(self) -> None:
        self.processes.stop("kwok")
        hack("cluster", "down", "--name", NAME, "--purge")

    def operator(self) -> OperatorProcess:
        """One replica, logged in as the chart's ServiceAccount, with the chart's defaults."""
        process = OperatorProcess(self.kubectl, PYTHONDONTWRITEBYTECODE="1")
        try:
            return process.wait_until_leading()
        except BaseException:
            process.kill()
            raise

    def pids(self) -> dict[str, int]:
        """The processes of the cluster that are ours to measure."""
        alive = {name: self.processes.pid(name) for name in self.processes.alive()}
        return {name: pid for name, pid in alive.items() if pid is not None}

    def _play_nodes(self, kwok: Path) -> None:
        self._apply([node(index) for index in range(NODES)])
        port = free_port()
        options = {
            "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
            "kind": "KwokConfiguration",
            "options": {**KWOK_OPTIONS, "serverAddress": f"127.0.0.1:{port}"},
        }
        stages = (Path(__file__).parent / "stages.yaml").read_text()
        config = write(self.home.root / "kwok.yaml", f"{json.dumps(options)}\n---\n{stages}")
        command = (str(kwok), "--kubeconfig", str(self.home.kubeconfig), "--config", str(config))
        self.processes.ensure(Process("kwok", command, files=(config,)))
        self.processes.wait("kwok", lambda: answers(f"http://127.0.0.1:{port}/healthz"))
        # `kubectl wait` asks for the nodes one by one, five a second.
        ready = ("get", "nodes", "-o", "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}")
        eventually(lambda: self.kubectl(*ready).split().count("True") == NODES, "the nodes are ready", 60)

    def _install_chart(self) -> None:
        helm = [str(tools() / "helm"), "upgrade", "--install", "halo", str(ROOT / "charts" / "halo")]
        where = ["--namespace", OPERATOR_NAMESPACE, "--create-namespace", "--set", "replicas=0", "--wait"]
        # Its Service leads nowhere: the operator runs outside the cluster.
        where += ["--set", "webhook.enabled=false"]
        environment = os.environ | {"KUBECONFIG": str(self.home.kubeconfig)}
        done = subprocess.run([*helm, *where], env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        self.kubectl("wait", "--for=condition=Established", "crd", "-l", "app.kubernetes.io/part-of=halo")

    def _inspect(self) -> None:
        operator = self.operator()
        try:
            eventually(self._is_inspected, "the data set is inspected", 60)
        finally:
            operator.stop()

    def _is_inspected(self) -> bool:
        return "True" in self.kubectl(
            "get", "dataset", DATASET, "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        )

    def _apply(self, objects: list[dict[str, Any]]) -> None:
        self.kubectl("apply", "--server-side", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": objects})


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        time.sleep(0.1)
        return False


def node(index: int) -> dict[str, Any]:
    name, room = f"fake-{index:03}", {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(GPUS_PER_NODE)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "status": {"allocatable": room, "capacity": room},
    }


def gpu_class(pods: int) -> str:
    """The GPU class by which a run gets that many pods of one GPU each."""
    return f"bench-{pods}"


def everything() -> list[dict[str, Any]]:
    """What runs need around them: claims that are bound, the catalog and the data set."""
    base_model, one_node = catalog("bench")
    classes = [
        {**one_node, "metadata": {"name": gpu_class(pods)}, "spec": {**one_node["spec"], "perNode": per_node}}
        for pods, per_node in ((1, GPUS_PER_NODE), (2, 1))
    ]
    chat = dataset("bench", DATASET)
    chat["metadata"]["namespace"] = NAMESPACE
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        *(one for claim in CLAIMS for one in volume_and_claim(claim)),
        base_model,
        *classes,
        chat,
    ]


def volume_and_claim(name: str) -> list[dict[str, Any]]:
    size = {"storage": "1Gi"}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"bench-{name}"},
            "spec": {
                "capacity": size,
                "accessModes": ["ReadWriteMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": f"/nowhere/{name}"},
                "claimRef": {"namespace": NAMESPACE, "name": name},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "",
                "volumeName": f"bench-{name}",
                "resources": {"requests": size},
            },
        },
    ]
