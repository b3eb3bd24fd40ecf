"""What became of a GrpoRun: what admission froze and clamped, what it used of its two budgets, the verdict."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from halo_api.amounts import Amount
from halo_api.base import ApiModel, Sha256, ShortText, Text, Time, mapped_list
from halo_api.conditions import Condition
from halo_api.estimate import Estimate
from halo_api.run_status import AdapterRef, AttemptRecord, Checkpoint, Hold, Progress, ReceiptRef, Topology


class Clamp(ApiModel):
    """A number that was asked for and is not used as it is."""

    field: Annotated[ShortText, Field(description="field is the path in the spec.")]
    asked: Annotated[ShortText, Field(description="asked is what the spec says.")]
    used: Annotated[ShortText, Field(description="used is what the run uses.")]
    why: Annotated[ShortText, Field(description="why it is not used as asked.")]


class Commitment(ApiModel):
    """The most that the run can cost; the whole of it is held at the start."""

    usd: Annotated[Amount, Field(description="usd is rewardUsd and gpuUsd together.")]
    reward_usd: Annotated[Amount, Field(description="rewardUsd is the cap on judge spend, in USD.")]
    gpu_usd: Annotated[
        Amount, Field(description="gpuUsd is the GPU hours at the frozen rate, in USD; 0 on your own compute.")
    ]
    usd_per_gpu_hour: Annotated[
        Amount | None,
        Field(default=None, description="usdPerGpuHour is the frozen price of one GPU hour, markup included, in USD."),
    ]
    basis: Annotated[
        Literal["platformGpu", "autoProvision", "byo"],
        Field(description="basis says which GPUs are meant: priced ones, a ceiling for provisioned ones, or your own."),
    ]


class FrozenGrpo(ApiModel):
    """What the run uses: every default resolved, every number inside its bounds. The spec stays as it was written."""

    max_steps: Annotated[int, Field(description="maxSteps is the number of training steps.")]
    group_size: Annotated[int, Field(description="groupSize is the number of answers per prompt.")]
    prompt_count: Annotated[int, Field(description="promptCount is the number of training prompts.")]
    holdout_count: Annotated[int, Field(description="holdoutCount is the number of prompts of the bake-off.")]
    max_completion_tokens: Annotated[int, Field(description="maxCompletionTokens is the limit of one rollout.")]
    qlora: Annotated[bool, Field(description="qlora says whether the base is held in 4 bits.")]
    use_vllm: Annotated[bool, Field(description="useVllm says whether a vLLM server samples.")]
    vllm_gpu_memory_utilization: Annotated[
        float | None, Field(default=None, description="vllmGpuMemoryUtilization of that server; absent without one.")
    ]
    use_candidate_queue: Annotated[
        bool,
        Field(description="useCandidateQueue says whether candidates are trained on; false where it has no effect."),
    ]
    curriculum_mix_ratio: Annotated[
        float | None,
        Field(default=None, description="curriculumMixRatio of a candidate run; absent where it has no effect."),
    ]
    params_b: Annotated[
        float | None, Field(default=None, description="paramsB as given; absent where the catalog's is used.")
    ]
    gpu_count: Annotated[int | None, Field(default=None, description="gpuCount of platformGpu; absent without it.")]
    canary_percent: Annotated[
        int | None, Field(default=None, description="canaryPercent of autoAdopt; absent without it.")
    ]
    episode_steps: Annotated[
        int | None,
        Field(default=None, description="episodeSteps is environment.maxSteps; absent without an environment."),
    ]
    allow_side_effects: Annotated[
        bool, Field(description="allowSideEffects says whether tools that are not declared read-only may be called.")
    ]
    clamped: Annotated[
        list[Clamp],
        Field(
            max_length=32,
            description="clamped lists each field of the spec that is not used as it was asked.",
            json_schema_extra=mapped_list("field"),
        ),
    ] = Field(default_factory=list)
    commitment: Annotated[
        Commitment | None,
        Field(default=None, description="commitment is the most that the run can cost; absent until it is priced."),
    ]


class GrpoUsage(ApiModel):
    """What was used of the two budgets."""

    reward_usd: Annotated[Amount, Field(description="rewardUsd is what judges cost so far, in USD.")]
    gpu_hours: Annotated[Amount, Field(description="gpuHours is the GPU time so far, in hours summed over all GPUs.")]
    h100_hours: Annotated[
        Amount | None,
        Field(alias="h100Hours", default=None, description="h100Hours: gpuHours x the class's h100Equivalent."),
    ]
    gpu_seconds: Annotated[
        dict[str, Amount],
        Field(max_length=8, description="gpuSeconds by role: trainer, which serves its rollouts too."),
    ] = Field(default_factory=dict)
    usd: Annotated[Amount | None, Field(default=None, description="usd is what both cost so far.")]
    since: Annotated[Time | None, Field(default=None, description="since is when GPU time began to count.")]


class Verdict(ApiModel):
    """What the bake-off found: base against trained on the holdout, judged blind and in both orders."""

    result: Annotated[
        Literal["improved", "inconclusive", "regressed"],
        Field(description="result says whether the trained model is better than its base."),
    ]
    claim: Annotated[bool, Field(description="claim is false with a holdout of less than 50 prompts.")]
    win_rate: Annotated[float, Field(description="winRate of the trained model, ties counted half.")]
    low: Annotated[float, Field(description="low is the lower end of the win rate's confidence interval.")]
    high: Annotated[float, Field(description="high is its upper end.")]
    prompts: Annotated[int, Field(description="prompts that were judged.")]
    at: Annotated[Time, Field(description="at is when the bake-off ended.")]


class GrpoRunStatus(ApiModel):
    """What became of the run; conditions are the contract, there is no phase."""

    observed_generation: Annotated[
        int | None,
        Field(
            default=None,
            description="observedGeneration is the generation that the rest of the status is about; -1 until the operator has looked.",
        ),
    ]
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=16,
            description="conditions: Accepted, Scheduled, Running, Published, Suspended, the terminal Complete and Failed, and Ready, Reconciling, Stalled for GitOps tools.",
            json_schema_extra=mapped_list("type"),
        ),
    ] = Field(default_factory=list)
    attempt: Annotated[int | None, Field(default=None, description="attempt is the current one, from 1.")]
    failures: Annotated[
        int | None, Field(default=None, description="failures counts the attempts that infrastructure ended.")
    ]
    attempts: Annotated[list[AttemptRecord], Field(max_length=10, description="attempts are the last 10.")] = Field(
        default_factory=list
    )
    frozen: Annotated[
        FrozenGrpo | None, Field(default=None, description="frozen is what the run uses, defaults and clamps resolved.")
    ]
    estimate: Annotated[
        Estimate | None, Field(default=None, description="estimate is what the run was quoted at admission.")
    ]
    hold: Annotated[Hold | None, Field(default=None, description="hold is what is set aside for the run.")]
    recipe_digest: Annotated[
        Sha256 | None, Field(default=None, description="recipeDigest is the SHA-256 of the recipe's file.")
    ]
    topology: Annotated[Topology | None, Field(default=None, description="topology is how the GPUs are laid out.")]
    usage: Annotated[GrpoUsage | None, Field(default=None, description="usage of the two budgets.")]
    progress: Annotated[Progress | None, Field(default=None, description="progress as last reported.")]
    checkpoints: Annotated[list[Checkpoint], Field(max_length=10, description="checkpoints are the last 10.")] = Field(
        default_factory=list
    )
    verdict: Annotated[Verdict | None, Field(default=None, description="verdict of the bake-off.")]
    adapter: Annotated[AdapterRef | None, Field(default=None, description="adapter that the run published.")]
    receipt: Annotated[
        ReceiptRef | None,
        Field(default=None, description="receipt is the signed record of how the adapter came to be."),
    ]
    waiting: Annotated[Text | None, Field(default=None, description="waiting says in one line what the run waits for.")]
