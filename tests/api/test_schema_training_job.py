"""Every rule of the schema, by real kubectl: the bad object is refused in the words of its row, its good counterpart is taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from halo_api.training_job import TrainingJobSpec
from tests.api.kube import ROOT, Kubectl
from tests.refusals import Body, Refused, at
from tests.refusals.bodies import RFT, RLVR, SFT
from tests.refusals.page import answers, page, schema_rows

pytestmark = pytest.mark.api

ROWS = schema_rows()
PAGE = ROOT / "docs" / "refusals.md"


@pytest.fixture(scope="module")
def said(installed_chart: Kubectl) -> dict[int, str]:
    """What the API server says of each bad object, by its row."""

    def apply(body: Body) -> str:
        return installed_chart.run("create", "--dry-run=server", "-f", "-", stdin=body).stderr

    return dict(zip(map(id, ROWS), answers(apply, [row.bad for row in ROWS]), strict=True))


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.bad['kind']}: {row.what}" for row in ROWS])
def test_the_bad_one_is_refused_in_these_words(said: dict[int, str], row: Refused) -> None:
    answer = said[id(row)]
    assert answer, "it was taken"
    assert [word for word in row.words if word not in answer] == [], answer


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.bad['kind']}: {row.what}" for row in ROWS])
def test_it_is_about_one_field(said: dict[int, str], row: Refused) -> None:
    errors = [line.removeprefix("* ") for line in said[id(row)].splitlines() if line.startswith("* ")]
    # Of a mistyped number the API server also says its bounds, and that it could check no further.
    fields = {line.split(":")[0] for line in errors if "some validation rules were not checked" not in line}
    assert len(fields) <= 1, errors


def test_the_good_counterparts_are_taken(installed_chart: Kubectl) -> None:
    good = {json.dumps(row.good, sort_keys=True): row.good for row in ROWS}
    items = []
    for i, body in enumerate(good.values()):
        named = {"kind": body["kind"]} | body
        items.append(named | {"metadata": body["metadata"] | unique(body, i)})
    installed_chart("create", "--dry-run=server", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": items})


def unique(body: Body, i: int) -> dict[str, str]:
    """A name of its own, unless the kind prescribes one."""
    return {} if body["metadata"]["name"] == "workspace" else {"name": f"good-{i}"}


@pytest.mark.parametrize("number", [".nan", ".inf", "-.inf", "1e400", "0.5 GPU"])
@pytest.mark.parametrize("field", ["steps", "lora.learningRate", "budget.h100Hours"])
def test_what_yaml_takes_for_a_number_and_json_does_not(installed_chart: Kubectl, field: str, number: str) -> None:
    text = yaml.safe_dump(at(SFT, f"spec.{field}", "THE NUMBER")).replace("THE NUMBER", number)
    done = installed_chart.run("create", "--dry-run=server", "-f", "-", stdin=text)
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) <= 3, done.stderr


CHANGES: dict[str, tuple[Body, Body]] = {
    "base": (SFT, {"base": "halo_rft"}),
    "baseModel": (SFT, {"baseModel": "other"}),
    "gpu": (SFT, {"gpu": {"count": 2}}),
    "steps": (SFT, {"steps": 201}),
    "batch": (SFT, {"batch": 5}),
    "saveSteps": (SFT, {"saveSteps": 6}),
    "seed": (SFT, {"seed": 1}),
    "backoffLimit": (SFT, {"backoffLimit": 0}),
    "parent": (SFT, {"parent": {"adapter": "other"}}),
    "trainable": (SFT, {"trainable": "full"}),
    "mode": (RLVR, {"mode": "final"}),
    "contextParallel": (SFT, {"contextParallel": "auto"}),
    "lora": (SFT, {"lora": {"rank": 4}}),
    "rlvr": (RLVR, {"rlvr": {"recipe": "sql_v2"}}),
    "rft": (RFT, {"rft": {"samples": 4}}),
}


def test_every_field_but_two_is_tried() -> None:
    assert {field.alias for field in TrainingJobSpec.model_fields.values()} == {*CHANGES, "suspend", "budget"}


@pytest.mark.parametrize("field", CHANGES)
def test_a_run_is_a_record(admin: Kubectl, field: str) -> None:
    body, change = CHANGES[field]
    admin("create", "-f", "-", stdin=body)
    said = refused_patch(admin, change)
    assert f"spec.{field}" in said
    assert "is immutable: a run is a record of what was asked; apply a new TrainingJob under another name" in said
    admin("patch", "trainingjob", "run", "--type=merge", "-p", '{"spec": {"suspend": true}}')


def test_a_budget_is_only_ever_raised(admin: Kubectl) -> None:
    admin("create", "-f", "-", stdin=at(SFT, "spec.budget.h100Hours", 12.5))
    admin("create", "-f", "-", stdin=at(SFT, "metadata.name", "free"))
    assert "may only be raised, found 12 after 12.5; put it back or raise it" in (
        refused_patch(admin, {"budget": {"h100Hours": 12}})
    )
    assert "can neither be added nor removed after creation, found it removed" in refused_patch(admin, {"budget": None})
    assert "found it added" in refused_patch(admin, {"budget": {"h100Hours": 1}}, "free")
    admin("patch", "trainingjob", "run", "--type=merge", "-p", '{"spec": {"budget": {"h100Hours": 12.501}}}')


def refused_patch(admin: Kubectl, change: Body, name: str = "run") -> str:
    return admin.refused("patch", "trainingjob", name, "--type=merge", "-p", json.dumps({"spec": change}))


def test_the_page_says_the_same(said: dict[int, str]) -> None:
    assert Path(PAGE).read_text() == page(lambda row: said[id(row)]), "run hack/refusals"
