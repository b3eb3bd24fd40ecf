"""`helm upgrade` from the release before, with objects of every kind: all stay readable, untouched, and go on.

It has a control plane of its own, since the definitions of the other tests' one must not go back to those of a release
before. `data/halo-before.tgz` is that release's chart as it was, and `data/before.yaml` what people had under it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from halo_api.crd import KINDS, crd
from tests.api.kube import OPERATOR_NAMESPACE, ROOT, Kubectl, eventually, hack
from tests.api.operator_process import replica
from tests.refusals.schema_kinds import FIRST, RECIPE

pytestmark = pytest.mark.api

NAME = "upgrade"
NAMESPACE = "team-a"
DATA = Path(__file__).parent / "data"
BEFORE = DATA / "halo-before.tgz"
NOW = ROOT / "charts" / "halo"
PLURALS = {kind.__name__: crd(kind)["spec"]["names"]["plural"] for kind in KINDS}

Object = dict[str, Any]


@pytest.fixture(scope="module")
def empty() -> Iterator[Kubectl]:
    """A control plane of this module's own, gone afterwards."""
    hack("cluster", "up", "--name", NAME, "--no-node")
    try:
        admin = Kubectl(Path(hack("cluster", "bin")), Path(hack("cluster", "kubeconfig", "--name", NAME)), NAMESPACE)
        admin("create", "namespace", NAMESPACE)
        eventually(lambda: admin.run("get", "serviceaccount", "default").returncode == 0, "the namespace is set up")
        yield admin
    finally:
        hack("cluster", "down", "--name", NAME, "--purge")


