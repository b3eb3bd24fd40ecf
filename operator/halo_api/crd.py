"""Turns the pydantic models into CustomResourceDefinitions; `python -m halo_api.crd DIR` writes one YAML file a kind.

Structural schemas forbid much of what JSON schema allows (KEP-1979 and the apiextensions validation): references, unions and
`additionalProperties: false` are resolved here, and what has no structural form is an error, never dropped silently.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from halo_api import GROUP, VERSION
from halo_api.adapter import Adapter
from halo_api.base import ApiModel
from halo_api.catalog import BaseModel
from halo_api.criterion import Criterion
from halo_api.dataset import Dataset
from halo_api.environment import Environment
from halo_api.gpu_class import GpuClass
from halo_api.grpo_run import GrpoRun
from halo_api.ledger import LedgerPage
from halo_api.model_alias import ModelAlias
from halo_api.recipe import Recipe
from halo_api.training_job import TrainingJob
from halo_api.workspace import Workspace

KINDS: tuple[type[ApiModel], ...] = (
    TrainingJob,
    GrpoRun,
    Dataset,
    Adapter,
    Environment,
    Criterion,
    ModelAlias,
    Workspace,
    LedgerPage,
    BaseModel,
    GpuClass,
    Recipe,
)

DROPPED = frozenset({"title", "$defs", "examples", "x-halo-crd"})


class NotStructural(TypeError):
    """A model says something that a structural schema cannot."""


def crd(kind: type[ApiModel]) -> dict[str, Any]:
    """Return the CustomResourceDefinition of a kind; its names and columns stand in the model's `x-halo-crd`."""
    full = kind.model_json_schema(by_alias=True)
    facts = full["x-halo-crd"]
    schema = structural(full)
    has_status = "status" in schema["properties"]
    schema["required"] = ["spec"]
    if has_status and facts.get("reconciled", True):
        # Flux and kstatus call an object without status "Current": this default says that nobody has looked yet.
        schema["properties"]["status"]["default"] = {"observedGeneration": -1}
    singular = kind.__name__.lower()
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": [column(*entry) for entry in facts["columns"]],
    }
    if has_status:
        version["subresources"] = {"status": {}}
    names: dict[str, Any] = {
        "kind": kind.__name__,
        "listKind": f"{kind.__name__}List",
        "plural": facts["plural"],
        "singular": singular,
        "categories": ["halo"],
    }
    if facts["shortNames"]:
        names["shortNames"] = facts["shortNames"]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{facts['plural']}.{GROUP}"},
        "spec": {"group": GROUP, "scope": facts["scope"], "names": names, "versions": [version]},
    }


def column(name: str, type_: str, path: str, priority: int) -> dict[str, Any]:
    """Return a printer column; priority 1 shows with `-o wide`."""
    return {"name": name, "type": type_, "jsonPath": path} | ({"priority": priority} if priority else {})


