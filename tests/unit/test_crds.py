"""The definitions are small enough, and `kubectl explain` says of each field what it is, its default, bounds and an example."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halo_api.base import ApiModel
from halo_api.crd import KINDS, crd, to_yaml

ROOT = Path(__file__).resolve().parents[2]
# What Helm and `kubectl apply` can carry in an annotation.
LARGEST = 262_144
Schema = dict[str, Any]

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def schema_of(kind: type[ApiModel]) -> Schema:
    return dict(crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def fields(schema: Schema, path: str = "") -> Iterator[tuple[str, str, Schema]]:
    """Every field below with its path and name; conditions are Kubernetes' own words."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", name, field
        if name == "conditions":
            continue
        for inner, mark in ((field, ""), (field.get("items"), "[]"), (field.get("additionalProperties"), "[key]")):
            if isinstance(inner, dict):
                yield from fields(inner, f"{path}.{name}{mark}")


@every_kind
def test_it_fits_in_an_annotation(kind: type[ApiModel]) -> None:
    assert len(json.dumps(crd(kind))) < LARGEST


@every_kind
def test_the_committed_one_is_the_models(kind: type[ApiModel]) -> None:
    names = crd(kind)["metadata"]["name"]
    assert (ROOT / "crds" / f"{names}.yaml").read_text() == to_yaml(kind), "run python -m halo_api.crd crds"


def test_there_is_no_other() -> None:
    assert {path.stem for path in (ROOT / "crds").glob("*.yaml")} == {crd(kind)["metadata"]["name"] for kind in KINDS}


@every_kind
def test_a_description_begins_with_the_field_s_name(kind: type[ApiModel]) -> None:
    wrong = [path for path, name, field in fields(schema_of(kind)) if not field["description"].startswith(name)]
    assert wrong == []


@every_kind
def test_what_is_written_has_an_example(kind: type[ApiModel]) -> None:
    def needs_one(field: Schema) -> bool:
        # The members of an object each have their own.
        members = "properties" in field or "properties" in field.get("items", {})
        return not members and field.get("type") != "object"

    silent = [
        p
        for p, _, f in fields(schema_of(kind)["properties"]["spec"])
        if needs_one(f) and "xample" not in f["description"]
    ]
    assert silent == []


@every_kind
def test_a_default_and_bounds_are_said(kind: type[ApiModel]) -> None:
    silent = []
    for path, _, field in fields(schema_of(kind)["properties"]["spec"]):
        plain = not isinstance(field.get("default"), dict | list)
        if plain and "default" in field and "default" not in field["description"]:
            silent.append(f"{path}: default {field['default']}")
        for key in ("minimum", "maximum"):
            if (
                key in field
                and f"{field[key]:g}" not in field["description"].replace(",", "")
                and str(int(field[key])) not in field["description"]
            ):
                silent.append(f"{path}: {key} {field[key]}")
    assert silent == []


@every_kind
def test_lists_say_how_they_merge(kind: type[ApiModel]) -> None:
    for path, _, field in fields(schema_of(kind)):
        if field.get("type") == "array":
            assert field["x-kubernetes-list-type"] in ("atomic", "set", "map"), path


@every_kind
def test_it_is_found_with_the_others_and_has_an_age(kind: type[ApiModel]) -> None:
    spec = crd(kind)["spec"]
    assert spec["names"]["categories"] == ["halo"]
    columns = {c["name"]: c for c in spec["versions"][0]["additionalPrinterColumns"]}
    assert "Age" in columns
    assert any(c.get("priority") for c in columns.values()), "nothing more with -o wide"
