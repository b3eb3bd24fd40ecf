"""The operator's Deployment and what stands beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from halo_operator.settings import Settings, load
from tests.chart.rendering import CHART, NAMESPACE, Object, of_kind, render, the

SELECTOR = {
    "app.kubernetes.io/name": "halo",
    "app.kubernetes.io/instance": "halo",
    "app.kubernetes.io/component": "operator",
}


def pod_of(values: Object | None = None) -> Object:
    pod: Object = the(render(values), "Deployment")["spec"]["template"]["spec"]
    return pod


def environment(values: Object | None = None) -> dict[str, str]:
    """The environment as the kubelet would fill it."""
    downward = {"metadata.namespace": NAMESPACE, "metadata.name": "halo-operator-0"}
    entries = pod_of(values)["containers"][0]["env"]
    return {
        e["name"]: e["value"] if "value" in e else downward[e["valueFrom"]["fieldRef"]["fieldPath"]] for e in entries
    }


def test_the_operator_reads_every_setting_of_the_chart() -> None:
    values = {
        "trainer.image": {"repository": "registry.example/trainer", "tag": "7", "pullPolicy": "Never"},
        "rollout.image": {"repository": "registry.example/rollout", "tag": "7", "pullPolicy": "Always"},
        "storage.artifactsClaim": "shared",
        "startTimeoutSeconds": 60,
        "workers": 3,
        "log.format": "text",
        "watchNamespaces": ["team-a", "team-b"],
        "receipts.keySecret": "mine",
    }
    assert load(environment(values)) == Settings(
        namespace=NAMESPACE,
        identity="halo-operator-0",
        trainer_image="registry.example/trainer:7",
        rollout_image="registry.example/rollout:7",
        trainer_image_pull_policy="Never",
        rollout_image_pull_policy="Always",
        artifacts_claim="shared",
        service_name="halo-operator",
        start_timeout_seconds=60,
        workers=3,
        log_format="text",
        watch_namespaces=("team-a", "team-b"),
        webhook_configuration="halo-operator",
        receipt_key_secret="mine",
    )


def test_the_chart_s_defaults_are_the_operator_s() -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    expected = Settings(
        namespace=NAMESPACE,
        identity="halo-operator-0",
        trainer_image=f"halo-trainer:{version}",
        rollout_image=f"halo-rollout:{version}",
        webhook_configuration="halo-operator",
    )
    assert load(environment()) == expected


def test_it_runs_under_the_restricted_standard_on_a_read_only_root() -> None:
    pod = pod_of()
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
    assert [volume["name"] for volume in pod["volumes"] if "emptyDir" not in volume] == []


def test_it_is_the_image_s_own_program() -> None:
    (container,) = pod_of()["containers"]
    assert not {"command", "args"} & container.keys()


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ({"repository": "halo-operator", "tag": ""}, "halo-operator:0.1.0"),
        ({"repository": "localhost/halo-operator", "tag": "dev"}, "localhost/halo-operator:dev"),
        ({"repository": "r.example/o", "tag": "1", "digest": "sha256:" + "a" * 64}, "r.example/o@sha256:" + "a" * 64),
    ],
)
def test_the_image_is_named_by_digest_or_else_by_tag(image: Object, reference: str) -> None:
    assert pod_of({"image": image})["containers"][0]["image"] == reference


def test_probes_and_service_find_its_ports() -> None:
    objects = render()
    deployment, service = the(objects, "Deployment"), the(objects, "Service")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": 8080, "https": 8443}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert {p["port"]: p["targetPort"] for p in service["spec"]["ports"]} == {443: "https", 8080: "http"}
    assert service["spec"]["selector"] == SELECTOR == deployment["spec"]["selector"]["matchLabels"]
    assert SELECTOR.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert service["spec"]["publishNotReadyAddresses"] is False


def test_the_account_gives_no_token_unasked_and_both_pods_that_need_one_ask() -> None:
    """The Job before an uninstall too: without a token it fails, and the uninstall with it."""
    objects = render()
    assert the(objects, "ServiceAccount")["automountServiceAccountToken"] is False
    for kind in ("Deployment", "Job"):
        spec = the(objects, kind)["spec"]["template"]["spec"]
        assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("halo-operator", True)


def test_a_release_of_the_chart_alone_restarts_nothing(tmp_path: Path) -> None:
    newer = shutil.copytree(CHART, tmp_path / "halo")
    facts = yaml.safe_load((newer / "Chart.yaml").read_text())
    (newer / "Chart.yaml").write_text(yaml.safe_dump(facts | {"version": "9.9.9", "appVersion": "9.9.9"}))
    images = {"image.tag": "1", "trainer.image.tag": "1", "rollout.image.tag": "1"}
    before, after = (the(render(images, chart=chart), "Deployment") for chart in (CHART, newer))
    assert before["metadata"]["labels"] != after["metadata"]["labels"]
    assert before["spec"] == after["spec"]


@pytest.mark.parametrize(
    "values", [{"serviceMonitor.enabled": True}, {"networkPolicy.enabled": True}, {"crds.keep": False}]
)
def test_nor_does_an_unrelated_value(values: Object) -> None:
    assert pod_of(values) == pod_of()


def test_two_replicas_keep_one_through_a_drain() -> None:
    budget = the(render(), "PodDisruptionBudget")
    assert budget["spec"] == {"minAvailable": 1, "selector": {"matchLabels": SELECTOR}}
    assert of_kind(render({"replicas": 1}), "PodDisruptionBudget") == {}


def test_replicas_prefer_different_nodes_unless_told_otherwise() -> None:
    assert "podAntiAffinity" in pod_of()["affinity"]
    chosen: Object = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert pod_of({"affinity": chosen})["affinity"] == chosen


def test_a_service_monitor_only_where_its_kind_is_served() -> None:
    wanted = {"serviceMonitor.enabled": True, "serviceMonitor.labels": {"release": "prometheus"}}
    assert of_kind(render(wanted), "ServiceMonitor") == {}
    monitor = the(render(wanted, "--api-versions", "monitoring.coreos.com/v1"), "ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["endpoints"] == [{"port": "http", "path": "/metrics", "interval": "30s"}]


def test_the_dashboard_is_the_file_and_carries_the_sidecars_label() -> None:
    board = of_kind(render({"dashboards.enabled": True}), "ConfigMap")["halo-operator-dashboards"]
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["halo.json"]) == json.loads((CHART / "dashboards" / "halo.json").read_text())


def test_optional_parts_are_off() -> None:
    assert "halo-operator-dashboards" not in of_kind(render(), "ConfigMap")
    assert not {"NetworkPolicy", "ServiceMonitor"} & {item["kind"] for item in render()}
    assert the(render({"networkPolicy.enabled": True}), "NetworkPolicy")["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_everything_is_labelled_and_in_the_release_s_namespace() -> None:
    cluster_wide = {
        "CustomResourceDefinition",
        "ClusterRole",
        "ClusterRoleBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
    }
    for item in render({"networkPolicy.enabled": True}):
        meta = item["metadata"]
        assert meta["labels"]["app.kubernetes.io/part-of"] == "halo", item["kind"]
        # Where nodes keep their heartbeats; the operator reads a lost one's.
        home = "kube-node-lease" if meta["name"].endswith("-heartbeats") else NAMESPACE
        assert meta.get("namespace") == (None if item["kind"] in cluster_wide else home), item["kind"]
