"""The frozen recipes: one YAML file of settings each, read once; `recipes.lock` holds their digests for good.

A released file never changes: another behaviour is another name. `retired.yaml` names those that take no new jobs, with
the one to use instead; the file of a retired recipe stays, since runs of it may still be resumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType

import yaml

from halo_api.recipe import RecipeSpec, settings_of
from halo_operator.plan.world import RecipeEntry

LOCK = "recipes.lock"
RETIRED = "retired.yaml"


def contents() -> dict[str, bytes]:
    """Return the files of recipes as they were released, by the recipe's name."""
    found = (item for item in files(__package__).iterdir() if item.name.endswith(".yaml") and item.name != RETIRED)
    return {item.name.removesuffix(".yaml"): item.read_bytes() for item in sorted(found, key=lambda i: i.name)}


def digest_of(content: bytes) -> str:
    """Return the digest that a run freezes."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def load() -> Mapping[str, RecipeEntry]:
    """Return every recipe under its name."""
    retired: dict[str, str] = yaml.load((files(__package__) / RETIRED).read_bytes(), yaml.CSafeLoader)
    found = {}
    for name, content in contents().items():
        settings = settings_of(content).to_json()
        digest = digest_of(content)
        more = {"name": name, "digest": digest, "retired": name in retired, "successor": retired.get(name)}
        found[name] = RecipeEntry(name, digest, RecipeSpec.model_validate(settings | more), content.decode())
    return MappingProxyType(found)


RECIPES = load()
