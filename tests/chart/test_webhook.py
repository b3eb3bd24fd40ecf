"""The webhook's configuration as rendered; tests/api/test_webhook.py asks a real API server what passes it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.rendering import NAMESPACE, Object, attempt, of_kind, render, the

OWN = "halo-operator"
CERT_MANAGER: Object = {"certificates.certManager.enabled": True}


def webhook(values: Object | None = None) -> Object:
    (found,) = the(render(values), "ValidatingWebhookConfiguration")["webhooks"]
    return dict(found)


def environment(values: Object | None = None) -> dict[str, str]:
    (container,) = the(render(values), "Deployment")["spec"]["template"]["spec"]["containers"]
    return {e["name"]: e.get("value", "") for e in container["env"] if "WEBHOOK" in e["name"]}


def test_it_is_asked_about_new_and_changed_runs_and_nothing_else() -> None:
    (rule,) = webhook()["rules"]
    assert rule == {
        "apiGroups": ["halo.training"],
        "apiVersions": ["v1alpha1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["trainingjobs", "grporuns"],
        "scope": "Namespaced",
    }
    assert [c["name"] for c in webhook()["matchConditions"]] == ["a-new-run-or-another-budget", "not-one-that-goes"]


def test_it_has_no_side_effects_and_lets_runs_pass_when_nobody_answers() -> None:
    found = webhook()
    assert (found["sideEffects"], found["failurePolicy"], found["timeoutSeconds"]) == ("None", "Ignore", 5)
    assert webhook({"webhook.failurePolicy": "Fail"})["failurePolicy"] == "Fail"


def test_nothing_of_the_chart_changes_objects() -> None:
    assert not {item["kind"] for item in render()} & {"MutatingWebhookConfiguration", "MutatingAdmissionPolicy"}


def test_the_operator_answers_at_its_service_and_keeps_the_ca() -> None:
    service = {"name": OWN, "namespace": NAMESPACE, "path": "/validate", "port": 443}
    # No caBundle: an upgrade must not take away what the operator wrote.
    assert webhook()["clientConfig"] == {"service": service}
    assert environment() == {"HALO_WEBHOOK_CONFIGURATION": OWN}


def test_it_can_be_off() -> None:
    objects = render({"webhook.enabled": False})
    assert of_kind(objects, "ValidatingWebhookConfiguration") == {}
    assert environment({"webhook.enabled": False}) == {}
    assert "validatingwebhookconfigurations" not in str(of_kind(objects, "ClusterRole"))


@pytest.mark.parametrize(
    ("values", "selector"),
    [
        ({}, None),
        ({"webhook.namespaceSelector": {"matchLabels": {"a": "b"}}}, {"matchLabels": {"a": "b"}}),
        (
            {"watchNamespaces": ["team-a"], "webhook.namespaceSelector": {"matchLabels": {"a": "b"}}},
            {
                "matchLabels": {"a": "b"},
                "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a"]}],
            },
        ),
    ],
)
def test_it_is_about_the_namespaces_that_are_served(values: Object, selector: Any) -> None:
    assert webhook(values).get("namespaceSelector") == selector


def test_an_operator_outside_the_cluster_is_found_by_its_url() -> None:
    url = "https://halo.example:8443/validate"
    assert webhook({"webhook.url": url})["clientConfig"] == {"url": url}
    assert environment({"webhook.url": url})["HALO_WEBHOOK_URL"] == url


def test_cert_manager_makes_the_certificate_and_keeps_the_ca() -> None:
    objects = render(CERT_MANAGER)
    certificate, issuer = the(objects, "Certificate"), the(objects, "Issuer")
    configuration = the(objects, "ValidatingWebhookConfiguration")
    name = f"{NAMESPACE}/{certificate['metadata']['name']}"
    assert configuration["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": name}
    port = configuration["webhooks"][0]["clientConfig"]["service"]["port"]
    assert {p["port"]: p["targetPort"] for p in the(objects, "Service")["spec"]["ports"]}[port] == "webhook"
    assert f"{OWN}.{NAMESPACE}.svc" in certificate["spec"]["dnsNames"]
    assert certificate["spec"]["issuerRef"] == {"kind": "Issuer", "name": issuer["metadata"]["name"]}
    pod = the(objects, "Deployment")["spec"]["template"]["spec"]
    (volume,) = (v["secret"] for v in pod["volumes"] if "secret" in v)
    assert volume == {"secretName": certificate["spec"]["secretName"], "optional": True}
    assert environment(CERT_MANAGER) == {"HALO_WEBHOOK_CERTIFICATE": "/etc/halo/webhook"}
    assert "validatingwebhookconfigurations" not in str(of_kind(objects, "ClusterRole"))


def test_or_an_issuer_that_is_there() -> None:
    issuer = {"kind": "ClusterIssuer", "name": "internal"}
    objects = render(CERT_MANAGER | {"certificates.certManager.issuerRef": issuer})
    assert the(objects, "Certificate")["spec"]["issuerRef"] == issuer
    assert of_kind(objects, "Issuer") == {}


@pytest.mark.parametrize("port", ["https", "webhook"])
def test_a_network_policy_lets_the_api_server_in(port: str) -> None:
    values = {"networkPolicy.enabled": True} | (CERT_MANAGER if port == "webhook" else {})
    _, reviews = the(render(values), "NetworkPolicy")["spec"]["ingress"]
    assert reviews == {"ports": [{"port": port}]}


@pytest.mark.parametrize("url", ["http://halo.example/validate", "https://halo.example/", "halo.example"])
def test_a_url_that_the_operator_does_not_answer_is_refused(url: str) -> None:
    assert "url" in attempt({"webhook.url": url}).stderr
