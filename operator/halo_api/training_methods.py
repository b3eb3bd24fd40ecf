"""What each kind of training is told: spec.lora, spec.rlvr and spec.rft of a TrainingJob."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from halo_api.base import ApiModel, Name, at_creation, cel
from halo_api.recipe_names import DEFAULT, RECIPES, RETIRED

LINEAR_LAYERS = "all-linear"


def recipe_rules() -> dict[str, object]:
    """Refuse a new run of a retired or unknown recipe; a stored one stays."""
    retired = "{" + ", ".join(f"'{old}': '{new}'" for old, new in RETIRED.items()) + "}"
    known = ", ".join(f"'{name}'" for name in (*RECIPES, *RETIRED))
    return cel(
        at_creation(
            f"!(self in {retired})",
            f"'found %s, which is retired and trains no new run; use %s'.format([self, {retired}[self]])",
        ),
        at_creation(
            f"self in [{known}]",
            f"'found %s, which is no recipe; use one of {', '.join(RECIPES)}'.format([self])",
        ),
    )


Recipe = Annotated[str, Field(min_length=1, max_length=63)]
TargetModule = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.\-]+$")]


class LoraSpec(ApiModel):
    """LoRA fine-tuning on a data set; what is unset is resolved at admission and shown in status.frozen.lora.

    No field has a default in the schema: base halo_rft takes three of them, and a default would look as if it was set.
    """

    trainer: Annotated[
        Literal["Halo", "TRL"] | None,
        Field(default=None, description="trainer trains the run; unset: the base model's defaultTrainer."),
    ]
    method: Annotated[
        Literal["sft", "dpo"] | None,
        Field(
            default=None,
            description="method is sft, supervised fine-tuning, or dpo, preference optimisation (trainer TRL only); unset: sft.",
        ),
    ]
    dataset: Annotated[
        Name | None,
        Field(
            default=None,
            description="dataset names a Dataset of this namespace, of kind chat for sft and preference for dpo; required by base lora_trl.",
            examples=["tickets"],
        ),
    ]
    rank: Annotated[
        int | None,
        Field(
            default=None,
            ge=1,
            le=256,
            description="rank is the LoRA rank; unset: the parent's, else 16.",
            examples=[16],
        ),
    ]
    alpha: Annotated[
        float | None,
        Field(
            default=None,
            gt=0,
            le=4096,
            description="alpha scales the adapter by alpha/rank; unset: the parent's, else 32.",
            examples=[32],
        ),
    ]
    dropout: Annotated[
        float | None,
        Field(default=None, ge=0, lt=1, description="dropout is the LoRA dropout, a share; unset: 0.", examples=[0.05]),
    ]
    target_modules: Annotated[
        list[TargetModule] | None,
        Field(
            default=None,
            min_length=1,
            max_length=64,
            description="targetModules are the layers that get an adapter; unset: every linear layer but the output head.",
            examples=[["q_proj", "v_proj"]],
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ]
    learning_rate: Annotated[
        float | None,
        Field(
            default=None,
            gt=0,
            le=1,
            description="learningRate is the peak learning rate; unset: 2e-4 for sft and halo_rft, 5e-6 for dpo.",
            examples=[0.0002],
        ),
    ]
    warmup_steps: Annotated[
        int | None,
        Field(
            default=None,
            ge=0,
            le=1000000,
            description="warmupSteps is the number of steps over which the learning rate rises to its peak, at most spec.steps; unset: 0.",
            examples=[10],
        ),
    ]
    schedule: Annotated[
        Literal["cosine", "linear", "constant"] | None,
        Field(
            default=None,
            description="schedule is how the learning rate falls after the warm-up: cosine or linear to zero at the last step, or constant; unset: cosine.",
        ),
    ]
    weight_decay: Annotated[
        float | None,
        Field(
            default=None,
            ge=0,
            le=1,
            description="weightDecay is AdamW's decoupled weight decay; unset: 0.",
            examples=[0.01],
        ),
    ]
    max_grad_norm: Annotated[
        float | None,
        Field(
            default=None,
            gt=0,
            le=1000,
            description="maxGradNorm clips the gradient's global L2 norm of each step; unset: 1.",
            examples=[1],
        ),
    ]
    beta: Annotated[
        float | None,
        Field(
            default=None,
            gt=0,
            le=10,
            description="beta is how closely dpo keeps to its reference model; unset: 0.1; refused with sft.",
            examples=[0.1],
        ),
    ]
    max_length: Annotated[
        int | None,
        Field(
            default=None,
            ge=8,
            le=16777216,
            description="maxLength is the longest row, in tokens; unset: the base's context length.",
            examples=[8192],
        ),
    ]
    overlength: Annotated[
        Literal["refuse", "drop", "truncate"] | None,
        Field(
            default=None,
            description="overlength says what happens to longer rows: refuse the run, drop the rows, or truncate them at the end; unset: refuse.",
        ),
    ]
    bundle: Annotated[
        int | None,
        Field(
            default=None,
            ge=1,
            le=1024,
            description="bundle trains up to that many consecutive steps of one agent run as one row, each answer as its own row would be (sft with Halo only); batch counts it as one row, so it holds more answers. Unset: one step a row.",
            examples=[8],
        ),
    ]
    micro_batch: Annotated[
        int | None,
        Field(
            default=None,
            ge=1,
            le=4096,
            description="microBatch is the number of rows per forward pass, or with packing of tokens that as many of the longest rows have; unset: 1. It changes speed and memory, never the gradient.",
            examples=[4],
        ),
    ]
    packing: Annotated[
        bool | None,
        Field(
            default=None,
            description="packing puts whole rows side by side into a forward pass, where none sees another, instead of padding them to the longest; unset: true for sft with trainer Halo, the only one that it concerns. It changes speed, never the gradient.",
            examples=[False],
        ),
    ]


class Phase(ApiModel):
    """A public environment that is trained before the task (warmup) or after it (retention)."""

    env_revision: Annotated[
        Name,
        Field(
            description="envRevision names a public Environment: one of the operator's own namespace, qualified for training.",
            examples=["openenv-echo-v1"],
        ),
    ]
    steps: Annotated[
        int,
        Field(
            ge=1,
            le=1000000,
            description="steps of spec.steps that the phase may take: for warmup at most 20 % of them, for retention at most 10 % of those after the warm-up.",
            examples=[20],
        ),
    ]


class Judge(ApiModel):
    """A calibrated rubric judge whose reward stands beside the task's checks."""

    criterion: Annotated[
        Name,
        Field(description="criterion names a calibrated Criterion of this namespace.", examples=["helpful-answer"]),
    ]
    weight: Annotated[
        float,
        Field(
            gt=0,
            le=10,
            description="weight of the judge's reward, where the task's checks weigh 1.",
            examples=[0.5],
        ),
    ]


