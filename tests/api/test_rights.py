"""Who may do what with each kind, asked of a real API server as a viewer, an editor, an administrator and the platform team.

Members start jobs; administrators of a namespace start what spends its money by itself; wallets, models and prices are the
platform team's; and what happened (statuses, adapters, the ledger, the recipes) is written by the operator alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.kube import OPERATOR, ROOT, Kubectl, eventually
from tests.api.operator_process import training_job

pytestmark = pytest.mark.api

WRITE = {"create", "update", "patch", "delete", "deletecollection"}
READ = {"get", "list", "watch"}
JOBS = {"trainingjobs", "datasets", "environments", "criteria", "modelaliases"}
# Of a LoRA from outside; a policy keeps what says that a run made one.
IMPORTS = {"create", "delete", "deletecollection"}
GRANTS = {"workspaces", "basemodels", "gpuclasses"}
RULES = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
# What has pods.
KINDS = ("trainingjobs", "datasets", "adapters")
# What the operator writes beside statuses, with the verbs that it needs.
OPERATOR_WRITES = {
    "adapters": {"create"},
    "ledgerpages": {"create"},
    "recipes": {"create", "update", "delete"},
    # Their finalizer, and no more: a policy sees to that.
    "trainingjobs": {"patch"},
    "grporuns": {"patch"},
    "workspaces": {"patch"},
}


def definitions() -> dict[str, dict[str, object]]:
    """The definitions by plural."""
    bodies = (yaml.safe_load(path.read_text()) for path in sorted(Path(ROOT / "crds").glob("*.yaml")))
    return {body["spec"]["names"]["plural"]: body["spec"] for body in bodies}


CRDS = definitions()
NAMESPACED = {plural for plural, spec in CRDS.items() if spec["scope"] == "Namespaced"}


def may(who: Kubectl, verb: str, resource: str) -> bool:
    """Whether a role allows it; RESOURCE[/SUBRESOURCE]."""
    kind, _, subresource = resource.partition("/")
    extra = [f"--subresource={subresource}"] if subresource else []
    if kind not in NAMESPACED:
        extra.append("--all-namespaces")
    return who.run("auth", "can-i", verb, f"{kind}.halo.training", *extra).stdout.strip() == "yes"


def writes_of(who: Kubectl) -> dict[str, set[str]]:
    """What somebody may write of our kinds, by one question about all rules that apply in the namespace."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": who.namespace},
    }
    answer = json.loads(who("create", "--raw", RULES, "-f", "-", stdin=review))
    found: dict[str, set[str]] = {}
    for rule in answer["status"]["resourceRules"]:
        if {"halo.training", "*"} & set(rule["apiGroups"]):
            for resource in rule["resources"]:
                found.setdefault(resource, set()).update(set(rule["verbs"]) - READ)
    return {resource: verbs for resource, verbs in found.items() if verbs}


def writing(kinds: set[str]) -> dict[str, set[str]]:
    return dict.fromkeys(kinds, WRITE)


def bound(admin: Kubectl, role: str, user: str) -> Kubectl:
    """A user with a cluster role in the namespace, once it is in force."""
    admin("create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}")
    who = admin.as_user(user)
    eventually(lambda: who.run("get", "trainingjobs").returncode == 0, "the role binding is in force")
    return who


def test_view_reads_every_kind_and_writes_none(shared_admin: Kubectl) -> None:
    victor = bound(shared_admin, "view", "victor")
    for plural in CRDS:
        victor("get", plural)
    assert writes_of(victor) == {}


def test_edit_writes_jobs_and_what_they_are_made_of(shared_admin: Kubectl) -> None:
    eve = bound(shared_admin, "edit", "eve")
    assert writes_of(eve) == writing(JOBS) | {"adapters": IMPORTS}


def test_admin_starts_grpo_runs_too(shared_admin: Kubectl) -> None:
    adam = bound(shared_admin, "admin", "adam")
    assert writes_of(adam) == writing(JOBS | {"grporuns"}) | {"adapters": IMPORTS}
    refused = adam.refused("create", "rolebinding", "more", "--clusterrole=halo-platform", "--user=adam")
    assert "attempting to grant RBAC permissions not currently held" in refused


