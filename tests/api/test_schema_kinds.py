"""What the API server refuses of the kinds beside runs, with no operator running: a bad and a good object a rule, by kubectl."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from halo_api.crd import KINDS, crd
from tests.api.kube import Kubectl
from tests.refusals import Body, Refused, at
from tests.refusals.schema_kinds import BASE_ALIAS, BRIDGED, FIRST, HELPFUL, RECIPE, RETIRED, ROWS, WALLET

pytestmark = pytest.mark.api

DRY = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
ACCEPTED: set[str] = set()
Create = Callable[[Body], Body]
NAMES = {kind.__name__: crd(kind)["spec"]["names"] for kind in KINDS}


def accepts(admin: Kubectl, good: Body) -> None:
    """The good object passes; each is asked once."""
    if (key := json.dumps(good)) not in ACCEPTED:
        admin(*DRY, stdin=good)
        ACCEPTED.add(key)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.good['kind']}: {row.what}")
def test_the_bad_one_is_refused_and_the_good_one_is_not(shared_admin: Kubectl, row: Refused) -> None:
    answer = shared_admin.refused(*DRY, stdin=row.bad)
    assert [word for word in row.words if word not in answer] == [], answer
    accepts(shared_admin, row.good)


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
def created(shared_admin: Kubectl) -> Iterator[Create]:
    """Creates an object and takes it away again."""
    made: list[Body] = []

    def create(body: Body) -> Body:
        made.append(body)
        return dict(json.loads(shared_admin("create", "-f", "-", "-o", "json", stdin=body)))

    yield create
    for body in made:
        shared_admin("delete", NAMES[body["kind"]]["plural"], body["metadata"]["name"])


def kind_of(value: Any) -> str | None:
    return value.get("kind") if isinstance(value, dict) else None


def changed(body: Body, changes: Body) -> Body:
    for path, value in changes.items():
        body = at(body, f"spec.{path}", value)
    return body


@pytest.mark.parametrize(("body", "changes", "words"), UNCHANGED, ids=kind_of)
def test_what_is_a_record_never_changes(
    shared_admin: Kubectl, created: Create, body: Body, changes: Body, words: str
) -> None:
    there = created(body)
    assert words in shared_admin.refused("replace", "-f", "-", stdin=changed(there, changes))
    # Labels and annotations are everybody's.
    shared_admin("label", NAMES[body["kind"]]["plural"], body["metadata"]["name"], "team=support")


@pytest.mark.parametrize(("body", "changes"), CHANGED, ids=kind_of)
def test_what_may_change_does(shared_admin: Kubectl, created: Create, body: Body, changes: Body) -> None:
    shared_admin("replace", "-f", "-", stdin=changed(created(body), changes))


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