class RlvrSpec(ApiModel):
    """Online RL with verifiable rewards: a frozen recipe decides all that trains; the rest says on what and where."""

    recipe: Annotated[
        Recipe,
        Field(
            description="recipe names a frozen recipe (kubectl get recipes): environment, rewards, sampling, objective, server.",
            examples=["sql_v3"],
            json_schema_extra=recipe_rules(),
        ),
    ] = DEFAULT
    rollout_gpus: Annotated[
        int | None,
        Field(
            default=None,
            ge=1,
            le=1023,
            description="rolloutGpus is how many of gpu.count, the last ones, serve rollouts; the others train. Unset: the base's gpus if it needs more than one, else the Workspace's pipeline default, else 1.",
            examples=[2],
        ),
    ]
    rollout_replicas: Annotated[
        int,
        Field(
            ge=1,
            le=512,
            description="rolloutReplicas is how many rollout servers share those GPUs equally; it divides rolloutGpus, and a recipe that collects rollouts while it trains needs 2.",
            examples=[2],
        ),
    ] = 1
    dataset: Annotated[
        Name | None,
        Field(
            default=None,
            description="dataset names a Dataset of this namespace, of kind tasks; required, but refused with a bridged recipe.",
            examples=["sales-questions"],
        ),
    ]
    env_revision: Annotated[
        Name | None,
        Field(
            default=None,
            description="envRevision names a qualified Environment of this namespace, whose train split is used; required by the bridged recipes and refused elsewhere.",
            examples=["returns-desk-v2"],
        ),
    ]
    warmup: Annotated[
        Phase | None,
        Field(default=None, description="warmup is trained before the task; it also ends at 20 % of the budget."),
    ]
    retention: Annotated[
        Phase | None,
        Field(
            default=None,
            description="retention is trained after the task; it also ends at 10 % of the tokens that task and retention train.",
        ),
    ]
    judge: Annotated[
        Judge | None,
        Field(
            default=None,
            description="judge adds a rubric judge's reward, whose spend is in the quote; refused with a code recipe.",
        ),
    ]


class RftSpec(ApiModel):
    """Rejection-sampling fine-tuning: sample, keep what the verifier passed, train a LoRA on it."""

    recipe: Annotated[
        Recipe,
        Field(
            description="recipe names the frozen recipe whose environment verifies the samples; of the bridged ones only bridged_v1.",
            examples=["sql_v3"],
            json_schema_extra=recipe_rules(),
        ),
    ] = DEFAULT
    samples: Annotated[
        int,
        Field(
            ge=1,
            le=256,
            description="samples of each task; up to 4 distinct ones that the verifier passed are kept.",
            examples=[8],
        ),
    ] = 8
    tasks: Annotated[
        int,
        Field(
            ge=1,
            le=1000000,
            description="tasks is how many tasks are sampled, the first of the dataset; all of them if it has fewer.",
            examples=[1024],
        ),
    ] = 1024
    dataset: Annotated[
        Name | None,
        Field(
            default=None,
            description="dataset names a Dataset of this namespace, of kind tasks; required, but refused with recipe bridged_v1.",
            examples=["sales-questions"],
        ),
    ]
    env_revision: Annotated[
        Name | None,
        Field(
            default=None,
            description="envRevision names a qualified Environment of this namespace, whose train split is sampled; required by recipe bridged_v1 and refused elsewhere.",
            examples=["returns-desk-v2"],
        ),
    ]
