"""Who imports an adapter can't say that a run made it; asked of a real API server with the chart's own roles and policies."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from halo_cli.volume_pod import Settings
from halo_cli.volume_pod import pod as transfer_pod
from tests.api.kube import OPERATOR, OPERATOR_NAMESPACE, Kubectl
from tests.api.members import create, member, pod

pytestmark = pytest.mark.api


@pytest.fixture
def alice(admin: Kubectl) -> Kubectl:
    return member(admin)


@pytest.fixture
def operator(admin: Kubectl) -> Kubectl:
    return admin.as_user(OPERATOR)


def adapter(name: str = "support-sft") -> dict[str, Any]:
    digest = "sha256:" + "0" * 64
    return {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "Adapter",
        "metadata": {"name": name},
        "spec": {
            "base": {"name": "small", "revision": "0123456"},
            "rank": 16,
            "alpha": 32,
            "uri": "pvc://halo-artifacts/x",
            "digest": digest,
            "files": [{"path": "adapter_model.safetensors", "sha256": digest, "size": 1}],
        },
    }


ZEROS = "sha256:" + "0" * 64
TRAINED = {
    "trainedBy": {"kind": "TrainingJob", "name": "x", "uid": "u", "step": 10},
    "receipt": {"digest": ZEROS, "uri": "pvc://halo-artifacts/x/receipt.json"},
    "parent": {"name": "x", "digest": ZEROS},
}


def test_who_imports_an_adapter_can_not_say_that_a_run_made_it(
    alice: Kubectl, operator: Kubectl, admin: Kubectl
) -> None:
    mine = adapter("mine")
    for part, value in TRAINED.items():
        forged = mine | {"spec": mine["spec"] | {part: value}}
        for who in (alice, admin):
            assert "set by the Halo operator only: they say that a run made the adapter" in who.refused(
                "create", "-f", "-", stdin=forged
            ), part
    receipt = {"annotations": {"halo.training/receipt": "{}"}}
    assert "its receipt is one" in alice.refused(
        "create", "-f", "-", stdin=mine | {"metadata": mine["metadata"] | receipt}
    )
    create(alice, mine | {"metadata": mine["metadata"] | {"labels": {"halo.training/origin": "imported"}}})
    assert "imported" in alice("get", "adapter", "mine", "-o", "wide")
    create(operator, adapter() | {"spec": adapter()["spec"] | TRAINED, "metadata": adapter()["metadata"] | receipt})
    for change in (
        '{"metadata": {"labels": {"a": "b"}}}',
        '{"metadata": {"annotations": {"halo.training/receipt": ""}}}',
    ):
        assert "forbidden" in alice.refused("patch", "adapter", "support-sft", "--type=merge", "-p", change)
    assert "its receipt is one" in admin.refused("annotate", "adapter", "support-sft", "halo.training/receipt-")
    admin("label", "adapter", "support-sft", "team=support")
    alice("delete", "adapter", "support-sft", "mine")


def test_a_member_s_own_pod_may_read_and_write_the_adapters(admin: Kubectl, alice: Kubectl) -> None:
    """As kubectl halo adapter makes it, where pods must be restricted."""
    admin("label", "namespace", admin.namespace, "pod-security.kubernetes.io/enforce=restricted")
    settings = Settings("localhost/halo-trainer:1", "Never")
    create_it = ("create", "--dry-run=server", "-f", "-")
    alice(*create_it, stdin=transfer_pod("halo-transfer-0123abcd", settings, {"a": True, "x" * 63: False}, 1000))
    assert "violates PodSecurity" in alice.refused(*create_it, stdin=pod())
    there = replace(alice, namespace=OPERATOR_NAMESPACE)
    said = json.loads(there("get", "configmap", "halo-operator-client", "-o", "json"))["data"]
    assert (said["artifactsClaim"], said["trainerImagePullPolicy"]) == ("halo-artifacts", "IfNotPresent")
