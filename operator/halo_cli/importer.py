"""`kubectl halo import FILE`: turns a platform's JSON body into a TrainingJob or a GrpoRun, with nothing dropped.

The fields are read off the API's own models: a job body (base lora_trl, halo_rlvr, halo_rft) is snake_case, a body of
start_grpo_run camelCase but for environment.proxy_base_url, environment.max_steps and verifier[].timeout_sec. What no
model knows goes into an annotation, as JSON, in its place.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel

from halo_api.base import DNS_NAME
from halo_api.grpo_run import GrpoRunSpec
from halo_api.training_job import TrainingJobSpec
from halo_api.training_methods import LoraSpec, RftSpec, RlvrSpec
from halo_cli.import_fields import alias_of, fields, keep, mapped, put
from halo_cli.kubectl import CliError, Object

API_VERSION = "halo.training/v1alpha1"
UNKNOWN = "halo.training/unknown-fields"
# The API server takes 256 KiB of annotations in all.
ANNOTATION_BYTES = 200_000
PARTS: dict[str, type[BaseModel]] = {"lora": LoraSpec, "rlvr": RlvrSpec, "rft": RftSpec}
PART_OF = {"lora_trl": "lora", "halo_rlvr": "rlvr", "halo_rft": "rft"}
# JobSpec's own names of what a TrainingJob says in another way.
ALIASES = {"max_steps": "steps"}
# What halo_rft takes of spec.lora.
RFT_LORA = ("rank", "alpha", "learning_rate")
GRPO_KEYS = ("reward", "promptCount", "rewardBudgetUsd", "gpuHourBudget")


@dataclass
class Import:
    """What came of a body: the object, and what a person should know of it."""

    body: Object
    notes: list[str] = field(default_factory=list)


def read(text: str, where: str) -> Object:
    """Read a JSON object; a key that stands twice would be lost in silence."""

    def pairs(found: list[tuple[str, Any]]) -> Object:
        twice = next((key for i, (key, _) in enumerate(found) if key in [k for k, _ in found[:i]]), None)
        if twice is not None:
            raise CliError(f"{where}: found key {twice!r} twice; keep one of them")
        return dict(found)

    def constant(word: str) -> Any:
        raise CliError(f"{where}: found {word}, which is no number of JSON; write a number")

    def number(digits: str) -> float:
        if math.isinf(found := float(digits)):
            raise CliError(f"{where}: found {digits[:40]}, which no number can hold; write a smaller one")
        return found

    try:
        body = json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_float=number)
        # Half a character can be written in JSON, and in nothing else.
        json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise CliError(f"{where}: found no JSON: {error}") from None
    if not isinstance(body, dict):
        raise CliError(f"{where}: found {kind_of(body)}; give one JSON object, the body of one request")
    return body


def imported(body: Object, name: str | None, namespace: str | None, where: str) -> Import:
    """Return the object that a body asks for."""
    if "base" in body:
        spec, unknown, notes = training_job(body, where)
        kind = "TrainingJob"
    elif any(key in body for key in GRPO_KEYS):
        spec, unknown, notes = grpo_run(body, where)
        kind = "GrpoRun"
    else:
        raise CliError(
            f"{where}: found neither base ({', '.join(PART_OF)}), which a job has, nor {', '.join(GRPO_KEYS)}, "
            "which a GRPO run has; give the body of one of these requests"
        )
    meta: Object = {"name": name_of(name, unknown, where, notes)}
    if namespace:
        meta["namespace"] = namespace
    if unknown:
        text = json.dumps(unknown, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        if len(text.encode()) > ANNOTATION_BYTES:
            raise CliError(
                f"{where}: found {len(text.encode())} bytes of fields that Halo does not know, more than the "
                f"{ANNOTATION_BYTES} that fit an annotation; remove some: {', '.join(list(unknown)[:10])}"
            )
        meta["annotations"] = {UNKNOWN: text}
        notes.append(f"kept in the annotation {UNKNOWN}, where nothing reads it: {', '.join(unknown)}")
    return Import({"apiVersion": API_VERSION, "kind": kind, "metadata": meta, "spec": spec}, notes)


def training_job(body: Object, where: str) -> tuple[Object, Object, list[str]]:
    """Sort a job's keys into the spec and the part of its base; both may stand flat, or the part as an object of its own."""
    base = body["base"]
    part = PART_OF.get(base) if isinstance(base, str) else None
    if part is None:
        raise CliError(f"{where}: base: found {base!r}; use one of {', '.join(PART_OF)}")
    spec: Object = {"base": base}
    parts: dict[str, Object] = {"spec": spec, "lora": {}, part: {}}
    unknown: Object = {}
    notes: list[str] = []
    sources: list[tuple[Object, tuple[str, ...]]] = [({k: v for k, v in body.items() if k not in taken(part)}, ())]
    for name in taken(part):
        found = body.get(name)
        if found is not None and not isinstance(found, dict):
            raise CliError(f"{where}: {name}: found {kind_of(found)}; it must be an object")
        sources.append((found or {}, (name,)))
    for source, place in sources:
        for key, value in source.items():
            path, at = f"{where}: {'.'.join((*place, key))}", (*place, key)
            attribute = ALIASES.get(key, key)
            known = place_of(part, attribute, place)
            if known is None:
                if place or key not in ("base", "gpu", "gpus", "gpu_count"):
                    keep(unknown, at, value)
            elif value is not None:
                found = known.wrap(mapped(known.model, attribute, value, unknown, at, True))
                put(parts[known.part], known.name, found, path)
    if parts["lora"] and part != "lora":
        spec["lora"] = parts["lora"]
    spec[part] = parts[part]
    gpu = gpu_of(body, where, notes)
    if gpu:
        spec["gpu"] = gpu
    if "baseModel" in spec:
        spec["baseModel"] = catalog_name(spec["baseModel"], f"{where}: base_model", notes)
    return spec, unknown, notes


