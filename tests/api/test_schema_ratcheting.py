"""A run that an older schema allowed lives on under the current one: its status, labels and suspend can still be written.

The definitions here are TrainingJob's under a group of their own, first loosened and then as they are: the API server that
the tests share keeps its own all the while.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from halo_api.crd import crd
from halo_api.training_job import TrainingJob
from tests.api.client import Api
from tests.api.client import Refused as ByServer
from tests.api.kube import Kubectl, eventually
from tests.refusals import Body, at
from tests.refusals.bodies import RFT, RLVR, SFT

pytestmark = pytest.mark.api

GROUP = f"ratchet-{uuid.uuid4().hex[:6]}.example"
PLURAL = f"trainingjobs.{GROUP}"
RULES = {
    "x-kubernetes-validations", "required", "enum", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minLength", "maxLength", "minItems", "maxItems",
}  # fmt: skip

OLD: dict[str, Body] = {
    "retired-recipe": at(RLVR, "spec.rlvr.recipe", "sql_v1"),
    "unknown-recipe": at(RLVR, "spec.rlvr.recipe", "sql_v0"),
    "two-parts": at(SFT, "spec.rlvr", {"dataset": "questions"}),
    "no-dataset": at(RLVR, "spec.rlvr.dataset", None),
    "no-base-model": at(SFT, "spec.baseModel", None),
    "no-steps-of-its-own": at(SFT, "spec.steps", 0),
    "another-mode": at(RLVR, "spec.mode", "thinking"),
    "a-long-dataset": at(SFT, "spec.lora.dataset", "D" * 300),
    "rft-of-two": at(RFT, "spec.gpu.count", 2),
    "odd-context": at(SFT, "spec.contextParallel", 3),
    "odd-budget": at(SFT, "spec.budget.h100Hours", 1.23456),
    "nothing-but-a-base": {**SFT, "spec": {"base": "lora_trl"}},
}

# Where spec itself changes, the API server wants what it lacks: so a field is never required that was not from the first.
LACKING = {"no-base-model", "nothing-but-a-base"}


def definition() -> Body:
    """TrainingJob's definition under the test's group."""
    body = crd(TrainingJob)
    body["metadata"]["name"] = PLURAL
    body["spec"]["group"] = GROUP
    body["spec"]["names"] = body["spec"]["names"] | {"categories": [], "shortNames": []}
    return body


def loosened(node: Any) -> Any:
    """The same schema without a single rule."""
    if isinstance(node, dict):
        return {key: loosened(value) for key, value in node.items() if key not in RULES or key == "properties"}
    return [loosened(item) for item in node] if isinstance(node, list) else node


def apply(kubectl: Kubectl, body: Body) -> None:
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=body)
    kubectl("wait", "--for=condition=Established", "crd", PLURAL)


def collection(kubectl: Kubectl) -> str:
    return f"/apis/{GROUP}/v1alpha1/namespaces/{kubectl.namespace}/trainingjobs"


def refused_creation(api: Api, kubectl: Kubectl, body: Body, options: str = "") -> str:
    """What the API server says against the object; nothing if it takes it."""
    try:
        api.post(collection(kubectl) + options, body)
    except ByServer as answer:
        return str(answer)
    return ""


@pytest.fixture(scope="module")
def stored(api: Api, shared_admin: Kubectl) -> Iterator[Kubectl]:
    """kubectl in a namespace that holds every object of OLD, stored before the rules came."""
    loose = definition()
    version = loose["spec"]["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    version["schema"]["openAPIV3Schema"]["properties"]["spec"] = loosened(spec)
    apply(shared_admin, loose)
    for name, body in OLD.items():
        named = {**body, "apiVersion": f"{GROUP}/v1alpha1", "metadata": {"name": name}}
        eventually(lambda b=named: not refused_creation(api, shared_admin, b), f"{name} is stored")  # type: ignore[misc]
    apply(shared_admin, definition())
    probe = {**RFT, "apiVersion": f"{GROUP}/v1alpha1", "spec": RFT["spec"] | {"base": "none"}}
    eventually(
        lambda: "Unsupported value" in refused_creation(api, shared_admin, probe, "?dryRun=All"),
        "the rules are in force",
    )
    yield shared_admin
    shared_admin("delete", "crd", PLURAL, "--wait=false")


def refused(api: Api, stored: Kubectl, name: str, changes: Body, subresource: str = "") -> str:
    """What the API server says against the change; nothing if it makes it."""
    try:
        api.patch(f"{collection(stored)}/{name}{subresource}", changes)
    except ByServer as answer:
        return str(answer)
    return ""


@pytest.mark.parametrize("name", OLD)
def test_a_new_one_like_it_is_refused(api: Api, stored: Kubectl, name: str) -> None:
    body = {**OLD[name], "apiVersion": f"{GROUP}/v1alpha1", "metadata": {"name": "new"}}
    with pytest.raises(ByServer, match="spec"):
        api.post(f"{collection(stored)}?dryRun=All", body)


@pytest.mark.parametrize("name", OLD)
def test_its_status_is_written(api: Api, stored: Kubectl, name: str) -> None:
    status = {"observedGeneration": 1, "attempt": 1, "waiting": "for a GPU"}
    assert refused(api, stored, name, {"status": status}, "/status") == ""


@pytest.mark.parametrize("name", OLD)
def test_its_labels_and_finalizers_are_written(api: Api, stored: Kubectl, name: str) -> None:
    assert refused(api, stored, name, {"metadata": {"labels": {"team": "a"}}}) == ""


@pytest.mark.parametrize("name", [name for name in OLD if name not in LACKING])
def test_it_is_suspended_and_goes_on(api: Api, stored: Kubectl, name: str) -> None:
    assert refused(api, stored, name, {"spec": {"suspend": True}}) == ""
    assert refused(api, stored, name, {"spec": {"suspend": False}}) == ""


def test_nothing_more_is_ever_required() -> None:
    spec = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert set(spec["required"]) == {"base", "baseModel", "gpu", "steps", "batch"}


def test_it_is_no_less_immutable(api: Api, stored: Kubectl) -> None:
    assert "is immutable" in refused(api, stored, "retired-recipe", {"spec": {"rlvr": {"recipe": "sql_v3"}}})


def test_its_odd_budget_is_raised_to_an_even_one(api: Api, stored: Kubectl) -> None:
    still_odd = {"spec": {"budget": {"h100Hours": 2.34567}}}
    assert "more than 3 decimals" in refused(api, stored, "odd-budget", still_odd)
    assert refused(api, stored, "odd-budget", {"spec": {"budget": {"h100Hours": 2.5}}}) == ""
