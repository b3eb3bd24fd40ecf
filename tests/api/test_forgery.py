"""A member with the `edit` role in a namespace can forge neither a run's pod, nor its report, nor its status.

Each rule with what it denies and, beside it, what it must leave alone; asked of a real API server with the chart's own roles.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from halo_cli.volume_pod import Settings
from halo_cli.volume_pod import pod as transfer_pod
from tests.api.kube import OPERATOR, OPERATOR_NAMESPACE, Kubectl, eventually

pytestmark = pytest.mark.api

RUN_POD = "support-sft-trainer-0-a1-0f3c9a12de"
INSPECT_POD = "chat-inspect-a1-0f3c9a12de"
NODE = "system:node:node-0"
HIDDEN = "belongs to a run"


def member(admin: Kubectl) -> Kubectl:
    """A member of the namespace with the cluster's own `edit` role."""
    admin("create", "rolebinding", "alice", "--clusterrole=edit", "--user=alice")
    alice = admin.as_user("alice")
    eventually(
        lambda: alice.run("get", "serviceaccount", "default").returncode == 0, "the role and the account are there"
    )
    return alice


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


def pod(name: str = "fresh", spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "localhost/one:1", "resources": {"requests": {"cpu": "2m"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"restartPolicy": "Never", "containers": [container], **(spec or {})},
    }


def report_token(audience: str = "halo-report") -> dict[str, Any]:
    source = {"serviceAccountToken": {"audience": audience, "path": "token", "expirationSeconds": 600}}
    return {"volumes": [{"name": "token", "projected": {"sources": [source]}}]}


def owner(run: dict[str, Any]) -> dict[str, Any]:
    names = {"name": run["metadata"]["name"], "uid": run["metadata"]["uid"]}
    return {
        "apiVersion": run["apiVersion"],
        "kind": run["kind"],
        **names,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def training_job(name: str = "support-sft") -> dict[str, Any]:
    return {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "base": "lora_trl",
            "baseModel": "small",
            "gpu": {"type": "h100", "count": 1},
            "steps": 10,
            "batch": 4,
            "lora": {"dataset": "chat"},
        },
    }


def dataset(name: str = "chat") -> dict[str, Any]:
    spec = {"kind": "chat", "source": "pvc://halo-data/chat.jsonl", "baseModels": ["small"]}
    return {"apiVersion": "halo.training/v1alpha1", "kind": "Dataset", "metadata": {"name": name}, "spec": spec}


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


def create(kubectl: Kubectl, body: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(kubectl("create", "-o", "json", "-f", "-", stdin=body))
    return made


def run_pod(alice: Kubectl, operator: Kubectl) -> dict[str, Any]:
    """A pod of a run as the operator makes it, bound to a node."""
    run = create(alice, training_job())
    body = pod(
        RUN_POD,
        report_token() | {"nodeName": "node-0", "automountServiceAccountToken": False},
        labels={"halo.training/run": "support-sft"},
        # As large as a run file gets: the policies' cost must not grow past its limit with it.
        annotations={"halo.training/run-file": "x" * 100_000, "halo.training/ca": "old"},
        finalizers=["halo.training/metered"],
        ownerReferences=[owner(run)],
    )
    return create(operator, body)


def as_kubelet(admin: Kubectl, name: str, **status: Any) -> None:
    """Write a pod's status as its node does."""
    kubelet = admin.as_user(NODE, "system:nodes")
    eventually(
        lambda: kubelet.run("get", "pod", name).returncode == 0, "the API server knows that the pod is on the node"
    )
    now = json.loads(kubelet("get", "pod", name, "-o", "json"))
    path = f"/api/v1/namespaces/{admin.namespace}/pods/{name}/status"
    kubelet("replace", "--raw", path, "-f", "-", stdin=now | {"status": now["status"] | status})


def release(operator: Kubectl, name: str = RUN_POD) -> None:
    """Drop the pod's finalizer, so that the namespace can go."""
    operator("patch", "pod", name, "--type=json", "-p", '[{"op": "remove", "path": "/metadata/finalizers"}]')


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


def test_nobody_writes_a_pod_s_status(alice: Kubectl, operator: Kubectl) -> None:
    run_pod(alice, operator)
    outcome = '{"status": {"phase": "Succeeded"}}'
    assert "forbidden" in alice.refused("patch", "pod", RUN_POD, "--subresource=status", "-p", outcome)
    release(operator)


# --- roles

CATALOG = ("basemodels", "gpuclasses")


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
