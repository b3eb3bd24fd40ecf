"""What the roles of a namespace and the operator's own may and may not; asked of a real API server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.api.kube import OPERATOR, OPERATOR_NAMESPACE, Kubectl, eventually
from tests.api.members import member, training_job

pytestmark = pytest.mark.api

CATALOG = ("basemodels", "gpuclasses")


@pytest.fixture
def alice(admin: Kubectl) -> Kubectl:
    return member(admin)


@pytest.fixture
def operator(admin: Kubectl) -> Kubectl:
    return admin.as_user(OPERATOR)


def may(who: Kubectl, verb: str, resource: str) -> bool:
    """Whether a role allows it; RESOURCE[/SUBRESOURCE]."""
    kind, _, subresource = resource.partition("/")
    extra = [f"--subresource={subresource}"] if subresource else []
    if kind.startswith(CATALOG):
        extra.append("--all-namespaces")
    return who.run("auth", "can-i", verb, kind, *extra).stdout.strip() == "yes"


def test_what_edit_may_and_may_not(alice: Kubectl) -> None:
    allowed = (
        "create trainingjobs",
        "patch datasets",
        "create adapters",
        "delete adapters",
        "list adapters",
        "list basemodels",
        "get gpuclasses",
    )
    denied = (
        "patch trainingjobs/status",
        "update datasets/status",
        "patch adapters/status",
        "update trainingjobs/finalizers",
        "patch adapters",
        "update adapters",
        "create basemodels",
        "patch gpuclasses",
    )
    table = {line: may(alice, *line.split()) for line in (*allowed, *denied)}
    assert table == dict.fromkeys(allowed, True) | dict.fromkeys(denied, False)


def test_view_reads_and_starts_nothing(admin: Kubectl) -> None:
    admin("create", "rolebinding", "victor", "--clusterrole=view", "--user=victor")
    victor = admin.as_user("victor")
    eventually(lambda: victor.run("get", "trainingjobs").returncode == 0, "the role binding is in force")
    victor("get", "datasets,adapters")
    victor("get", "basemodels,gpuclasses")
    assert "forbidden" in victor.refused("create", "-f", "-", stdin=training_job())


def test_nobody_becomes_the_operator(alice: Kubectl) -> None:
    there = replace(alice, namespace=OPERATOR_NAMESPACE)
    assert not may(there, "impersonate", "serviceaccounts")
    assert not may(there, "create", "serviceaccounts/token")
    assert may(alice, "create", "serviceaccounts/token")


def test_the_operator_has_no_right_that_it_has_no_use_for(operator: Kubectl) -> None:
    denied = (
        "get secrets",
        "get configmaps",
        "get pods/log",
        "create pods/exec",
        "update pods",
        # It patches them for its finalizer; the policy halo-operator-writes holds it to that.
        "update trainingjobs",
        "delete trainingjobs",
        "delete adapters",
        "patch adapters",
        "create basemodels",
        "create serviceaccounts/token",
        "impersonate serviceaccounts",
        "create rolebindings",
    )
    assert {line: may(operator, *line.split()) for line in denied} == dict.fromkeys(denied, False)
