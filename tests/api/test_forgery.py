"""A member with the `edit` role in a namespace can forge neither a run's pod, nor its report, nor its status.

Each rule with what it denies and, beside it, what it must leave alone; asked of a real API server with the chart's own roles.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.kube import OPERATOR, Kubectl, eventually
from tests.api.members import (
    NODE,
    RUN_POD,
    as_kubelet,
    create,
    dataset,
    member,
    pod,
    release,
    report_token,
    run_pod,
    training_job,
)

pytestmark = pytest.mark.api

INSPECT_POD = "chat-inspect-a1-0f3c9a12de"
HIDDEN = "belongs to a run"


@pytest.fixture
def alice(admin: Kubectl) -> Kubectl:
    return member(admin)


@pytest.fixture(scope="module")
def shared_alice(shared_admin: Kubectl) -> Kubectl:
    """A member who has one pod already; for requests that are only tried."""
    alice = member(shared_admin)
    create(alice, pod("mine"))
    return alice


@pytest.fixture
def operator(admin: Kubectl) -> Kubectl:
    return admin.as_user(OPERATOR)


# --- a run's pod


@pytest.mark.parametrize(
    ("what", "body", "why"),
    [
        ("a label", pod(labels={"halo.training/run": "x"}), "labels halo.training/*"),
        ("an annotation", pod(annotations={"halo.training/run-file": "{}"}), "annotations halo.training/*"),
        ("a finalizer", pod(finalizers=["halo.training/metered"]), "finalizers halo.training/*"),
        (
            "an owner",
            pod(
                ownerReferences=[
                    {"apiVersion": "halo.training/v1alpha1", "kind": "TrainingJob", "name": "x", "uid": "u"}
                ]
            ),
            "an owner of kind halo.training/*",
        ),
        (
            "an owner of another version",
            pod(ownerReferences=[{"apiVersion": "halo.training/v9", "kind": "Dataset", "name": "x", "uid": "u"}]),
            "an owner of kind halo.training/*",
        ),
        ("the name", pod(RUN_POD), "choose another name"),
        ("the name of an inspection", pod(INSPECT_POD), "choose another name"),
        ("the name, generated", {**pod(), "metadata": {"generateName": "x-a1-01234"}}, None),
        ("a report token", pod(spec=report_token()), "tokens of audience halo-report"),
        ("a token of another audience", pod(spec=report_token("vault")), None),
        ("other labels", pod(labels={"app": "web", "halo": "halo.training"}, annotations={"a": "b"}), None),
        ("a name that only resembles", pod("web-a1-0f3c9a12de-x"), None),
        (
            "another owner",
            pod(ownerReferences=[{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u"}]),
            None,
        ),
    ],
)
def test_only_the_operator_makes_a_pod_with(
    shared_alice: Kubectl, what: str, body: dict[str, Any], why: str | None
) -> None:
    attempt = ("create", "--dry-run=server", "-f", "-")
    if why is None:
        shared_alice(*attempt, stdin=body)
    else:
        assert why in shared_alice.refused(*attempt, stdin=body), what


def test_the_operator_makes_it(alice: Kubectl, operator: Kubectl) -> None:
    made = run_pod(alice, operator)
    assert made["metadata"]["labels"] == {"halo.training/run": "support-sft"}
    release(operator)


def test_an_administrator_makes_none_by_mistake(shared_admin: Kubectl) -> None:
    assert "labels halo.training/*" in shared_admin.refused(
        "create", "-f", "-", stdin=pod(labels={"halo.training/run": "x"})
    )


def test_a_deployment_makes_none_either(alice: Kubectl) -> None:
    labels = {"app": "web", "halo.training/run": "x"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "localhost/one:1"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    alice(
        "create",
        "-f",
        "-",
        stdin={"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec},
    )

    def refused() -> bool:
        return "labels halo.training/*" in alice(
            "get", "replicasets", "-o", "jsonpath={.items[*].status.conditions[*].message}"
        )

    eventually(refused, "the ReplicaSet says why it has no pod")
    assert alice("get", "pods", "-o", "name") == ""


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("label", "pod", "mine", "halo.training/run=x"), "labels halo.training/*"),
        (("annotate", "pod", "mine", "halo.training/run-file={}"), "annotations halo.training/*"),
        (
            ("patch", "pod", "mine", "-p", '{"metadata": {"finalizers": ["halo.training/metered"]}}'),
            "finalizers halo.training/*",
        ),
        (("label", "pod", "mine", "app=web"), None),
        (("set", "image", "pod/mine", "main=localhost/two:2"), None),
        (("delete", "pod", "mine", "--now"), None),
    ],
)
def test_a_pod_of_ones_own(shared_alice: Kubectl, command: tuple[str, ...], why: str | None) -> None:
    if why is None:
        shared_alice(*command, "--dry-run=server")
    else:
        assert why in shared_alice.refused(*command, "--dry-run=server")


def test_a_pod_of_a_run_is_changed_by_the_operator_only(alice: Kubectl, operator: Kubectl, admin: Kubectl) -> None:
    run_pod(alice, operator)
    patch = ("patch", "pod", RUN_POD, "-p")
    denied = {
        ("label", "pod", RUN_POD, "halo.training/run-"): "labels halo.training/*",
        ("label", "pod", RUN_POD, "halo.training/run=other", "--overwrite"): "labels halo.training/*",
        ("annotate", "pod", RUN_POD, "halo.training/ca=mine", "--overwrite"): "annotations halo.training/*",
        ("annotate", "pod", RUN_POD, "halo.training/deadline={}"): "annotations halo.training/*",
        ("set", "image", f"pod/{RUN_POD}", "main=localhost/forged:1"): HIDDEN,
        (*patch, '{"spec": {"activeDeadlineSeconds": 1}}'): HIDDEN,
        (
            *patch,
            '[{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}]',
            "--type=json",
        ): HIDDEN,
        (*patch, '{"metadata": {"finalizers": null}}'): "finalizers halo.training/*",
        (*patch, '{"metadata": {"ownerReferences": null}}'): "an owner of kind halo.training/*",
    }
    for command, why in denied.items():
        assert why in alice.refused(*command), command
    alice("label", "pod", RUN_POD, "team=support")
    alice("annotate", "pod", RUN_POD, "note=mine")
    operator(
        "patch", "pod", RUN_POD, "--type=merge", "-p", '{"metadata": {"annotations": {"halo.training/ca": "new"}}}'
    )
    alice("delete", "pod", RUN_POD, "--wait=false")
    assert alice("get", "pod", RUN_POD, "-o", "jsonpath={.metadata.finalizers}") == '["halo.training/metered"]'
    release(operator)


@pytest.mark.parametrize("subresource", ["ephemeralcontainers", "resize"])
def test_a_right_beyond_edit_does_not_open_a_run_s_pod(
    alice: Kubectl, operator: Kubectl, admin: Kubectl, subresource: str
) -> None:
    run_pod(alice, operator)
    create(alice, pod("mine"))
    admin("create", "role", "more", "--verb=patch,update,get", f"--resource=pods/{subresource}")
    admin("create", "rolebinding", "more", "--role=more", "--user=alice")
    change = {
        "ephemeralcontainers": {"spec": {"ephemeralContainers": [{"name": "look", "image": "localhost/look:1"}]}},
        "resize": {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1m"}}}]}},
    }[subresource]
    patch = ("--subresource", subresource, "-p", json.dumps(change))
    eventually(lambda: "cannot patch" not in alice.run("patch", "pod", RUN_POD, *patch).stderr, "the right is in force")
    assert HIDDEN in alice.refused("patch", "pod", RUN_POD, *patch)
    assert HIDDEN not in alice.run("patch", "pod", "mine", *patch).stderr
    release(operator)


def test_the_service_of_a_run_is_not_redirected(alice: Kubectl, operator: Kubectl) -> None:
    spec = {"clusterIP": "None", "selector": {"halo.training/run": "support-sft"}}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "support-sft", "labels": {"halo.training/run": "x"}},
        "spec": spec,
    }
    assert "labels halo.training/*" in alice.refused("create", "-f", "-", stdin=service)
    create(operator, service)
    assert HIDDEN in alice.refused("patch", "service", "support-sft", "-p", '{"spec": {"selector": {"app": "mine"}}}')
    mine = {**service, "metadata": {"name": "mine"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}
    create(alice, mine)
    alice("patch", "service", "mine", "-p", '{"spec": {"selector": {"app": "other"}}}')


def test_kubelet_garbage_collector_and_deletion_go_on(alice: Kubectl, operator: Kubectl, admin: Kubectl) -> None:
    run_pod(alice, operator)
    as_kubelet(admin, RUN_POD, phase="Failed", message="node says")
    alice("delete", "trainingjob", "support-sft", "--cascade=orphan")
    gone = ("get", "pod", RUN_POD, "-o", "jsonpath={.metadata.ownerReferences}")
    eventually(lambda: admin(*gone) == "", "the garbage collector has orphaned the pod")
    release(operator)
    alice("delete", "pod", RUN_POD, "--force", "--grace-period=0")


# --- its report


def test_nobody_reaches_into_a_run_s_pod(admin: Kubectl, alice: Kubectl, operator: Kubectl) -> None:
    create(alice, pod("mine", {"nodeName": "node-0"}))
    for name in (RUN_POD, INSPECT_POD):
        create(operator, pod(name, {"nodeName": "node-0"}))
    # kubectl asks the server to connect only where it finds the pod running.
    for name in ("mine", RUN_POD, INSPECT_POD):
        as_kubelet(admin, name, phase="Running")
    for command in (
        ("exec", "{}", "--", "cat", "/halo/token/token"),
        ("attach", "{}"),
        ("port-forward", "{}", "18080:8080"),
        ("get", "--raw", "/api/v1/namespaces/{namespace}/pods/{}/proxy/"),
        ("cp", "{}:/halo/token/token", "/tmp/halo-forged-token"),
    ):
        for name in (RUN_POD, INSPECT_POD):
            filled = [part.format(name, namespace=alice.namespace) for part in command]
            assert HIDDEN in alice.refused(*filled)
        # The same in a pod of one's own comes as far as the node, which this control plane doesn't have.
        filled = [part.format("mine", namespace=alice.namespace) for part in command]
        assert HIDDEN not in alice.run(*filled).stderr


def test_an_administrator_may_reach_into_it(admin: Kubectl, operator: Kubectl) -> None:
    create(operator, pod(RUN_POD, {"nodeName": "node-0"}))
    assert HIDDEN not in admin.run("exec", RUN_POD, "--", "true").stderr


def test_only_a_node_gets_a_report_token(alice: Kubectl, operator: Kubectl, admin: Kubectl) -> None:
    made = run_pod(alice, operator)
    uid = made["metadata"]["uid"]
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={RUN_POD}", f"--bound-object-uid={uid}")
    ask = ("create", "token", "default", "--audience=halo-report")
    for who in (alice, admin, alice.as_user(f"system:serviceaccount:{alice.namespace}:default")):
        assert who.run(*ask, *bound).returncode != 0
    for extra in ((), bound, ("--audience=vault",), ("--audience=https://kubernetes.default.svc", *bound)):
        assert "only their node may ask" in alice.refused(*ask, *extra)
    alice("create", "token", "default")
    alice("create", "token", "default", "--audience=vault", *bound)
    token = admin.as_user(NODE, "system:nodes")(*ask, *bound)
    review = reviewed(operator, token)
    assert review["authenticated"]
    assert review["user"]["extra"]["authentication.kubernetes.io/pod-uid"] == [uid]
    release(operator)


def test_the_operator_believes_no_other_token(alice: Kubectl, operator: Kubectl) -> None:
    made = run_pod(alice, operator)
    bound = (
        "--bound-object-kind=Pod",
        f"--bound-object-name={RUN_POD}",
        f"--bound-object-uid={made['metadata']['uid']}",
    )
    for extra in ((), bound, ("--audience=vault", *bound), ("--audience=halo-report2", *bound)):
        token = alice("create", "token", "default", *extra)
        assert not reviewed(operator, token).get("authenticated"), extra
    release(operator)


def reviewed(operator: Kubectl, token: str) -> dict[str, Any]:
    """What the API server says of a token to the operator, asked as the operator asks."""
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": ["halo-report"]},
    }
    answer = operator("create", "--raw", "/apis/authentication.k8s.io/v1/tokenreviews", "-f", "-", stdin=body)
    status: dict[str, Any] = json.loads(answer)["status"]
    return status


# --- its money


@pytest.mark.usefixtures("alone")
def test_a_member_takes_no_hold_away_and_grants_nothing(alice: Kubectl, operator: Kubectl, admin: Kubectl) -> None:
    """With no operator there, which would let go of a run that holds nothing."""
    create(alice, training_job())
    grant = {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "Workspace",
        "metadata": {"name": "workspace"},
        "spec": {"wallet": {"creditUsd": 100}},
    }
    paula = admin.as_user(user := f"paula-{admin.namespace}")
    admin("create", "clusterrolebinding", user, "--clusterrole=halo-platform", f"--user={user}")
    try:
        eventually(lambda: paula.run("get", "workspaces").returncode == 0, "the platform role is in force")
        assert "forbidden" in alice.refused("create", "-f", "-", stdin=grant)
        create(paula, grant)
        for what in ("trainingjob/support-sft", "workspace/workspace"):
            patch = ("patch", what, "--type=merge", "-p")
            operator(*patch, '{"metadata": {"finalizers": ["halo.training/hold"]}}')
            for left in ("null", "[]", '["alice/mine"]'):
                refused = alice.refused(*patch, f'{{"metadata": {{"finalizers": {left}}}}}')
                assert ("once the run's hold is settled" if "job" in what else "forbidden") in refused
        alice("label", "trainingjob", "support-sft", "team=support")
        alice("patch", "trainingjob", "support-sft", "--type=merge", "-p", '{"spec": {"suspend": true}}')
        # Of her own she may put on and take off what she likes, and delete the run: it waits for its settlement.
        both = '{"metadata": {"finalizers": ["halo.training/hold", "alice/mine"]}}'
        alice("patch", "trainingjob", "support-sft", "--type=merge", "-p", both)
        alice("delete", "trainingjob", "support-sft", "--wait=false")
        one = '{"metadata": {"finalizers": ["halo.training/hold"]}}'
        alice("patch", "trainingjob", "support-sft", "--type=merge", "-p", one)
        assert alice("get", "trainingjobs", "-o", "name") == "trainingjob.halo.training/support-sft"
        admin("create", "role", "jobs", "--verb=patch,get", "--resource=trainingjobs.halo.training")
        admin("create", "rolebinding", "jobs", "--role=jobs", f"--user={user}")
        none = ("patch", "trainingjob", "support-sft", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
        eventually(lambda: paula.run(*none).returncode == 0, "who grants may let go of it")
        paula("patch", "workspace", "workspace", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    finally:
        admin("delete", "clusterrolebinding", user)


# --- its status


@pytest.mark.parametrize("body", [training_job(), dataset()], ids=["TrainingJob", "Dataset"])
def test_nobody_writes_a_status(alice: Kubectl, operator: Kubectl, body: dict[str, Any]) -> None:
    claim = {"status": {"observedGeneration": 1, "waiting": "forged"}}
    kind = body["kind"].lower()
    name = body["metadata"]["name"]
    status = ("get", kind, name, "-o", "jsonpath={.status}")
    assert create(alice, body | claim)["status"] == {"observedGeneration": -1}
    alice("patch", kind, name, "--type=merge", "-p", json.dumps(claim))
    alice("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=body | claim)
    assert json.loads(alice(*status)) == {"observedGeneration": -1}
    write = ("patch", kind, name, "--subresource=status", "--type=merge", "-p", json.dumps(claim))
    assert "forbidden" in alice.refused(*write)
    # As the operator writes it: a PUT of what was read; it may do nothing else to a status.
    read = json.loads(alice("get", kind, name, "-o", "json"))
    replace = ("replace", "--subresource=status", "-f", "-")
    assert "forbidden" in alice.refused(*replace, stdin=read | claim)
    operator(*replace, stdin=read | claim)
    assert json.loads(alice(*status))["waiting"] == "forged"


def test_nobody_writes_a_pod_s_status(alice: Kubectl, operator: Kubectl) -> None:
    run_pod(alice, operator)
    outcome = '{"status": {"phase": "Succeeded"}}'
    assert "forbidden" in alice.refused("patch", "pod", RUN_POD, "--subresource=status", "-p", outcome)
    release(operator)
