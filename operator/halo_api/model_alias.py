"""ModelAlias: a served name, what stands behind it, and the canary that a GrpoRun may put there."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from halo_api.base import ApiModel, Name, ShortText, Text, Time, cel, mapped_list, rule
from halo_api.conditions import Condition
from halo_api.environment import Url

# What a GrpoRun's autoAdopt.aliasName may hold.
ALIAS_NAME_LENGTH = 120


class Canaries(ApiModel):
    """What a run's autoAdopt may do with the name."""

    allowed: Annotated[
        bool, Field(description="allowed false refuses a run that would put a canary on this name.", examples=[True])
    ] = True
    max_percent: Annotated[
        int,
        Field(
            ge=1,
            le=50,
            description="maxPercent of the traffic that a canary may get, whatever the run asks.",
            examples=[20],
        ),
    ] = 50


class ModelAliasSpec(ApiModel):
    """What the name serves until a canary is promoted."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            rule(
                "has(self.baseModel) != has(self.endpoint)",
                "has(self.endpoint) ? 'found baseModel ' + self.baseModel + ' and an endpoint; keep one of them' : "
                "'found neither baseModel nor endpoint; name what the alias serves with one of them'",
            ),
            rule(
                "!has(self.adapter) || has(self.baseModel)",
                "'found ' + self.adapter + ', and an adapter is served on a base; name it in spec.baseModel'",
                ".adapter",
            ),
        )
    )

    base_model: Annotated[
        Name | None,
        Field(default=None, description="baseModel that is served, a key of the catalog.", examples=["qwen3-8b"]),
    ]
    adapter: Annotated[
        Name | None,
        Field(
            default=None,
            description="adapter that is served on it, an Adapter of this namespace; unset: the base alone.",
            examples=["support-sft"],
        ),
    ]
    endpoint: Annotated[
        Url | None,
        Field(
            default=None,
            description="endpoint that serves the name already, OpenAI-compatible: http(s)://HOST[:PORT][/PATH].",
            examples=["https://models.example/v1"],
        ),
    ]
    canaries: Annotated[Canaries, Field(description="canaries that runs may put on the name.")] = Field(
        default_factory=Canaries
    )


class Served(ApiModel):
    """What the name leads to."""

    base_model: Annotated[Name | None, Field(default=None, description="baseModel that is served.")]
    adapter: Annotated[Name | None, Field(default=None, description="adapter that is served on it.")]
    endpoint: Annotated[Url, Field(description="endpoint that answers.")]
    since: Annotated[Time, Field(description="since when it is served.")]


class Canary(ApiModel):
    """A newer adapter that gets a part of the traffic."""

    run: Annotated[Name, Field(description="run is the GrpoRun whose adapter it is.")]
    adapter: Annotated[Name, Field(description="adapter that is tried.")]
    endpoint: Annotated[Url, Field(description="endpoint that answers its part.")]
    percent: Annotated[int, Field(ge=0, le=100, description="percent of the traffic that it gets.")]
    state: Annotated[
        Literal["Running", "Promoted", "RolledBack"],
        Field(description="state of the canary: Running, Promoted or RolledBack by the online gate."),
    ]
    since: Annotated[Time, Field(description="since when it has been in that state.")]
    message: Annotated[ShortText, Field(description="message says why, in a sentence.")]


class ModelAliasStatus(ApiModel):
    """What the name leads to now."""

    observed_generation: Annotated[
        int | None,
        Field(default=None, description="observedGeneration is the generation that was looked at; -1 until then."),
    ]
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=16,
            description="conditions: Ready when the name answers.",
            json_schema_extra=mapped_list("type"),
        ),
    ] = Field(default_factory=list)
    serving: Annotated[Served | None, Field(default=None, description="serving is what the name leads to.")]
    canary: Annotated[Canary | None, Field(default=None, description="canary that was tried last.")]
    waiting: Annotated[
        Text | None, Field(default=None, description="waiting says in one line what the name waits for.")
    ]


class ModelAlias(ApiModel):
    """ModelAlias is a served name; a GrpoRun with autoAdopt puts its canary there."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            rule(
                f"self.metadata.name.size() <= {ALIAS_NAME_LENGTH}",
                f"'metadata.name: found %d characters; at most {ALIAS_NAME_LENGTH} fit what runs and clients call it'"
                ".format([self.metadata.name.size()])",
            )
        )
        | {
            "x-halo-crd": {
                "plural": "modelaliases",
                "shortNames": [],
                # Nobody writes its status yet: a default that says so would keep GitOps tools waiting for ever.
                "reconciled": False,
                "scope": "Namespaced",
                "columns": [
                    ["Base", "string", ".spec.baseModel", 0],
                    ["Adapter", "string", ".status.serving.adapter", 0],
                    ["Canary", "string", ".status.canary.adapter", 0],
                    ["Percent", "integer", ".status.canary.percent", 0],
                    ["Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0],
                    ["Age", "date", ".metadata.creationTimestamp", 0],
                    ["Endpoint", "string", ".status.serving.endpoint", 1],
                    ["Gate", "string", ".status.canary.state", 1],
                    ["Message", "string", '.status.conditions[?(@.type=="Ready")].message', 1],
                ],
            }
        }
    )

    spec: Annotated[ModelAliasSpec, Field(description="spec is what the name serves until a canary is promoted.")]
    status: Annotated[ModelAliasStatus | None, Field(default=None, description="status is what the name leads to now.")]