def test_the_platform_role_grants_and_prices_and_starts_nothing(admin: Kubectl) -> None:
    user = f"paula-{admin.namespace}"
    admin("create", "clusterrolebinding", user, "--clusterrole=halo-platform", f"--user={user}")
    try:
        paula = admin.as_user(user)
        eventually(lambda: paula.run("get", "workspaces").returncode == 0, "the role binding is in force")
        assert writes_of(paula) == writing(GRANTS)
        workspace = {
            "apiVersion": "halo.training/v1alpha1",
            "kind": "Workspace",
            "metadata": {"name": "workspace"},
            "spec": {"wallet": {"creditUsd": 100}},
        }
        paula("create", "-f", "-", stdin=workspace)
        bob = bound(admin, "admin", "bob")
        more = ("patch", "workspace", "workspace", "--type=merge", "-p", '{"spec": {"wallet": {"creditUsd": 1000000}}}')
        assert "forbidden" in bob.refused(*more)
        assert "forbidden" in bob.refused("delete", "workspace", "workspace")
        paula(*more)
        forged = ("patch", "workspace", "workspace", "--subresource=status", "--type=merge")
        for who in (bob, paula):
            assert "forbidden" in who.refused(*forged, "-p", '{"status": {"spent": "0"}}')
        paula("delete", "workspace", "workspace")
    finally:
        admin("delete", "clusterrolebinding", user)


def test_the_operator_writes_statuses_and_what_it_makes(shared_admin: Kubectl) -> None:
    operator = shared_admin.as_user(OPERATOR)
    statuses = {f"{kind}/status": {"update"} for kind in (*KINDS, "grporuns", "workspaces")}
    finalizers = {f"{kind}/finalizers": {"update"} for kind in KINDS}
    assert writes_of(operator) == OPERATOR_WRITES | statuses | finalizers


WORKSPACE: dict[str, Any] = {
    "apiVersion": "halo.training/v1alpha1",
    "kind": "Workspace",
    "metadata": {"name": "workspace"},
    "spec": {"wallet": {"creditUsd": 100}},
}
GRPO = {
    "apiVersion": "halo.training/v1alpha1",
    "kind": "GrpoRun",
    "metadata": {"name": "run"},
    "spec": {
        "model": "smol",
        "reward": {"mode": "single", "criterionId": "helpful"},
        "promptCount": 100,
        "rewardBudgetUsd": 25,
        "gpuHourBudget": 10,
    },
}
# What of each spec may be changed at all.
SPECS = {
    "trainingjob": (training_job("smol"), {"suspend": True}),
    "grporun": (GRPO, {"suspend": True}),
    "workspace": (WORKSPACE, {"wallet": {"creditUsd": 1000000}}),
}
HOLD = "halo.training/hold"


@pytest.mark.parametrize("kind", SPECS)
def test_of_what_people_asked_for_the_operator_changes_its_own_finalizer_only(admin: Kubectl, kind: str) -> None:
    body, more = SPECS[kind]
    admin("create", "-f", "-", stdin=body | {"metadata": body["metadata"] | {"finalizers": ["team/keep"]}})
    what = (kind, body["metadata"]["name"])
    operator = admin.as_user(OPERATOR)

    def patch(change: dict[str, Any]) -> tuple[str, ...]:
        return ("patch", *what, "--type=merge", "-p", json.dumps(change))

    try:
        assert "never changes a spec" in operator.refused(*patch({"spec": more}))
        for part in ({"labels": {"a": "b"}}, {"annotations": {"a": "b"}}):
            assert "but its own finalizer" in operator.refused(*patch({"metadata": part}))
        for others in ([], [HOLD], ["team/keep", "another/one"]):
            assert "halo.training/hold only" in operator.refused(*patch({"metadata": {"finalizers": others}}))
        operator(*patch({"metadata": {"finalizers": ["team/keep", HOLD]}}))
        operator(*patch({"metadata": {"finalizers": ["team/keep"]}}))
        admin(*patch({"spec": more}))
    finally:
        admin(*patch({"metadata": {"finalizers": None}}))


def test_everybody_reads_the_catalog_and_the_recipes(shared_admin: Kubectl) -> None:
    nobody = shared_admin.as_user("nobody", "system:authenticated")
    for plural in sorted(set(CRDS) - NAMESPACED):
        assert may(nobody, "list", plural), plural
        assert not any(may(nobody, verb, plural) for verb in ("create", "patch", "delete")), plural
