"""Criterion: what a rubric judge scores, and whether its scores agree with people's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from halo_api.amounts import Amount, UsdPerMillion
from halo_api.base import ApiModel, Name, ShortText, Text, Time, cel, mapped_list, rule
from halo_api.conditions import Condition
from halo_api.environment import SecretKey, Url


class JudgeEndpoint(ApiModel):
    """The model that judges, and what it costs."""

    url: Annotated[
        Url,
        Field(
            description="url of its OpenAI-compatible API: http(s)://HOST[:PORT][/PATH].",
            examples=["https://judge.example/v1"],
        ),
    ]
    model: Annotated[
        str,
        Field(
            min_length=1,
            max_length=253,
            pattern=r"^[A-Za-z0-9][-A-Za-z0-9._:/]*$",
            description="model that is asked, as the endpoint calls it; pin a version: another one needs calibrating again.",
            examples=["judge-large-2026-06"],
        ),
    ]
    key: Annotated[
        SecretKey | None, Field(default=None, description="key of the API, as a key of a Secret; unset: none is sent.")
    ]
    input_usd: Annotated[
        UsdPerMillion,
        Field(
            description="inputUsd is the price of a million prompt tokens, in USD with at most 6 decimals.",
            examples=[0.4],
        ),
    ]
    output_usd: Annotated[
        UsdPerMillion,
        Field(
            description="outputUsd is the price of a million answer tokens, in USD with at most 6 decimals.",
            examples=[1.6],
        ),
    ]
    max_tokens: Annotated[
        int,
        Field(ge=16, le=32768, description="maxTokens of one judgement, in tokens.", examples=[512]),
    ] = 1024


class Grades(ApiModel):
    """People's grades that the judge is held to."""

    dataset: Annotated[
        Name, Field(description="dataset of graded examples, a Dataset of this namespace.", examples=["support-grades"])
    ]
    min_agreement: Annotated[
        float,
        Field(
            ge=0.5,
            le=1,
            description="minAgreement: the share of examples on which judge and people must agree.",
            examples=[0.85],
        ),
    ] = 0.8


class CriterionSpec(ApiModel):
    """A rubric and its judge. What is judged never changes; other words need calibrating again."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            rule(
                "self.unit == oldSelf.unit",
                "'is immutable: found ' + self.unit + ' after ' + oldSelf.unit + '; create another Criterion instead'",
                ".unit",
            ),
        )
    )

    unit: Annotated[
        Literal["request", "trace"],
        Field(
            description="unit that is judged: request, one answer; or trace, a whole agentic episode. Immutable.",
            examples=["request"],
        ),
    ]
    rubric: Annotated[
        str,
        Field(
            min_length=10,
            max_length=32768,
            description="rubric that the judge is given: what a good one is, from 10 to 32768 characters.",
            examples=["The answer solves what was asked, in three sentences or fewer."],
        ),
    ]
    judge: Annotated[JudgeEndpoint, Field(description="judge that applies the rubric, with its price.")]
    grades: Annotated[
        Grades | None,
        Field(default=None, description="grades of people to calibrate against; without them it can't be a reward."),
    ]


class Calibration(ApiModel):
    """How the judge did on what people had graded."""

    examples: Annotated[int, Field(description="examples that both have graded.")]
    agreement: Annotated[Amount, Field(description="agreement: the share on which they agree, from 0 to 1.")]
    dataset_digest: Annotated[ShortText, Field(description="datasetDigest of the grades.")]
    newest_grade: Annotated[
        Time | None, Field(default=None, description="newestGrade is when people last graded an example.")
    ]
    tokens_in: Annotated[int, Field(description="tokensIn of a judgement, on average, in tokens; for the quote.")]
    tokens_out: Annotated[int, Field(description="tokensOut of a judgement, on average, in tokens; for the quote.")]
    usd: Annotated[Amount, Field(description="usd that the calibration cost.")]
    at: Annotated[Time, Field(description="at is when it ended.")]


class CriterionStatus(ApiModel):
    """What calibration found; set by judgements that were made, never by declaration."""

    observed_generation: Annotated[
        int | None,
        Field(default=None, description="observedGeneration is the generation that was looked at; -1 until then."),
    ]
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=16,
            description="conditions: Calibrated when its judge agrees with people; Drifted when it no longer does; Ready "
            "when it can be a reward.",
            json_schema_extra=mapped_list("type"),
        ),
    ] = Field(default_factory=list)
    calibration: Annotated[Calibration | None, Field(default=None, description="calibration as it was last measured.")]
    waiting: Annotated[
        Text | None, Field(default=None, description="waiting says in one line what the calibration waits for.")
    ]


class Criterion(ApiModel):
    """Criterion is a rubric judge's criterion: calibrated against people's grades, it can be a run's reward."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-halo-crd": {
                "plural": "criteria",
                "shortNames": ["crit"],
                # Nobody writes its status yet: a default that says so would keep GitOps tools waiting for ever.
                "reconciled": False,
                "scope": "Namespaced",
                "columns": [
                    ["Unit", "string", ".spec.unit", 0],
                    ["Judge", "string", ".spec.judge.model", 0],
                    ["Calibrated", "string", '.status.conditions[?(@.type=="Calibrated")].status', 0],
                    ["Agreement", "string", ".status.calibration.agreement", 0],
                    ["Drifted", "string", '.status.conditions[?(@.type=="Drifted")].status', 0],
                    ["Age", "date", ".metadata.creationTimestamp", 0],
                    ["In$", "number", ".spec.judge.inputUsd", 1],
                    ["Out$", "number", ".spec.judge.outputUsd", 1],
                    ["Message", "string", '.status.conditions[?(@.type=="Calibrated")].message', 1],
                ],
            }
        }
    )

    spec: Annotated[CriterionSpec, Field(description="spec is the rubric and its judge.")]
    status: Annotated[CriterionStatus | None, Field(default=None, description="status is what calibration found.")]
