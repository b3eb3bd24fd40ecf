"""Objective: the loss of a recipe, with each number that its formula has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from halo_api.base import ApiModel, cel, rule


class DynamicSampling(ApiModel):
    """Groups without a difference teach nothing: sample others in their place."""

    enabled: Annotated[
        bool, Field(description="enabled true samples another task for each group of equal rewards (DAPO).")
    ]
    max_rounds: Annotated[
        int,
        Field(
            ge=1,
            le=64,
            description="maxRounds of sampling for one step, the first included; then the step trains on what there is.",
            examples=[4],
        ),
    ]


class Objective(ApiModel):
    """The loss, with each number that its formula has."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            rule(
                "self.name == 'CISPO' ? has(self.ratioFloor) && has(self.ratioCap) && !has(self.clipLow) && "
                "!has(self.clipHigh) : has(self.clipLow) && has(self.clipHigh) && !has(self.ratioFloor) && "
                "!has(self.ratioCap)",
                "'found ' + self.name + ': CISPO has ratioFloor and ratioCap, every other objective clipLow and clipHigh'",
            )
        )
    )

    name: Annotated[
        Literal["GRPO", "DAPO", "CISPO", "GSPO"],
        Field(description="name: GRPO (arXiv 2402.03300), DAPO (2503.14476), CISPO (2506.13585) or GSPO (2507.18071)."),
    ]
    ratio: Annotated[
        Literal["token", "sequence"],
        Field(description="ratio of new to old probability: of each token, or of the whole answer (GSPO)."),
    ]
    clip_low: Annotated[
        float | None,
        Field(default=None, gt=0, le=1, description="clipLow: the ratio is clipped below 1 - clipLow.", examples=[0.2]),
    ]
    clip_high: Annotated[
        float | None,
        Field(
            default=None,
            gt=0,
            le=100,
            description="clipHigh: the ratio is clipped above 1 + clipHigh.",
            examples=[0.28],
        ),
    ]
    ratio_floor: Annotated[
        float | None,
        Field(
            default=None,
            ge=0,
            lt=1,
            description="ratioFloor is CISPO's lowest weight itself, not an offset from 1.",
            examples=[0],
        ),
    ]
    ratio_cap: Annotated[
        float | None,
        Field(
            default=None,
            gt=1,
            le=100,
            description="ratioCap is CISPO's highest weight itself, not an offset from 1.",
            examples=[5],
        ),
    ]
    kl: Annotated[
        float,
        Field(
            ge=0,
            le=10,
            description="kl is the weight of the k3 estimate of KL to the reference (the base, or the parent adapter); 0 "
            "for none.",
            examples=[0],
        ),
    ]
    advantage_scale: Annotated[
        Literal["group-std", "none"],
        Field(
            description="advantageScale divides reward minus the group's mean by the group's standard deviation, or by "
            "nothing."
        ),
    ]
    advantage_std_floor: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="advantageStdFloor is the least standard deviation divided by; a group below it is equal: its "
            "advantages are 0.",
            examples=[0.001],
        ),
    ]
    normalisation: Annotated[
        Literal["sequence", "batch-tokens", "answer"],
        Field(
            description="normalisation of the loss: sequence averages each row over its trained tokens, then rows; "
            "batch-tokens divides by the trained tokens of the whole optimizer batch; answer averages answers (GSPO)."
        ),
    ]
    old_log_probs: Annotated[
        Literal["rollout", "recomputed"],
        Field(
            description="oldLogProbs: the rollout server's, or recomputed by the trainer before the first update of a "
            "round."
        ),
    ]
    importance_cap: Annotated[
        float | None,
        Field(
            default=None,
            ge=1,
            le=100,
            description="importanceCap truncates the token weight old / rollout probability (TIS). Unset: no "
            "weight, as oldLogProbs rollout needs none.",
            examples=[2],
        ),
    ]
    dynamic_sampling: Annotated[DynamicSampling, Field(description="dynamicSampling replaces groups of equal rewards.")]
    truncated_answers: Annotated[
        Literal["train", "mask"],
        Field(
            description="truncatedAnswers that reached a token limit: train with the reward they got, or mask (trained "
            "by nothing)."
        ),
    ]
