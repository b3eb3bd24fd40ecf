"""Recipe: settings frozen under a name that never changes, as an object, so that people can read what their runs will do.

The operator ships one file of `RecipeSettings` a recipe and keeps the `Recipe` objects equal to them.
"""

from __future__ import annotations

from typing import Annotated

import yaml
from pydantic import ConfigDict, Field

from halo_api.base import ApiModel, Sha256, cel, rule
from halo_api.recipe_settings import RecipeName, RecipeSettings

SETTINGS = tuple(RecipeSettings.model_fields[name].alias or name for name in RecipeSettings.model_fields)


def settings_of(text: str | bytes) -> RecipeSettings:
    """Return the settings that a released recipe's file says, as a run froze it; raises ValidationError."""
    return RecipeSettings.model_validate(yaml.load(text, yaml.CSafeLoader))


class RecipeSpec(RecipeSettings):
    """A released recipe: its settings and their digest never change; it can only be retired."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            rule(
                " && ".join(f"self.{name} == oldSelf.{name}" for name in ("name", *SETTINGS, "digest")),
                "'is immutable: a released recipe never changes; a new behaviour is a new name'",
            ),
            rule(
                "self.retired || !oldSelf.retired",
                "'found false, and the recipe is retired for good; release one under a new name instead'",
                ".retired",
            ),
            rule(
                "self.retired || !has(self.successor)",
                "'found ' + self.successor + ', and the recipe is not retired; leave it out or set retired'",
                ".successor",
            ),
        )
    )

    name: Annotated[
        RecipeName,
        Field(
            description="name as jobs write it; this object is called sql-v3, since objects have no underscores.",
            examples=["sql_v3"],
        ),
    ]
    digest: Annotated[
        Sha256,
        Field(
            description="digest is the SHA-256 of the released file; each run freezes it with its settings.",
            examples=["sha256:" + 64 * "0"],
        ),
    ]
    retired: Annotated[
        bool,
        Field(description="retired true refuses new jobs; old ones stay readable and resumable.", examples=[False]),
    ] = False
    successor: Annotated[
        RecipeName | None,
        Field(
            default=None,
            description="successor is the recipe to use instead of a retired one, where there is one.",
            examples=["sql_v3"],
        ),
    ]


class Recipe(ApiModel):
    """Recipe is a frozen training recipe, installed and kept by the operator: read it, name it in a job, never write it."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-halo-crd": {
                "plural": "recipes",
                "shortNames": [],
                "scope": "Cluster",
                "columns": [
                    ["Recipe", "string", ".spec.name", 0],
                    ["Environment", "string", ".spec.environment.name", 0],
                    ["Objective", "string", ".spec.objective.name", 0],
                    ["Rollouts", "string", ".spec.rollouts.mode", 0],
                    ["Updates", "integer", ".spec.rollouts.updatesPerRound", 0],
                    ["Rows", "string", ".spec.rows.layout", 0],
                    ["Retired", "boolean", ".spec.retired", 0],
                    ["Age", "date", ".metadata.creationTimestamp", 0],
                    ["Successor", "string", ".spec.successor", 1],
                    ["Digest", "string", ".spec.digest", 1],
                    ["Summary", "string", ".spec.summary", 1],
                ],
            }
        }
    )

    spec: Annotated[
        RecipeSpec, Field(description="spec is the recipe: its settings, digest and whether it is retired.")
    ]
