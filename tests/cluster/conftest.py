"""The embedded cluster with Halo installed as the demo does it, and for each test a namespace with real storage."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.api.client import Api
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
    api: Api
    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def path_of(self, uri: str) -> Path:
        """Where this machine has what a pod sees at an uri of the artifacts claim."""
        return self.folder / "artifacts" / uri.removeprefix("pvc://halo-artifacts/")

    def is_gone(self) -> bool:
        return self.api.get(f"/api/v1/namespaces/{self.kubectl.namespace}") is None


class Places:
    """Namespaces with real storage. One takes its time to go: the tests after it do not wait for that, their end does."""

    def __init__(self, halo: Kubectl) -> None:
        self._halo, self._api = halo, Api.connect(halo.kubeconfig)
        self._leaving: list[tuple[Place, str]] = []

    @contextmanager
    def one(self, test: str) -> Iterator[Place]:
        namespace = f"story-{uuid.uuid4().hex[:8]}"
        folder = Path(hack("storage", namespace))
        place = Place(Kubectl(self._halo.tools, self._halo.kubeconfig, namespace), self._api, folder)
        # The kubelet looks at a pod's ServiceAccount; it comes a moment after its namespace.
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        eventually(lambda: self._api.get(account) is not None, "the namespace has its ServiceAccount")
        yield place
        place.kubectl("delete", "namespace", namespace, "--wait=false")
        self._leaving.append((place, test))

    def until_gone(self) -> None:
        """Nothing holds any of them; what was theirs on this machine goes too."""
        for place, test in self._leaving:
            eventually(place.is_gone, f"{place.kubectl.namespace} of {test} is gone, nothing holds it", 150)
            place.kubectl("delete", "pv", "-l", f"halo-storage={place.kubectl.namespace}")
            shutil.rmtree(place.folder)


@pytest.fixture(scope="session")
def places(halo: Kubectl) -> Iterator[Places]:
    places = Places(halo)
    yield places
    places.until_gone()


@pytest.fixture
def place(places: Places, request: pytest.FixtureRequest) -> Iterator[Place]:
    with places.one(request.node.name) as place:
        yield place


@pytest.fixture
def beside(places: Places, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A second one."""
    with places.one(request.node.name) as place:
        yield place
