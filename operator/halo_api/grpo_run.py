"""GrpoRun: budget-bounded GRPO of a fine-tunable model against calibrated judges, from logged traffic to a judged adapter.

Numbers that the platform clamps have no bounds here: GitOps would drift if a spec were changed, so the value that is used
stands in status.frozen, and a warning and an Event say what was clamped.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, JsonValue

from halo_api.amounts import Hours, Usd
from halo_api.base import ApiModel, Name, ShortText, at_creation, cel, rule
from halo_api.grpo_reward import Reward, Task, ToolEnvironment
from halo_api.grpo_status import GrpoRunStatus

# In the schema alone: after the check of its decimals, pydantic takes no other bound.
ABOVE_ZERO: dict[str, JsonValue] = {"exclusiveMinimum": 0}

Region = Annotated[str, Field(min_length=1, max_length=63)]


class PlatformGpu(ApiModel):
    """GPUs of the platform, billed at a price that is frozen at the start."""

    gpu_type: Annotated[
        Name, Field(description="gpuType names a GpuClass with a price (kubectl get gpuclasses). Example: h100")
    ]
    region: Annotated[
        Region, Field(description="region is where the GPUs are, and whose price holds. Example: eu-west")
    ]
    gpu_count: Annotated[
        int | None,
        Field(
            default=None,
            description="gpuCount is the number of GPUs; clamped to 1 to 8; unset: 1. It does not multiply gpuHourBudget. Example: 2",
        ),
    ]


class AutoAdopt(ApiModel):
    """What happens to an adapter whose verdict is `improved`."""

    alias_name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=120,
            description="aliasName names a ModelAlias of this namespace, which must exist; 1 to 120 characters. Example: support",
        ),
    ]
    canary_percent: Annotated[
        int | None,
        Field(
            default=None,
            ge=1,
            le=50,
            description="canaryPercent is the share of the alias's traffic that the canary gets, in percent, 1 to 50; unset: 10. Example: 5",
        ),
    ]
    gpu_type: Annotated[
        Name, Field(description="gpuType names the GpuClass of the endpoint that serves it. Example: h100")
    ]
    region: Annotated[Region, Field(description="region of that endpoint. Example: eu-west")]
    template_flavor: Annotated[
        ShortText | None,
        Field(
            default=None,
            description="templateFlavor picks a serving template; unset: the default one. Example: latency",
        ),
    ]


SPEC_RULES = (
    at_creation(
        "has(self.environment) || !has(self.reward.assertions) || self.reward.assertions.all(a, a.type != 'exec')",
        "'holds an assertion of type exec, found no spec.environment, without which nothing runs commands; add spec.environment or remove the assertion'",
        ".reward.assertions",
    ),
    at_creation(
        "has(self.environment) || !has(self.tasksInline)",
        "'belongs to an agentic run, found no spec.environment; add spec.environment or remove it'",
        ".tasksInline",
    ),
    at_creation(
        "has(self.environment) || !has(self.tasksFrom)",
        "'belongs to an agentic run, found no spec.environment; add spec.environment or remove it'",
        ".tasksFrom",
    ),
    at_creation(
        "!has(self.tasksInline) || !has(self.tasksFrom)",
        "'excludes spec.tasksInline, found both; keep one of them'",
        ".tasksFrom",
    ),
    at_creation(
        "!has(self.platformGpu) || !self.autoProvision",
        "'excludes spec.platformGpu, found both; keep one of them'",
        ".autoProvision",
    ),
)
MUTABLE = {"suspend"}


def frozen_field(name: str) -> dict[str, str]:
    """Build the rule that a field of a run is a record: neither changed, added nor removed after creation."""
    return rule(
        f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
        "'is immutable: a run is a record of what was asked; apply a new GrpoRun under another name'",
        f".{name}",
    )


class GrpoRunSpec(ApiModel):
    """What to train, on what, for which reward, inside which budgets. Everything but suspend is immutable."""

    model: Annotated[
        str,
        Field(
            min_length=1,
            max_length=253,
            description="model names the BaseModel to train, which must be fine-tunable and offer grpo (kubectl get basemodels). Example: qwen3-8b",
        ),
    ]
    reward: Annotated[
        Reward,
        Field(
            description="reward is what the policy is trained towards. Example: {mode: single, criterionId: helpful}"
        ),
    ]
    prompt_count: Annotated[
        int,
        Field(
            ge=10,
            description="promptCount is the number of prompts to train on, at least 10; clamped to at most 10000. The holdout comes on top. Example: 200",
        ),
    ]
    reward_budget_usd: Annotated[
        Usd,
        Field(
            json_schema_extra=ABOVE_ZERO,
            description="rewardBudgetUsd is the hard cap on judge spend, in USD, above 0 to 100000000 with at most 6 decimals; held on the wallet at the start. Example: 25",
        ),
    ]
    gpu_hour_budget: Annotated[
        Hours,
        Field(
            json_schema_extra=ABOVE_ZERO,
            description="gpuHourBudget is the hard cap on GPU time, in hours summed over all GPUs, above 0 to 10000000 with at most 3 decimals. Example: 12.5",
        ),
    ]
    qlora: Annotated[bool, Field(description="qlora trains on a base in 4 bits; default true. Example: false")] = True
    params_b: Annotated[
        float | None,
        Field(
            default=None,
            gt=0,
            description="paramsB is the number of parameters, in billions, above 0; clamped to at most 1000; unset: the catalog's. Example: 8",
        ),
    ]
    use_vllm: Annotated[
        bool | None,
        Field(
            default=None,
            description="useVllm samples with a vLLM server beside the trainer; unset: false; true in any case with spec.environment. Example: true",
        ),
    ]
    max_steps: Annotated[
        int | None,
        Field(
            default=None,
            description="maxSteps is the number of training steps; clamped to 1 to 5000; unset: 100. Example: 200",
        ),
    ]
    group_size: Annotated[
        int | None,
        Field(
            default=None,
            description="groupSize is the number of answers sampled for each prompt; clamped to 2 to 16; unset: 8. Example: 8",
        ),
    ]
    prompt_tag: Annotated[
        str | None,
        Field(
            default=None,
            min_length=1,
            max_length=256,
            description="promptTag draws prompts only from logged requests with this tag; unset: all successful traffic. Example: support",
        ),
    ]
    holdout_count: Annotated[
        float | None,
        Field(
            default=None,
            description="holdoutCount is the number of prompts kept for the bake-off; rounded, then clamped to 1 to 2000; unset: max(3, 20 % of promptCount, rounded up). Take 50 or more to claim a verdict. Example: 50",
        ),
    ]
    use_candidate_queue: Annotated[
        bool,
        Field(
            description="useCandidateQueue trains on the candidates of the reward's criterion instead of a sample; only with reward.mode single, else without effect; default false. Example: true"
        ),
    ] = False
    curriculum_mix_ratio: Annotated[
        float | None,
        Field(
            default=None,
            description="curriculumMixRatio is the part of a candidate run's training prompts that comes from regular traffic; clamped to 0 to 0.9; unset: 0. Example: 0.25",
        ),
    ]
    max_completion_tokens: Annotated[
        int | None,
        Field(
            default=None,
            description="maxCompletionTokens is how many tokens one rollout may generate; clamped to 256 to 32768; unset: 8192 with spec.environment, else 1024. Example: 2048",
        ),
    ]
    vllm_gpu_memory_utilization: Annotated[
        float | None,
        Field(
            default=None,
            description="vllmGpuMemoryUtilization is the part of a GPU's memory that the vLLM server takes; clamped to 0.05 to 0.9; unset: 0.3. Example: 0.4",
        ),
    ]
    environment: Annotated[
        ToolEnvironment | None,
        Field(
            default=None,
            description="environment makes the run agentic: episodes with tools, judged by criteria of unit trace. Example: {proxyBaseUrl: 'http://tools:8080/v1'}",
        ),
    ]
    tasks_inline: Annotated[
        list[Task] | None,
        Field(
            default=None,
            min_length=1,
            max_length=10000,
            description="tasksInline are the tasks of an agentic run, instead of logged prompts; at most 10000 and 96 KiB of JSON, beyond that see tasksFrom. Example: [{goal: ['Book a table']}]",
        ),
    ]
    tasks_from: Annotated[
        Name | None,
        Field(
            default=None,
            description="tasksFrom names a Dataset of kind tasks with the tasks of an agentic run; excludes tasksInline. Example: booking-tasks",
        ),
    ]
    allow_side_effects: Annotated[
        bool,
        Field(
            description="allowSideEffects permits an agentic run to call tools that are not declared read-only; default false. Example: true"
        ),
    ] = False
    platform_gpu: Annotated[
        PlatformGpu | None,
        Field(
            default=None,
            description="platformGpu are billed GPUs of the platform; unset: compute of your own (a GpuClass with byo true), which is not billed. Example: {gpuType: h100, region: eu-west}",
        ),
    ]
    auto_provision: Annotated[
        bool,
        Field(
            description="autoProvision lets the platform size and provision the GPUs; holds the highest active rate x 8 GPUs x gpuHourBudget; excludes platformGpu; default false. Example: true"
        ),
    ] = False
    auto_adopt: Annotated[
        AutoAdopt | None,
        Field(
            default=None,
            description="autoAdopt deploys an adapter whose verdict is improved, as a canary of an alias; unset: nothing is deployed. Example: {aliasName: support, gpuType: h100, region: eu-west}",
        ),
    ]
    suspend: Annotated[
        bool,
        Field(
            description="suspend true stops the run's pods and keeps its last checkpoint; false goes on from there; default false. Example: true"
        ),
    ] = False


GrpoRunSpec.model_config["json_schema_extra"] = cel(
    *SPEC_RULES,
    *(frozen_field(field.alias or name) for name, field in GrpoRunSpec.model_fields.items() if name not in MUTABLE),
)
GrpoRunSpec.model_rebuild(force=True)


class GrpoRun(ApiModel):
    """GrpoRun is one GRPO training run against calibrated judges, held inside two budgets, ending in an Adapter and a verdict."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-halo-crd": {
                "plural": "grporuns",
                "shortNames": ["grpo"],
                "scope": "Namespaced",
                "columns": [
                    ["Model", "string", ".spec.model", 0],
                    ["Reward", "string", ".spec.reward.mode", 0],
                    ["State", "string", '.status.conditions[?(@.type=="Ready")].reason', 0],
                    ["Step", "integer", ".status.progress.step", 0],
                    ["Reward$", "string", ".status.usage.rewardUsd", 0],
                    ["GPU-H", "string", ".status.usage.gpuHours", 0],
                    ["Verdict", "string", ".status.verdict.result", 0],
                    ["Adapter", "string", ".status.adapter.name", 0],
                    ["Age", "date", ".metadata.creationTimestamp", 0],
                    ["Committed$", "string", ".status.frozen.commitment.usd", 1],
                    ["Prompts", "integer", ".status.frozen.promptCount", 1],
                    ["Holdout", "integer", ".status.frozen.holdoutCount", 1],
                    ["Waiting", "string", ".status.waiting", 1],
                ],
            }
        }
    )

    spec: Annotated[
        GrpoRunSpec, Field(description="spec is what to train, on what, for which reward, inside which budgets.")
    ]
    status: Annotated[
        GrpoRunStatus | None,
        Field(default=None, description="status is what became of it; only the operator writes it."),
    ]
