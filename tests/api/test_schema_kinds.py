"""What the API server holds of the kinds beside runs, with no operator running: which fields are records, and what people read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from halo_api.crd import KINDS, crd
from tests.api.client import Api
from tests.api.client import Refused as ByServer
from tests.api.kube import Kubectl
from tests.refusals import Body, at
from tests.refusals.answers import path_of
from tests.refusals.schema_kinds import BASE_ALIAS, BRIDGED, FIRST, HELPFUL, RECIPE, RETIRED, WALLET

pytestmark = pytest.mark.api

Create = Callable[[Body], tuple[str, Body]]
NAMES = {kind.__name__: crd(kind)["spec"]["names"] for kind in KINDS}


# --- what may not change

UNCHANGED = [
    (BRIDGED, {"revision": "1.0.1"}, "create another Environment instead"),
    (BRIDGED, {"maxTurns": 8}, "create another Environment instead"),
    (HELPFUL, {"unit": "trace"}, "found trace after request"),
    (FIRST, {"totals.spentUsd": "0"}, "a settled entry never changes"),
    (RECIPE, {"lora.rank": 32}, "a released recipe never changes"),
    (RECIPE, {"digest": "sha256:" + 64 * "1"}, "a released recipe never changes"),
    (RETIRED, {"retired": False, "successor": None}, "retired for good"),
]
CHANGED = [
    (HELPFUL, {"rubric": "The answer solves what was asked, briefly."}),
    (WALLET, {"wallet.creditUsd": 20, "plan": "free", "features.fineTuning": False}),
    (BASE_ALIAS, {"adapter": None, "canaries.allowed": False}),
    (RECIPE, {"retired": True, "successor": "sql_v10"}),
]


@pytest.fixture
def created(api: Api, shared_admin: Kubectl) -> Iterator[Create]:
    """Creates an object, says where it is, and takes it away again."""
    made: list[str] = []

    def create(body: Body) -> tuple[str, Body]:
        collection = path_of(body, shared_admin.namespace)
        there = api.post(collection, body)
        made.append(f"{collection}/{body['metadata']['name']}")
        return made[-1], there

    yield create
    for path in made:
        api.delete(path)


def kind_of(value: Any) -> str | None:
    return value.get("kind") if isinstance(value, dict) else None


def changed(body: Body, changes: Body) -> Body:
    for path, value in changes.items():
        body = at(body, f"spec.{path}", value)
    return body


@pytest.mark.parametrize(("body", "changes", "words"), UNCHANGED, ids=kind_of)
def test_what_is_a_record_never_changes(api: Api, created: Create, body: Body, changes: Body, words: str) -> None:
    path, there = created(body)
    with pytest.raises(ByServer) as refused:
        api.request("PUT", path, changed(there, changes))
    assert words in str(refused.value)
    # Labels and annotations are everybody's.
    api.patch(path, {"metadata": {"labels": {"team": "support"}}})


@pytest.mark.parametrize(("body", "changes"), CHANGED, ids=kind_of)
def test_what_may_change_does(api: Api, created: Create, body: Body, changes: Body) -> None:
    path, there = created(body)
    api.request("PUT", path, changed(there, changes))


# --- what people read


@pytest.mark.parametrize("kind", sorted(NAMES))
def test_kubectl_explains_every_kind(installed_chart: Kubectl, kind: str) -> None:
    text = replace(installed_chart, namespace="")("explain", f"{NAMES[kind]['plural']}.spec", "--recursive")
    assert f"KIND:       {kind}" in text
    assert "FIELDS:" in text


def test_short_names_and_the_category_lead_to_one_kind_each(installed_chart: Kubectl) -> None:
    listed = json.loads(installed_chart("get", "--raw", "/apis/halo.training/v1alpha1"))["resources"]
    served = {r["name"]: r for r in listed if "/" not in r["name"]}
    assert served.keys() == {names["plural"] for names in NAMES.values()}
    assert all(r["categories"] == ["halo"] for r in served.values())
    ours = [name for r in served.values() for name in (r["name"], r["singularName"], *r.get("shortNames", []))]
    lines = installed_chart("api-resources", "--no-headers").splitlines()
    others = [line.split() for line in lines if "halo.training/" not in line]
    taken = {word for words in others for word in (words[0], *words[1].split(","))}
    assert len(ours) == len(set(ours))
    assert not taken & set(ours)


def test_a_listing_of_everything_of_ours(shared_admin: Kubectl, created: Create) -> None:
    created(WALLET)
    created(BRIDGED)
    shown = shared_admin("get", "halo")
    assert "workspace.halo.training/workspace" in shown
    assert "environment.halo.training/bench-1" in shown
    header, line = shared_admin("get", "workspace", "-o", "wide").splitlines()
    assert header.split()[:5] == ["NAME", "PLAN", "BALANCE", "HELD", "SPENT"]
    assert line.split()[:2] == ["workspace", "paid"]
    assert "500.25" in line
