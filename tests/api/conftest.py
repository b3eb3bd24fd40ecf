"""A real API server with the chart installed: started once, a namespace a test, and kubectl as any user."""

from __future__ import annotations

import fcntl
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.api.client import Api
from tests.api.kube import CLUSTER, OPERATOR_NAMESPACE, ROOT, Kubectl, eventually, hack
from tests.api.operator_process import OperatorProcess, replica
from tests.api.pods import PlayedNode
from tests.api.stage import Stage

# The webhook's Service would lead nowhere; its own tests make a configuration that leads to their operator.
WITHOUT_OPERATOR = ("--set", "replicas=0", "--set", "webhook.enabled=false")


@pytest.fixture(scope="session")
def api_kubeconfig() -> Path:
    """The kubeconfig of a control plane without a node; it stays up for the next session, which finds it running."""
    hack("cluster", "up", "--name", CLUSTER, "--no-node", "--audit")
    return Path(hack("cluster", "kubeconfig", "--name", CLUSTER))


@pytest.fixture(scope="session")
def tools() -> Path:
    """The directory of kubectl and helm."""
    return Path(hack("cluster", "bin"))


@pytest.fixture(scope="session")
def installed_chart(api_kubeconfig: Path, tools: Path) -> Kubectl:
    """The chart as a user installs it, but for the operator's pods: nothing here runs one."""
    install = ["upgrade", "--install", "halo", str(ROOT / "charts" / "halo"), *WITHOUT_OPERATOR, "--reset-values"]
    with open(f"{api_kubeconfig}.helm-lock", "w") as lock:
        # Helm refuses a second upgrade of a release at the same time, as parallel test processes would make.
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [str(tools / "helm"), *install, "--namespace", OPERATOR_NAMESPACE, "--create-namespace", "--wait"],
            env=os.environ | {"KUBECONFIG": str(api_kubeconfig)},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    admin = Kubectl(tools, api_kubeconfig)
    admin("wait", "--for=condition=Established", "crd", "-l", "app.kubernetes.io/part-of=halo")
    eventually(
        lambda: "halo.training" in admin("get", "clusterrole", "edit", "-o", "yaml"), "the edit role has our kinds"
    )
    eventually(lambda: enforces_policies(admin), "the policies are enforced")
    return admin


@pytest.fixture(scope="session")
def api(installed_chart: Kubectl) -> Api:
    """The API server as administrator, asked directly: its answers, where nothing depends on how kubectl shows them."""
    return Api.connect(installed_chart.kubeconfig)


def enforces_policies(admin: Kubectl) -> bool:
    """Whether the API server has seen the policies: it learns of new ones a moment after it has stored them."""
    labelled = admin.run("run", "probe", "--image=x", "--labels=halo.training/x=y", "--dry-run=server")
    token = admin.run("create", "token", "default", "--audience=halo-report")
    forged = admin.run("run", "x-a1-0123456789", "--image=x", "--dry-run=server")
    return all("halo-" in answer.stderr for answer in (labelled, token, forged))


@pytest.fixture
def admin(installed_chart: Kubectl) -> Iterator[Kubectl]:
    """kubectl as administrator in a namespace of the test's own."""
    with own_namespace(installed_chart) as kubectl:
        yield kubectl


@pytest.fixture(scope="module")
def shared_admin(installed_chart: Kubectl) -> Iterator[Kubectl]:
    """The same in a namespace that the tests of a module share: for those that leave nothing in it."""
    with own_namespace(installed_chart) as kubectl:
        yield kubectl


@contextmanager
def own_namespace(installed: Kubectl) -> Iterator[Kubectl]:
    kubectl = replace(installed, namespace=f"test-{uuid.uuid4().hex[:10]}")
    kubectl("create", "namespace", kubectl.namespace)
    yield kubectl
    kubectl("delete", "namespace", kubectl.namespace, "--wait=false")


@pytest.fixture(scope="module")
def alone(api_kubeconfig: Path) -> Iterator[None]:
    """An installation has one lease: two test sessions at once would lead in each other's place."""
    with open(f"{api_kubeconfig}.operator-lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def node(installed_chart: Kubectl, alone: None) -> Iterator[PlayedNode]:
    """A Node whose pods are played; only while a module needs it, so that nobody else's pods are put on it."""
    node = PlayedNode(Api.connect(installed_chart.kubeconfig))
    for stage in Stage.left_behind(installed_chart, node):
        stage.close()
    yield node
    node.leave()


@pytest.fixture
def stage(installed_chart: Kubectl, node: PlayedNode) -> Iterator[Stage]:
    """A namespace with all that a run needs."""
    stage = Stage(installed_chart, node)
    stage.open()
    yield stage
    stage.close()


@pytest.fixture(scope="module")
def operator(installed_chart: Kubectl, alone: None) -> Iterator[OperatorProcess]:
    """One replica that leads while the tests of a module run."""
    with replica(installed_chart) as operator:
        yield operator.wait_until_leading()
