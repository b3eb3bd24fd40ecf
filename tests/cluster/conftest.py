"""The embedded cluster with Halo installed as the demo does it, and for each test a namespace with real storage."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.api.kube import OPERATOR_NAMESPACE, ROOT, Kubectl, eventually, hack

CATALOG = ROOT / "examples" / "catalog.yaml"


def helm(*arguments: str) -> None:
    """Install or upgrade Halo, and wait until its pods run what was asked for."""
    command = [
        "helm", "upgrade", "--install", "halo", str(ROOT / "charts" / "halo"), "--namespace", OPERATOR_NAMESPACE,
        "--create-namespace", "--wait", "--timeout", "5m", "-f", str(ROOT / "hack" / "demo-values.yaml"), *arguments,
    ]  # fmt: skip
    environment = os.environ | {
        "KUBECONFIG": hack("cluster", "kubeconfig"),
        "PATH": hack("cluster", "bin") + ":" + os.environ["PATH"],
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def halo() -> Kubectl:
    """kubectl as administrator of a cluster on which the Halo of this checkout runs."""
    hack("cluster", "up")
    admin = Kubectl(Path(hack("cluster", "bin")), Path(hack("cluster", "kubeconfig")))
    helm()
    # A rebuilt image has the same name: only a restart brings this checkout's code in.
    admin("-n", OPERATOR_NAMESPACE, "rollout", "restart", "deployment/halo-operator")
    admin("-n", OPERATOR_NAMESPACE, "rollout", "status", "deployment/halo-operator", "--timeout=50s")
    admin("apply", "-f", str(CATALOG))
    return admin


@dataclass(frozen=True)
class Place:
    """A namespace, kubectl in it, and the folders behind its claims."""

    kubectl: Kubectl
    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def path_of(self, uri: str) -> Path:
        """Where this machine has what a pod sees at an uri of the artifacts claim."""
        return self.folder / "artifacts" / uri.removeprefix("pvc://halo-artifacts/")


@pytest.fixture
def place(halo: Kubectl) -> Iterator[Place]:
    namespace = f"story-{uuid.uuid4().hex[:8]}"
    folder = Path(hack("storage", namespace))
    kubectl = Kubectl(halo.tools, halo.kubeconfig, namespace)
    # The kubelet looks at a pod's ServiceAccount; it comes a moment after its namespace.
    eventually(
        lambda: kubectl.run("get", "serviceaccount", "default").returncode == 0, "the namespace has its ServiceAccount"
    )
    yield Place(kubectl, folder)
    kubectl("delete", "namespace", namespace, "--wait=false")
    eventually(
        lambda: kubectl.run("get", "namespace", namespace).returncode != 0,
        f"{namespace} is gone, nothing holds it",
        150,
    )
    kubectl("delete", "pv", "-l", f"halo-storage={namespace}")
    shutil.rmtree(folder)