def helm(admin: Kubectl, chart: Path, *values: str) -> None:
    install = ["upgrade", "--install", "halo", str(chart), "--reset-values", "--set", "replicas=0", *values]
    done = subprocess.run(
        [str(admin.tools / "helm"), *install, "--namespace", OPERATOR_NAMESPACE, "--create-namespace", "--wait"],
        env=os.environ | {"KUBECONFIG": str(admin.kubeconfig)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    admin("wait", "--for=condition=Established", "crd", "-l", "app.kubernetes.io/part-of=halo")


def create(admin: Kubectl, body: Object) -> None:
    """An object with its status, as the operator of its day left it."""
    made = json.loads(admin("create", "-f", "-", "-o", "json", stdin={k: v for k, v in body.items() if k != "status"}))
    if "status" in body:
        admin("replace", "--subresource=status", "-f", "-", stdin=made | {"status": body["status"]})


def objects(admin: Kubectl) -> dict[str, Object]:
    """Every object of ours, whole, under KIND/NAME."""
    found = {}
    for kind, plural in PLURALS.items():
        listed = admin.run("get", plural, "-o", "json")
        # Before the upgrade some kinds are not there.
        for item in json.loads(listed.stdout)["items"] if listed.returncode == 0 else ():
            found[f"{kind}/{item['metadata']['name']}"] = item
    return found


def comparable(found: dict[str, Object]) -> dict[str, Object]:
    """All but the notes on who owns which field, which the API server renews when a schema's lists change."""
    return {
        key: body | {"metadata": {k: v for k, v in body["metadata"].items() if k != "managedFields"}}
        for key, body in found.items()
    }


@pytest.fixture(scope="module")
def upgraded(empty: Kubectl) -> tuple[Kubectl, dict[str, Object]]:
    """The cluster after the upgrade, with the objects as they were before."""
    helm(empty, BEFORE)
    for body in yaml.safe_load_all((DATA / "before.yaml").read_text()):
        create(empty, body)
    before = objects(empty)
    helm(empty, NOW, "--set", "webhook.enabled=false")
    return empty, before


def test_all_stay_readable_and_untouched(upgraded: tuple[Kubectl, dict[str, Object]]) -> None:
    admin, before = upgraded
    assert {key.split("/")[0] for key in before} == {"TrainingJob", "Dataset", "Adapter", "BaseModel", "GpuClass"}
    # A new definition's defaults may show; what was written, and its version, stay as they were.
    after = comparable(objects(admin))
    for key, body in comparable(before).items():
        assert after[key]["metadata"] == body["metadata"], key
        assert kept(body["spec"], after[key]["spec"]) == [], key
        assert kept(body.get("status", {}), after[key].get("status", {})) == [], key


def kept(before: Any, after: Any, path: str = "") -> list[str]:
    """Where something that was there is gone or has another value."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [line for key, value in before.items() for line in kept(value, after.get(key, "gone"), f"{path}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [line for i, (one, other) in pairs for line in kept(one, other, f"{path}[{i}]")]
    return [] if before == after else [f"{path}: {before!r} is now {after!r}"]


def test_all_can_be_listed_described_and_labelled(upgraded: tuple[Kubectl, dict[str, Object]]) -> None:
    admin, before = upgraded
    for kind in sorted({key.split("/")[0] for key in before}):
        names = [key.split("/")[1] for key in before if key.startswith(f"{kind}/")]
        for name, line in zip(sorted(names), admin("get", PLURALS[kind], "--no-headers").splitlines(), strict=True):
            assert line.split()[0] == name
        admin("describe", PLURALS[kind])
        admin("label", PLURALS[kind], "--all", "upgraded=yes")
    for kind in ("TrainingJob", "Dataset"):
        # As GitOps tools do: what they had applied is applied again.
        for body in yaml.safe_load_all((DATA / "before.yaml").read_text()):
            if body["kind"] == kind:
                admin("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=without_status(body))


def facts(body: Object) -> Object:
    """The spec and status, each condition as what it says."""
    status = body.get("status", {})
    conditions = {c["type"]: [c["status"], c["reason"]] for c in status.get("conditions", [])}
    return {"spec": body["spec"], "status": status | {"conditions": conditions}}


def without_status(body: Object) -> Object:
    return {key: value for key, value in body.items() if key != "status"}


def test_the_new_operator_leaves_what_is_over_and_goes_on_with_what_is_not(
    upgraded: tuple[Kubectl, dict[str, Object]],
) -> None:
    admin, _ = upgraded
    # Not the Adapter: the chart of before looked at none, and this one does.
    over = ("TrainingJob/done", "Dataset/chat")
    before = {key: body for key, body in objects(admin).items() if key in over}
    with replica(admin) as operator:
        operator.wait_until_leading()

        def made() -> list[Object]:
            found: list[Object] = json.loads(admin("get", "pods", "-o", "json"))["items"]
            return found

        def pods_of(run: str) -> list[Object]:
            # An adapter of that name has one of its own, which verifies it.
            owners = [(pod, pod["metadata"]["ownerReferences"][0]) for pod in made()]
            return [pod for pod, owner in owners if (owner["kind"], owner["name"]) == ("TrainingJob", run)]

        eventually(
            lambda: bool(pods_of("fresh") and pods_of("live")), f"both have a pod: {operator.said()[-2000:]}", 60
        )
        (pod,) = pods_of("live")
        assert "-a2-" in pod["metadata"]["name"]
        images = [c["image"] for c in pod["spec"]["containers"]]
        assert images == ["localhost/halo-trainer:before"]
        assert any("checkpoint-20" in value for value in pod["metadata"]["annotations"].values())
        assert pods_of("done") == []
        after = objects(admin)
        # It may word a condition anew; what they say, and everything else, stays.
        assert [line for key in over for line in kept(facts(before[key]), facts(after[key]), key)] == []


def test_objects_of_the_new_kinds_stay_over_the_next_upgrade(upgraded: tuple[Kubectl, dict[str, Object]]) -> None:
    admin, _ = upgraded
    names = (
        "workspace",
        "environment",
        "criterion",
        "model-alias",
        "datasets",
        "base-models",
        "gpu-classes",
        "grpo-run",
    )
    for name in names:
        admin("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "examples" / f"{name}.yaml"))
    for body in (FIRST, RECIPE):
        admin("apply", "--server-side", "-f", "-", stdin=body)
    before = objects(admin)
    assert {key.split("/")[0] for key in before} == PLURALS.keys()
    helm(admin, NOW, "--set", "webhook.enabled=false,log.format=text")
    assert objects(admin) == before


def test_the_chart_s_own_base_models_come_with_an_upgrade_and_stay(upgraded: tuple[Kubectl, dict[str, Object]]) -> None:
    admin, _ = upgraded
    admin("delete", "basemodels", "--all")
    helm(admin, NOW, "--set", "catalog.install=true,catalog.modelsClaim=weights")
    made = {key: body["spec"]["source"] for key, body in objects(admin).items() if key.startswith("BaseModel/")}
    assert len(made) == 5
    assert {source.split("/")[2] for source in made.values()} == {"weights"}
    helm(admin, NOW)
    assert made.keys() <= objects(admin).keys()
