"""What the chart lets the operator and people do: these rights, and no other."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.chart.rendering import ROOT, Object, of_kind, render

RUNS = "halo.training"

IN_NAMESPACES = {
    (RUNS, "trainingjobs"): "get list patch watch",
    (RUNS, "grporuns"): "get list patch watch",
    (RUNS, "datasets"): "get list watch",
    (RUNS, "modelaliases"): "get list watch",
    (RUNS, "trainingjobs/status"): "update",
    (RUNS, "grporuns/status"): "update",
    (RUNS, "datasets/status"): "update",
    (RUNS, "adapters/status"): "update",
    (RUNS, "workspaces/status"): "update",
    (RUNS, "trainingjobs/finalizers"): "update",
    (RUNS, "datasets/finalizers"): "update",
    (RUNS, "adapters/finalizers"): "update",
    (RUNS, "adapters"): "create get list watch",
    (RUNS, "workspaces"): "get list patch watch",
    (RUNS, "ledgerpages"): "create get list",
    (RUNS, "environments"): "get list watch",
    (RUNS, "criteria"): "get list watch",
    ("", "pods"): "create delete get list patch watch",
    ("", "services"): "create delete get",
    ("events.k8s.io", "events"): "create",
}
OF_THE_CLUSTER = {
    (RUNS, "basemodels"): "get list watch",
    (RUNS, "gpuclasses"): "get list watch",
    (RUNS, "recipes"): "create delete list update",
    ("authentication.k8s.io", "tokenreviews"): "create",
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations", "halo-operator"): "get patch",
}
IN_ITS_OWN = {
    ("coordination.k8s.io", "leases"): "create",
    ("coordination.k8s.io", "leases", "halo-operator"): "get update",
    ("", "secrets"): "create",
    ("", "secrets", "halo-operator-tls"): "get update",
    ("", "secrets", "halo-operator-receipt-key"): "get update",
    ("", "configmaps"): "create",
    ("", "configmaps", "halo-operator-receipt-keys"): "get update",
    (RUNS, "environments"): "get",
}
CLIENT = {("", "configmaps", "halo-operator-client"): "get"}
PUBLIC_KEYS = {("", "configmaps", "halo-operator-receipt-keys"): "get"}
HEARTBEATS = {("coordination.k8s.io", "leases"): "get"}
WRITE = "create delete deletecollection patch update"
READ = "get list watch"
EDIT = {
    (RUNS, "trainingjobs"): WRITE,
    (RUNS, "datasets"): WRITE,
    (RUNS, "environments"): WRITE,
    (RUNS, "criteria"): WRITE,
    (RUNS, "modelaliases"): WRITE,
    (RUNS, "adapters"): "create delete deletecollection",
}
ADMIN = {(RUNS, "grporuns"): WRITE}
PLATFORM = {
    (RUNS, "workspaces"): "create delete deletecollection get list patch update watch",
    (RUNS, "basemodels"): "create delete deletecollection get list patch update watch",
    (RUNS, "gpuclasses"): "create delete deletecollection get list patch update watch",
    (RUNS, "ledgerpages"): READ,
    (RUNS, "recipes"): READ,
}
CATALOG = {(RUNS, "basemodels"): READ, (RUNS, "gpuclasses"): READ, (RUNS, "recipes"): READ}
# Every kind, and nothing of a kind.
VIEW = {(RUNS, path.name.split(".")[0]): READ for path in (ROOT / "crds").glob("*.yaml")}


def rights(rules: Iterable[Object]) -> dict[tuple[str, ...], str]:
    """The rules as one line a resource."""
    found: dict[tuple[str, ...], set[str]] = {}
    for rule in rules:
        assert rule.keys() <= {"apiGroups", "resources", "resourceNames", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames", [None]):
                    key = (group, resource) if name is None else (group, resource, name)
                    found.setdefault(key, set()).update(rule["verbs"])
    return {key: " ".join(sorted(verbs)) for key, verbs in found.items()}


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("ClusterRole", "halo-operator", IN_NAMESPACES),
        ("ClusterRole", "halo-operator-cluster", OF_THE_CLUSTER),
        ("Role", "halo-operator", IN_ITS_OWN),
        ("Role", "halo-operator-heartbeats", HEARTBEATS),
        ("Role", "halo-receipt-keys", PUBLIC_KEYS),
        ("Role", "halo-client", CLIENT),
        ("ClusterRole", "halo-edit", EDIT),
        ("ClusterRole", "halo-workspace-admin", ADMIN),
        ("ClusterRole", "halo-platform", PLATFORM),
        ("ClusterRole", "halo-view", VIEW),
        ("ClusterRole", "halo-catalog-view", CATALOG),
    ],
)
def test_a_role_has_these_rights(kind: str, name: str, expected: dict[tuple[str, ...], str]) -> None:
    assert rights(of_kind(render(), kind)[name]["rules"]) == expected


def test_there_is_no_other_role_and_no_wildcard() -> None:
    objects = render()
    people = {"halo-view", "halo-edit", "halo-workspace-admin", "halo-platform", "halo-catalog-view"}
    names = {"halo-operator", "halo-operator-cluster", *people}
    assert of_kind(objects, "ClusterRole").keys() == names
    roles = of_kind(objects, "Role")
    where = {name: role["metadata"]["namespace"] for name, role in roles.items()}
    ours = dict.fromkeys(("halo-operator", "halo-receipt-keys", "halo-client"), "halo-system")
    assert where == ours | {"halo-operator-heartbeats": "kube-node-lease"}
    for role in (*of_kind(objects, "ClusterRole").values(), *roles.values()):
        assert "*" not in str(role["rules"])


def test_edit_reads_through_view() -> None:
    roles = of_kind(render(), "ClusterRole")
    added = {name: {k for k in role["metadata"]["labels"] if "aggregate" in k} for name, role in roles.items()}
    assert added["halo-view"] == {"rbac.authorization.k8s.io/aggregate-to-view"}
    assert added["halo-edit"] == {"rbac.authorization.k8s.io/aggregate-to-edit"}
    assert added["halo-workspace-admin"] == {"rbac.authorization.k8s.io/aggregate-to-admin"}
    rest = ("halo-operator", "halo-operator-cluster", "halo-platform", "halo-catalog-view")
    assert not set().union(*(added[name] for name in rest))


def test_only_the_operator_writes_a_status_a_page_of_the_ledger_or_a_recipe() -> None:
    for name, role in of_kind(render(), "ClusterRole").items():
        if name.startswith("halo-operator"):
            continue
        for (_, resource, *_), verbs in rights(role["rules"]).items():
            assert "/" not in resource, name
            assert resource not in ("ledgerpages", "recipes") or verbs == READ, name
            assert resource != "adapters" or not {"patch", "update"} & set(verbs.split()), name


def test_the_account_is_the_only_subject_but_for_the_catalog_and_the_public_keys() -> None:
    objects = render()
    account = {"kind": "ServiceAccount", "name": "halo-operator", "namespace": "halo-system"}
    everyone = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}
    bindings = of_kind(objects, "ClusterRoleBinding")
    assert bindings.pop("halo-catalog-view")["subjects"] == [everyone]
    in_namespaces = of_kind(objects, "RoleBinding")
    for name in ("halo-receipt-keys", "halo-client"):
        assert in_namespaces.pop(name)["subjects"] == [everyone]
    for binding in (*bindings.values(), *in_namespaces.values()):
        assert binding["subjects"] == [account]


def test_watched_namespaces_are_the_only_ones_with_rights() -> None:
    objects = render({"watchNamespaces": ["team-a", "team-b"]})
    bound = {(b["metadata"]["namespace"], b["roleRef"]["name"]) for b in objects if b["kind"] == "RoleBinding"}
    assert bound == {
        ("team-a", "halo-operator"),
        ("team-b", "halo-operator"),
        ("halo-system", "halo-operator"),
        ("halo-system", "halo-receipt-keys"),
        ("halo-system", "halo-client"),
        ("kube-node-lease", "halo-operator-heartbeats"),
    }
    assert of_kind(objects, "ClusterRoleBinding").keys() == {"halo-operator-cluster", "halo-catalog-view"}


def test_people_s_roles_are_optional() -> None:
    roles = of_kind(render({"rbac.aggregate": False, "catalog.readableByAll": False}), "ClusterRole")
    assert roles.keys() == {"halo-operator", "halo-operator-cluster"}


def test_a_given_receipt_key_is_read_and_not_written() -> None:
    objects = render({"receipts.keySecret": "mine", "receipts.keysReadableByAll": False})
    found = rights(of_kind(objects, "Role")["halo-operator"]["rules"])
    assert found["", "secrets", "mine"] == "get"
    assert ("", "secrets", "halo-operator-receipt-key") not in found
    assert "halo-receipt-keys" not in of_kind(objects, "Role")
    assert "halo-receipt-keys" not in of_kind(objects, "RoleBinding")


def test_what_kubectl_halo_reads_may_be_kept_from_all() -> None:
    objects = render({"client.readableByAll": False})
    assert "halo-client" not in of_kind(objects, "Role").keys() | of_kind(objects, "RoleBinding").keys()
