"""The chart on a real API server: every object is valid, an upgrade restarts nothing, and the page's Argo CD command works."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest
import yaml

from tests.api.kube import OPERATOR_NAMESPACE, ROOT, Kubectl, eventually

pytestmark = pytest.mark.api

CHART = ROOT / "charts" / "halo"


def rendered(admin: Kubectl, *values: str) -> Iterator[dict[str, object]]:
    sets = [f"--set={value}" for value in values]
    command = ["template", "halo", str(CHART), "--namespace", OPERATOR_NAMESPACE, "--kube-version", "1.34.0", *sets]
    done = subprocess.run([str(admin.tools / "helm"), *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (item for item in yaml.safe_load_all(done.stdout) if item)


@pytest.mark.parametrize(
    "values",
    [
        (),
        ("networkPolicy.enabled=true", "watchNamespaces={default}", "security.execGroups={sre}"),
        ("security.podControllers={system:serviceaccount:kueue-system:kueue}", "catalog.readableByAll=false"),
    ],
    ids=["defaults", "narrowed", "with exceptions"],
)
def test_the_server_knows_every_field(installed_chart: Kubectl, values: tuple[str, ...]) -> None:
    objects = {"apiVersion": "v1", "kind": "List", "items": list(rendered(installed_chart, *values))}
    apply = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
    output = replace(installed_chart, namespace="")(*apply, stdin=objects)
    assert len(output.splitlines()) == len(objects["items"])


def test_the_operator_pod_is_admitted_under_the_restricted_standard(admin: Kubectl) -> None:
    admin("label", "namespace", admin.namespace, "pod-security.kubernetes.io/enforce=restricted")
    admin("create", "serviceaccount", "halo-operator")
    (deployment,) = (item for item in rendered(admin) if item["kind"] == "Deployment")
    template = deployment["spec"]["template"]  # type: ignore[index]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}, "spec": template["spec"]}
    eventually(lambda: admin.run("get", "serviceaccount", "default").returncode == 0, "the namespace is set up")
    admin("create", "--dry-run=server", "-f", "-", stdin=pod)


def test_the_type_checker_has_no_complaint_about_the_policies(installed_chart: Kubectl) -> None:
    def policies() -> list[dict[str, dict[str, object]]]:
        listed = installed_chart(
            "get", "validatingadmissionpolicies", "-l", "app.kubernetes.io/part-of=halo", "-o", "json"
        )
        items: list[dict[str, dict[str, object]]] = json.loads(listed)["items"]
        return items

    def checked() -> bool:
        return all(p.get("status", {}).get("observedGeneration") == p["metadata"]["generation"] for p in policies())

    eventually(checked, "the controller has checked the policies")
    assert {p["metadata"]["name"]: p["status"].get("typeChecking", {}) for p in policies()} == {
        "halo-run-objects": {},
        "halo-other-pods": {},
        "halo-run-access": {},
        "halo-report-tokens": {},
        "halo-operator-writes": {},
        "halo-holds": {},
        "halo-adapters": {},
    }


def test_the_argo_cd_command_of_the_installation_page_adds_its_keys_and_no_more(admin: Kubectl) -> None:
    admin("create", "configmap", "argocd-cm", "--from-literal=url=https://argocd.example")
    blocks = (ROOT / "docs" / "install.md").read_text().split("```")
    (script,) = (block.removeprefix("sh") for block in blocks if "kubectl -n argocd" in block)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-ec", script.replace("-n argocd", f"-n {admin.namespace}")],
        env=os.environ | {"KUBECONFIG": str(admin.kubeconfig), "PATH": f"{admin.tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(admin("get", "configmap", "argocd-cm", "-o", "json"))["data"]
    health = (CHART / "files" / "health.lua").read_text()
    looked_after = ("TrainingJob", "GrpoRun", "Dataset", "Workspace", "Adapter")
    kinds = {f"resource.customizations.health.halo.training_{kind}": health for kind in looked_after}
    assert data == {"url": "https://argocd.example"} | kinds
