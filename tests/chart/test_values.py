"""The values: a schema that refuses what makes no sense, and a table that has every one."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml

from tests.chart.rendering import CHART, ROOT, Object, attempt, run_helm

VALUES: Object = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: Object = json.loads((CHART / "values.schema.json").read_text())


def test_lint_finds_nothing() -> None:
    done = run_helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"replica": 3}, "replica"),
        ({"image.repo": "x"}, "repo"),
        ({"trainer.tag": "x"}, "tag"),
        ({"security.execGroup": ["x"]}, "execGroup"),
        ({"replicas": "two"}, "replicas"),
        ({"replicas": -1}, "replicas"),
        ({"image.pullPolicy": "Sometimes"}, "pullPolicy"),
        ({"image.digest": "sha256:short"}, "digest"),
        ({"storage.artifactsClaim": "Not_A_Name"}, "artifactsClaim"),
        ({"log.format": "xml"}, "format"),
        ({"watchNamespaces": "team-a"}, "watchNamespaces"),
        ({"startTimeoutSeconds": 0}, "startTimeoutSeconds"),
        ({"crds.enabled": "yes"}, "enabled"),
        ({"nodeSelector": {"gpu": True}}, "nodeSelector"),
    ],
)
def test_the_schema_refuses(values: Object, found: str) -> None:
    done = attempt(values)
    assert done.returncode != 0
    assert "schema" in done.stderr
    assert found in done.stderr


def schema_of(node: Object) -> Object:
    name = node.get("$ref", "").removeprefix("#/definitions/")
    return {**SCHEMA["definitions"][name], **node} if name else node


def leaves(values: Object, schema: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    """Every value of values.yaml with what the schema says of it."""
    for key, value in values.items():
        node = schema_of(schema["properties"][key])
        if isinstance(value, dict) and "properties" in node and key != "resources":
            yield from leaves(value, node, f"{path}{key}.")
        else:
            yield path + key, node


LEAVES = dict(leaves(VALUES, SCHEMA))


def test_every_value_is_described() -> None:
    assert [path for path, node in LEAVES.items() if not node.get("description")] == []


def test_the_installation_page_has_every_value() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    assert [path for path in LEAVES if f"| `{path}` |" not in page] == []


def objects_in(node: object) -> Iterator[Object]:
    if isinstance(node, dict):
        if node.get("type") == "object" and "properties" in node:
            yield node
        for child in node.values():
            yield from objects_in(child)


def test_no_object_takes_an_unknown_key() -> None:
    assert all(node.get("additionalProperties") is False for node in objects_in(SCHEMA))
