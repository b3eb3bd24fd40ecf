"""What a change of a Workspace wakes: every run that waits when the grant changes, none when its own status is written."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator

import pytest

from tests.api.client import Api, Object
from tests.api.kube import Kubectl, eventually
from tests.api.operator_process import OperatorProcess, training_job

pytestmark = pytest.mark.api

GROUP = "/apis/halo.training/v1alpha1"
RUNS, WRITES = 200, 10


@pytest.fixture
def namespaces(installed_chart: Kubectl, operator: OperatorProcess) -> Iterator[list[str]]:
    names = [f"{operator.identity}-{part}" for part in ("runs", "mark")]
    for name in names:
        installed_chart("create", "namespace", name)
    yield names
    for name in names:
        installed_chart("delete", "namespace", name, "--wait=false")


def metrics(operator: OperatorProcess) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{operator.health_port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def looks(operator: OperatorProcess, kind: str) -> int:
    text = metrics(operator)
    found = re.findall(rf'^controller_runtime_reconcile_total\{{controller="{kind}",.*\}} (\S+)', text, re.M)
    return int(sum(map(float, found)))


def is_quiet(operator: OperatorProcess, seen: list[int]) -> bool:
    """Whether nothing waits for a look, and none was taken since it was last asked: each run's own status brings it back once."""
    seen.append(looks(operator, "trainingjob"))
    return 'workqueue_depth{name="halo"} 0.0' in metrics(operator) and seen[-5:] == seen[-1:] * 5


def test_a_write_of_its_status_wakes_no_run(
    installed_chart: Kubectl, operator: OperatorProcess, namespaces: list[str]
) -> None:
    api = Api.connect(installed_chart.kubeconfig)
    namespace, mark = namespaces

    def path(plural: str, name: str = "", where: str = namespace) -> str:
        return f"{GROUP}/namespaces/{where}/{plural}" + (f"/{name}" if name else "")

    def workspace(where: str) -> Object:
        body = {"apiVersion": "halo.training/v1alpha1", "kind": "Workspace", "metadata": {"name": "workspace"}}
        api.post(path("workspaces", where=where), body | {"spec": {"wallet": {"creditUsd": 100}}})
        found: Object = {}

        def looked_at() -> bool:
            found.update(api.request("GET", path("workspaces", "workspace", where)))
            return bool(found["status"]["observedGeneration"] == 1)

        eventually(looked_at, "the Workspace was looked at")
        return found

    status = workspace(namespace)["status"]
    for number in range(RUNS):
        # No such base model: they wait for it, and for whatever else admission looks at.
        api.post(path("trainingjobs"), training_job("none-of-that-name", f"run-{number}"))
    waits = lambda: [r for r in api.items(path("trainingjobs")) if r["status"].get("conditions")]  # noqa: E731
    eventually(lambda: len(waits()) == RUNS, "all runs were looked at", 60)
    seen: list[int] = []
    eventually(lambda: is_quiet(operator, seen), "their own status brings them back no more", 60)
    before, of_workspaces = looks(operator, "trainingjob"), looks(operator, "workspace")
    for number in range(WRITES):
        written = status | {"waiting": f"word {number}"}
        api.patch(path("workspaces", "workspace") + "/status", {"status": written})
    # One watch brings both, in their order: once this one was looked at, those writes were seen.
    workspace(mark)
    assert looks(operator, "trainingjob") == before
    assert looks(operator, "workspace") <= of_workspaces + 3
    api.patch(path("workspaces", "workspace"), {"spec": {"wallet": {"creditUsd": 200}}})
    eventually(lambda: looks(operator, "trainingjob") >= before + RUNS, "a change of the grant wakes all of them", 60)
