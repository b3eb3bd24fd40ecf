"""What the API server refuses of TrainingJobs beside the rows of the tables: numbers that are none, and changes to a record."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from halo_api.training_job import TrainingJobSpec
from tests.api.client import Api
from tests.api.client import Refused as ByServer
from tests.api.kube import Kubectl
from tests.refusals import Body, at
from tests.refusals.answers import path_of
from tests.refusals.bodies import RFT, RLVR, SFT

pytestmark = pytest.mark.api

NUMBERS = [".nan", ".inf", "-.inf", "1e400", "0.5 GPU"]
NUMBERED = ["steps", "lora.learningRate", "budget.h100Hours"]


@pytest.fixture(scope="module")
def said_of_files(installed_chart: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one kubectl says of each file that has such a number, by the file's name."""
    folder = tmp_path_factory.mktemp("numbers")
    for field in NUMBERED:
        for number in NUMBERS:
            text = yaml.safe_dump(at(SFT, f"spec.{field}", "THE NUMBER")).replace("THE NUMBER", number)
            (folder / f"{field} {number}.yaml").write_text(text)
    done = installed_chart.run("create", "--dry-run=server", "-f", str(folder))
    assert done.stdout == "", "one was taken"
    found = re.findall(r'(?:creating "|parsing )([^"]*?\.yaml)"?: (.*?)(?=, error parsing |\]?\n)', done.stderr)
    return {Path(path).stem: words for path, words in found}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("field", NUMBERED)
def test_what_yaml_takes_for_a_number_and_json_does_not(said_of_files: dict[str, str], field: str, number: str) -> None:
    said = said_of_files[f"{field} {number}"]
    of_yaml = "error converting YAML to JSON: json: unsupported value: "
    assert said.startswith(of_yaml) or f'spec.{field}: Invalid value: "string": ' in said


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
def test_a_run_is_a_record(api: Api, shared_admin: Kubectl, field: str) -> None:
    body, change = CHANGES[field]
    collection, name = path_of(body, shared_admin.namespace), f"run-{field.lower()}"
    api.post(collection, at(body, "metadata.name", name))
    with pytest.raises(ByServer, match=rf"\bspec\.{field}\b") as refused:
        api.patch(f"{collection}/{name}", {"spec": change})
    immutable = "is immutable: a run is a record of what was asked; apply a new TrainingJob under another name"
    assert immutable in str(refused.value)
    assert api.patch(f"{collection}/{name}", {"spec": {"suspend": True}})["spec"]["suspend"] is True
    api.delete(f"{collection}/{name}")


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