def structural(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the structural form of a JSON schema: references inlined, optional members without null."""
    definitions = schema.get("$defs", {})

    def resolve(node: dict[str, Any], path: str, seen: tuple[str, ...]) -> dict[str, Any]:
        if "$ref" not in node:
            return node
        name = node["$ref"].removeprefix("#/$defs/")
        if name in seen:
            raise NotStructural(f"{path}: {name} contains itself")
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return walk(definitions[name], path, (*seen, name)) | rest

    def walk(node: dict[str, Any], path: str, seen: tuple[str, ...]) -> dict[str, Any]:
        example = node["examples"][0] if "examples" in node else None
        node = {key: value for key, value in node.items() if key not in DROPPED}
        node = optional(node, path)
        node = resolve(node, path, seen)
        if "const" in node:
            node["enum"] = [node.pop("const")]
        for forbidden in ("anyOf", "oneOf", "allOf", "prefixItems", "patternProperties", "propertyNames"):
            if forbidden in node:
                raise NotStructural(f"{path}: {forbidden} is not structural; use optional members and a CEL rule")
        if node.get("default", ...) is None:
            del node["default"]
        node = exclusive_bounds(node)
        if node.get("additionalProperties") is False:
            del node["additionalProperties"]
        if isinstance(node.get("additionalProperties"), dict):
            node["additionalProperties"] = walk(node["additionalProperties"], f"{path}.*", seen)
        if "properties" in node:
            node["properties"] = {
                name: walk(child, f"{path}.{name}", seen) for name, child in node["properties"].items()
            }
            if path.startswith(".status.") and "[]" not in path:
                # One writer replaces a status whole: who owns which leaf of it would be tracked for nobody, at every write.
                node["x-kubernetes-map-type"] = "atomic"
        if "items" in node:
            node["items"] = walk(node["items"], f"{path}[]", seen)
            node.setdefault("x-kubernetes-list-type", "atomic")
        bounded(node, path)
        if example is None and path.startswith(".spec") and not path.endswith(("[]", ".*")):
            example = obvious(node)
        if example is not None:
            node["description"] += said_of(node, example)
        return node

    return walk(schema, "", ())


def optional(node: dict[str, Any], path: str) -> dict[str, Any]:
    """Turn pydantic's `X | None` into X: in Kubernetes an absent member says the same as null."""
    if node.get("x-kubernetes-int-or-string"):
        # It has no type of its own; a maxLength bounds the string, which keeps CEL's estimated cost small.
        return {key: value for key, value in node.items() if key not in ("anyOf", "type")}
    if "anyOf" not in node:
        return node
    arms = [arm for arm in node["anyOf"] if arm.get("type") != "null"]
    if len(arms) != 1:
        raise NotStructural(f"{path}: a union is not structural; use optional members and a CEL rule")
    optional_type: dict[str, Any] = arms[0]
    return optional_type | {key: value for key, value in node.items() if key != "anyOf"}


def exclusive_bounds(node: dict[str, Any]) -> dict[str, Any]:
    """Rewrite JSON schema's numeric exclusive bounds in OpenAPI 3.0's boolean form."""
    for bound in ("Minimum", "Maximum"):
        # True is the form wanted: what a reference names was rewritten where it was resolved.
        if (value := node.get(f"exclusive{bound}")) is not None and value is not True:
            node |= {bound.lower(): value, f"exclusive{bound}": True}
    return node


def obvious(node: dict[str, Any]) -> Any:
    """Return the example of a field whose values can all be listed, unless its description has one."""
    if "xample" in node.get("description", ""):
        return None
    if node.get("type") == "boolean":
        return not node.get("default", False)
    if "enum" in node:
        return next((value for value in node["enum"] if value != node.get("default")), node["enum"][0])
    return None


def said_of(node: dict[str, Any], example: Any) -> str:
    """Say a field's default, bounds and an example at the end of its description, where `kubectl explain` shows them."""
    low, high = node.get("minimum"), node.get("maximum")
    parts = [f"default {plain(node['default'])}"] if "default" in node else []
    if low is not None:
        parts.append(f"{'above' if node.get('exclusiveMinimum') else 'from'} {plain(low)}")
    if high is not None:
        parts.append(f"{'below' if node.get('exclusiveMaximum') else 'to'} {plain(high)}")
    if "maxItems" in node:
        parts.append(f"{node.get('minItems', 0)} to {node['maxItems']} items")
    return f" [{'; '.join([*parts, f'example {plain(example)}'])}]"


def plain(value: Any) -> str:
    """Write a value as in JSON, whole numbers without a point."""
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value).strip('"')


def bounded(node: dict[str, Any], path: str) -> None:
    """Require the bounds that keep CEL's estimated cost, and an object's size, small."""
    needs: dict[str, Callable[[], bool]] = {
        "string": lambda: bool({"enum", "maxLength", "format"} & node.keys()),
        "array": lambda: "maxItems" in node,
    }
    check = needs.get(node.get("type", ""))
    if path.startswith(".spec") and check and not check():
        raise NotStructural(f"{path}: needs a bound (maxLength, enum or format; maxItems)")
    if path.count(".") >= 1 and "description" not in node and not path.endswith(("[]", ".*")):
        raise NotStructural(f"{path}: needs a description; it is the documentation of `kubectl explain`")


def to_yaml(kind: type[ApiModel]) -> str:
    """Return the definition as YAML."""
    return yaml.safe_dump(crd(kind), sort_keys=False, width=120, allow_unicode=True)


def write_all(folder: Path) -> list[Path]:
    """Write every kind's definition into `folder` and return the paths."""
    written = []
    for kind in KINDS:
        path = folder / f"{crd(kind)['metadata']['name']}.yaml"
        path.write_text(to_yaml(kind))
        written.append(path)
    return written


if __name__ == "__main__":
    for path in write_all(Path(sys.argv[1])):
        print(path)