class Place(NamedTuple):
    """Where a job's key belongs: the spec itself or a part of it, and under which name."""

    part: str
    name: str
    model: type[BaseModel]
    inside: str | None = None

    def wrap(self, value: Any) -> Any:
        """Return the value, inside the object that a TrainingJob has it in."""
        return {self.inside: value} if self.inside and not isinstance(value, dict) else value


def taken(part: str) -> tuple[str, ...]:
    """Return the keys of objects that hold a part's fields; halo_rft takes some of lora's."""
    return (part, "lora") if part == "rft" else (part,)


def place_of(part: str, attribute: str, place: tuple[str, ...]) -> Place | None:
    """Return where a key belongs, or None where no field is called so."""
    if attribute == "budget_h100_hours":
        return Place("spec", "budget", TrainingJobSpec, "h100Hours")
    if attribute == "parent":
        return Place("spec", "parent", TrainingJobSpec, "adapter")
    if part == "rft" and attribute in RFT_LORA:
        return Place("lora", alias_of(LoraSpec, attribute) or attribute, LoraSpec)
    if place == ("lora",) and part != "lora":
        return None
    if name := alias_of(PARTS[part], attribute):
        return Place(part, name, PARTS[part])
    if attribute in (*PARTS, "gpu", "base"):
        return None
    name = alias_of(TrainingJobSpec, attribute)
    return Place("spec", name, TrainingJobSpec) if name else None


def gpu_of(body: Object, where: str, notes: list[str]) -> Object:
    """Return the GPUs: a type alone, or an object; their number stands there, or beside it."""
    found = body.get("gpu")
    gpu: Object = {}
    if isinstance(found, str):
        gpu["type"] = found
    elif isinstance(found, dict) and set(found) <= {"type", "count"}:
        gpu |= found
    elif found is not None:
        raise CliError(f"{where}: gpu: found {found!r}; give a type, or an object of type and count")
    for key in ("gpus", "gpu_count"):
        if body.get(key) is not None:
            put(gpu, "count", body[key], f"{where}: {key}")
    if isinstance(gpu.get("type"), str):
        gpu["type"] = catalog_name(gpu["type"], f"{where}: gpu", notes)
    return gpu


def grpo_run(body: Object, where: str) -> tuple[Object, Object, list[str]]:
    """Take a body of start_grpo_run: its names are ours."""
    unknown: Object = {}
    notes: list[str] = []
    spec = fields(GrpoRunSpec, {k: v for k, v in body.items() if k != "suspend"}, unknown, (), False)
    if "suspend" in body:
        keep(unknown, ("suspend",), body["suspend"])
    if isinstance(spec.get("model"), str):
        spec["model"] = catalog_name(spec["model"], f"{where}: model", notes)
    for place in ("platformGpu", "autoAdopt"):
        part = spec.get(place)
        if isinstance(part, dict) and isinstance(part.get("gpuType"), str):
            part["gpuType"] = catalog_name(part["gpuType"], f"{where}: {place}.gpuType", notes)
    return spec, unknown, notes


def catalog_name(found: Any, path: str, notes: list[str]) -> Any:
    """Return the name of a catalog entry as Kubernetes writes names: the platform's own with small letters, without an owner."""
    if not isinstance(found, str) or re.fullmatch(DNS_NAME, found):
        return found
    name = found.rsplit("/", 1)[-1].lower().replace("_", "-")
    if not re.fullmatch(DNS_NAME, name):
        raise CliError(
            f"{path}: found {found!r}, which can't name an object of the catalog; use small letters, digits, - and ."
        )
    notes.append(f"{path.split(': ', 1)[-1]} {found} is written {name}, as the catalog's objects are")
    return name


def name_of(given: str | None, unknown: Object, where: str, notes: list[str]) -> str:
    """Return the object's name: as given, else the body's own, else that of its file."""
    if given is not None:
        if not re.fullmatch(DNS_NAME, given) or len(given) > 253:
            raise CliError(f"--name: found {given!r}; use small letters, digits, - and ., at most 253")
        return given
    own = unknown.get("name")
    found = own if isinstance(own, str) else Path(where).name.removesuffix(".json")
    legal = re.sub(r"[^a-z0-9.-]+", "-", found.lower())
    name = re.sub(r"-*\.[-.]*", ".", legal).strip("-.")[:253].strip("-.")
    if not name:
        raise CliError(f"{where}: found no name for the object; give one with --name")
    if own == name:
        del unknown["name"]
    else:
        notes.append(f"named {name}; --name gives another name")
    return name


def kind_of(value: Any) -> str:
    """Name a JSON value's type."""
    names: Mapping[type, str] = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "an object" if isinstance(value, dict) else "a number")


def write(found: Import, say: Callable[[str], None], note: Callable[[str], None]) -> int:
    """Print the object as YAML, and beside it what was noted."""
    for line in found.notes:
        note(line)
    say(yaml.safe_dump(found.body, sort_keys=False, allow_unicode=True, width=100).rstrip("\n"))
    return 0
