"""Dataset: a data set version, and what its inspection found."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from halo_api.base import ApiModel, Name, Sha256, ShortText, Text, Time, VolumeUri, at_creation, cel, mapped_list, rule
from halo_api.conditions import Condition
from halo_api.traffic import TrafficCounts


class DatasetSpec(ApiModel):
    """Where the rows lie and which bases' tokenizers count them. The source is immutable: new rows are a new Dataset."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            rule("self.kind == oldSelf.kind", "'is immutable: create a new Dataset for other rows'", ".kind"),
            rule("self.source == oldSelf.source", "'is immutable: create a new Dataset for other rows'", ".source"),
            rule(
                "has(self.environment) == has(oldSelf.environment)"
                " && (!has(self.environment) || self.environment == oldSelf.environment)",
                "'is immutable: create a new Dataset for another environment'",
                ".environment",
            ),
            at_creation(
                "self.kind == 'tasks' || !has(self.environment)",
                "'belongs to kind tasks, found kind ' + self.kind + '; remove it'",
                ".environment",
            ),
            rule(
                "oldSelf.baseModels.all(b, b in self.baseModels)",
                "'may only grow: runs may rely on what was counted; put the removed ones back'",
                ".baseModels",
            ),
        )
    )

    kind: Annotated[
        Literal["chat", "preference", "tasks", "traffic", "candidates"],
        Field(
            description="kind of rows, one JSON object a line: chat, a list of messages, or a step of an agent run (lora_trl sft); preference, a chosen and a rejected answer (dpo); tasks, of an environment (halo_rlvr, halo_rft); traffic and candidates, logged requests of GrpoRuns. Only chat, preference and tasks are inspected yet."
        ),
    ]
    source: Annotated[
        VolumeUri,
        Field(
            description="source is the JSONL file, written pvc://CLAIM/PATH, on a claim of this namespace.",
            examples=["pvc://halo-data/tickets.jsonl"],
        ),
    ]
    base_models: Annotated[
        list[Name],
        Field(
            min_length=1,
            max_length=8,
            description="baseModels are the bases whose tokenizer and chat template count the rows; may only grow.",
            examples=[["qwen3-8b"]],
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ]
    environment: Annotated[
        Name | None,
        Field(
            default=None,
            description="environment names the Environment of this namespace, a harness with its staging system, that tasks run in; required by recipe harness_v1.",
            examples=["returns-desk-2"],
        ),
    ]


class LongerThan(ApiModel):
    """How many rows are longer than a length."""

    tokens: Annotated[int, Field(description="tokens of that length.")]
    rows: Annotated[int, Field(description="rows that are longer.")]


class RowsOf(ApiModel):
    """How many tasks have a name."""

    name: Annotated[str, Field(max_length=63, description="name of the environment, or the tag.")]
    rows: Annotated[int, Field(description="rows that have it.")]


class Inspection(ApiModel):
    """What one base's tokenizer and template counted."""

    base_model: Annotated[Name, Field(description="baseModel whose tokenizer counted.")]
    revision: Annotated[ShortText, Field(description="revision of the base.")]
    sha256: Annotated[Sha256, Field(description="sha256 of the file that was read.")]
    rows: Annotated[int, Field(description="rows in the file.")]
    tokens: Annotated[
        int,
        Field(
            description="tokens of all rows; of a pair, both answers with their prompt; of a task, its opening prompt."
        ),
    ]
    trained_tokens: Annotated[
        int, Field(description="trainedTokens are those of the assistant's answers; of tasks, none.")
    ]
    longest_row: Annotated[
        int, Field(description="longestRow, in tokens; of a pair, the longer answer's; of a task, its opening prompt.")
    ]
    longer: Annotated[
        list[LongerThan],
        Field(
            max_length=32,
            description="longer: how many rows are longer than a power of two, or than the base's context.",
            json_schema_extra=mapped_list("tokens"),
        ),
    ] = Field(default_factory=list)
    environments: Annotated[
        list[RowsOf],
        Field(
            max_length=8,
            description="environments that the tasks run in (kind tasks).",
            json_schema_extra=mapped_list("name"),
        ),
    ] = Field(default_factory=list)
    tags: Annotated[
        list[RowsOf],
        Field(
            max_length=16,
            description="tags that most of the tasks have (kind tasks).",
            json_schema_extra=mapped_list("name"),
        ),
    ] = Field(default_factory=list)
    at: Annotated[Time, Field(description="at is when it was counted.")]


class DatasetStatus(ApiModel):
    """What inspection found; set by a pod that read the file, never by declaration."""

    observed_generation: Annotated[
        int | None,
        Field(default=None, description="observedGeneration is the generation that was looked at; -1 until then."),
    ]
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=16,
            description="conditions: Ready when every base has counted the rows; Stalled when the file can't be used.",
            json_schema_extra=mapped_list("type"),
        ),
    ] = Field(default_factory=list)
    sha256: Annotated[Sha256 | None, Field(default=None, description="sha256 of the file.")]
    rows: Annotated[int | None, Field(default=None, description="rows in the file.")]
    inspections: Annotated[
        list[Inspection],
        Field(max_length=8, description="inspections, one a base.", json_schema_extra=mapped_list("baseModel")),
    ] = Field(default_factory=list)
    traffic: Annotated[
        TrafficCounts | None,
        Field(
            default=None,
            description="traffic: what kinds traffic and candidates hold for GrpoRuns, by tag and criterion.",
        ),
    ]
    waiting: Annotated[
        Text | None, Field(default=None, description="waiting says in one line what the inspection waits for.")
    ]


class Dataset(ApiModel):
    """Dataset is one version of a data set: a file, its digest, and its rows and tokens as inspected."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-halo-crd": {
                "plural": "datasets",
                "shortNames": ["dset"],
                "scope": "Namespaced",
                "columns": [
                    ["Kind", "string", ".spec.kind", 0],
                    ["State", "string", '.status.conditions[?(@.type=="Ready")].reason', 0],
                    ["Rows", "integer", ".status.rows", 0],
                    ["Tokens", "string", ".status.inspections[*].tokens", 0],
                    ["Longest", "string", ".status.inspections[*].longestRow", 0],
                    ["Age", "date", ".metadata.creationTimestamp", 0],
                    ["SHA256", "string", ".status.sha256", 1],
                    ["Message", "string", '.status.conditions[?(@.type=="Ready")].message', 1],
                ],
            }
        }
    )

    spec: Annotated[DatasetSpec, Field(description="spec is where the rows lie.")]
    status: Annotated[DatasetStatus | None, Field(default=None, description="status is what inspection found.")]
