"""RecipeSettings: everything that decides how halo_rlvr and halo_rft train. No setting has a default: what is not written in a recipe's file is not one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from halo_api.base import ApiModel
from halo_api.recipe_objective import Objective

Sentence = Annotated[str, Field(min_length=1, max_length=1024)]
RecipeName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]+(_[a-z0-9]+)*$")]
Tokens = Annotated[int, Field(ge=1, le=16777216)]


class TaskEnvironment(ApiModel):
    """Where episodes run and how they are scored."""

    name: Annotated[
        Literal["sql", "support", "structured", "graded", "code_contests", "harness", "bridged"],
        Field(
            description="name of the task environment: one of the operator's own, harness (the customer's, live against "
            "its declared staging system) or bridged (the Environment that the run names in envRevision)."
        ),
    ]
    version: Annotated[
        int, Field(ge=1, le=1000, description="version of that environment and its verifier.", examples=[3])
    ]
    split: Annotated[Literal["train"], Field(description="split that episodes are drawn from: train.")]
    hidden_variants: Annotated[
        bool,
        Field(
            description="hiddenVariants true runs an answer against hidden variants of its task too, so that a "
            "hard-coded one fails."
        ),
    ]
    skip_orphan_foreign_keys: Annotated[
        bool,
        Field(
            description="skipOrphanForeignKeys true leaves a foreign key that names no parent key out of the hidden "
            "variants (sql)."
        ),
    ]
    extraction: Annotated[
        bool, Field(description="extraction true scores a structured answer with extraction semantics, field by field.")
    ]
    isolated_runtime: Annotated[
        bool, Field(description="isolatedRuntime true runs the model's programs in the cluster's isolated runtime.")
    ]
    unscored: Annotated[
        Literal["leave-out"],
        Field(
            description="unscored says what an episode counts that could not be scored, as a server or the environment "
            "failed or timed out: leave-out of its group, never a zero. A wrong or endless answer is scored."
        ),
    ]


class RewardSettings(ApiModel):
    """What an episode is worth."""

    name: Annotated[
        Literal["verifier", "strict-pass"],
        Field(
            description="name: verifier takes the verifier's score from 0 to 1; strict-pass 1 for a full pass, else 0."
        ),
    ]
    broken_check_penalty: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="brokenCheckPenalty is taken off when the episode's calls broke a check that held before: 0 for "
            "none, 0.5 in bridged_v5.",
            examples=[0.5],
        ),
    ]


class Rollouts(ApiModel):
    """How episodes are sampled."""

    mode: Annotated[
        Literal["sync", "async1"],
        Field(
            description="mode: sync samples with the weights of the step before; async1 samples a round while the step "
            "before it trains, at most one update behind (rolloutReplicas 2 or more)."
        ),
    ]
    updates_per_round: Annotated[
        int,
        Field(
            ge=1,
            le=16,
            description="updatesPerRound is how many optimizer updates train each round's rows, all of them each time; a "
            "step is one update, and saveSteps is a multiple of it.",
            examples=[2],
        ),
    ]
    min_replicas: Annotated[
        int,
        Field(
            ge=1,
            le=64,
            description="minReplicas is the least rolloutReplicas of a run: 1, or 2 for async1.",
            examples=[2],
        ),
    ]
    group_size: Annotated[
        int, Field(ge=2, le=1024, description="groupSize is how many episodes of one task are compared.", examples=[8])
    ]
    max_turns: Annotated[
        int | None,
        Field(
            default=None,
            ge=1,
            le=10000,
            description="maxTurns an episode may take; unset: the environment's own max_turns and the context bound it.",
            examples=[32],
        ),
    ]
    max_tokens_per_turn: Annotated[
        Tokens, Field(description="maxTokensPerTurn that one answer may have, in tokens.", examples=[4096])
    ]
    context_tokens: Annotated[
        Tokens | None,
        Field(
            default=None,
            description="contextTokens that an episode may fill, in tokens; unset: the base's context.",
            examples=[8192],
        ),
    ]
    temperature: Annotated[
        float,
        Field(
            gt=0, le=2, description="temperature of sampling; the trainer's log-probabilities use it too.", examples=[1]
        ),
    ]
    top_p: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="topP of sampling; 1 keeps every token, as exact log-probabilities need it.",
            examples=[1],
        ),
    ]
    top_k: Annotated[
        int, Field(ge=-1, le=1000000, description="topK of sampling; -1 keeps every token.", examples=[-1])
    ]
    min_p: Annotated[float, Field(ge=0, le=1, description="minP of sampling; 0 keeps every token.", examples=[0])]
    thinking: Annotated[
        Literal["base", "off"],
        Field(
            description="thinking that an unset spec.mode samples with: base, as the base's chat template has it, or off; "
            "off also refuses mode reasoning where reasoningAllowed is false."
        ),
    ]
    reasoning_allowed: Annotated[
        bool,
        Field(description="reasoningAllowed false refuses spec.mode reasoning: the recipe samples without thinking."),
    ]
    send_reasoning_back: Annotated[
        bool,
        Field(
            description="sendReasoningBack true keeps every turn's reasoning in the next turn's prompt, as the served "
            "thinking student sees it."
        ),
    ]


class Rows(ApiModel):
    """What one training row is."""

    layout: Annotated[
        Literal["turn", "trajectory"],
        Field(description="layout: a row per assistant turn, or one whole-trajectory row per episode."),
    ]
    max_tokens: Annotated[
        Tokens | None,
        Field(default=None, description="maxTokens of a row, in tokens; unset: the context.", examples=[49152]),
    ]
    overlength: Annotated[
        Literal["mask"], Field(description="overlength rows are masked: they count in their group and train nothing.")
    ]


class RecipeLora(ApiModel):
    """The LoRA that is trained and its optimizer (AdamW)."""

    rank: Annotated[int, Field(ge=1, le=256, description="rank of the LoRA.", examples=[16])]
    alpha: Annotated[
        float, Field(gt=0, le=4096, description="alpha of the LoRA: its weight is alpha / rank.", examples=[32])
    ]
    dropout: Annotated[float, Field(ge=0, lt=1, description="dropout of the LoRA's input; 0 for none.", examples=[0])]
    target_modules: Annotated[
        Literal["all-linear"],
        Field(description="targetModules that get a LoRA: all-linear, every linear layer but the LM head."),
    ]
    learning_rate: Annotated[float, Field(gt=0, le=1, description="learningRate at its highest.", examples=[0.00001])]
    schedule: Annotated[
        Literal["cosine", "linear", "constant"], Field(description="schedule of the learning rate after the warm-up.")
    ]
    warmup_steps: Annotated[
        int, Field(ge=0, le=100000, description="warmupSteps from 0 to the learning rate, linear.", examples=[4])
    ]
    weight_decay: Annotated[float, Field(ge=0, le=10, description="weightDecay of AdamW.", examples=[0])]
    beta1: Annotated[float, Field(ge=0, lt=1, description="beta1 of AdamW.", examples=[0.9])]
    beta2: Annotated[float, Field(ge=0, lt=1, description="beta2 of AdamW.", examples=[0.999])]
    epsilon: Annotated[float, Field(gt=0, le=0.01, description="epsilon of AdamW.", examples=[1e-8])]
    max_grad_norm: Annotated[
        float, Field(gt=0, le=1000, description="maxGradNorm that gradients are clipped to.", examples=[1])
    ]


class WeightSync(ApiModel):
    """How each step's policy reaches the rollout servers, and what they must agree with the trainer on before they sample."""

    prompts: Annotated[
        int,
        Field(
            ge=1,
            le=64,
            description="prompts that every server and the trainer score after each publish: those of the run's first tasks.",
            examples=[8],
        ),
    ]
    tokens: Annotated[
        int,
        Field(
            ge=1,
            le=1024,
            description="tokens that are scored of each prompt, its last ones: the same all run.",
            examples=[32],
        ),
    ]
    max_mean_log_prob_gap: Annotated[
        float,
        Field(
            gt=0,
            le=10,
            description="maxMeanLogProbGap: the step is refused where the mean of |log p of the server - log p of the "
            "trainer| of those tokens is above it, in nats.",
            examples=[0.1],
        ),
    ]
    timeout_seconds: Annotated[
        float,
        Field(
            ge=1,
            le=3600,
            description="timeoutSeconds that a server may take for a policy before it is tried again.",
            examples=[300],
        ),
    ]
    retries: Annotated[
        int,
        Field(
            ge=0,
            le=10,
            description="retries of a server that did not take a policy, before it is to be restarted; and once more of "
            "the restarted one.",
            examples=[2],
        ),
    ]


class RecipeSettings(ApiModel):
    """Every setting that decides what trains; the content of one released recipe file."""

    summary: Annotated[
        Sentence,
        Field(
            description="summary says in a sentence what is particular to the recipe.",
            examples=["sql_v3 with DAPO's objective."],
        ),
    ]
    environment: Annotated[TaskEnvironment, Field(description="environment that episodes run in.")]
    reward: Annotated[RewardSettings, Field(description="reward of an episode.")]
    objective: Annotated[Objective, Field(description="objective that is optimized.")]
    rollouts: Annotated[Rollouts, Field(description="rollouts: how episodes are sampled.")]
    rows: Annotated[Rows, Field(description="rows: what is trained of an episode.")]
    lora: Annotated[RecipeLora, Field(description="lora that is trained.")]
    serving: Annotated[
        Literal["folded", "unmerged"],
        Field(
            description="serving of the LoRA by the rollout server: folded into its bf16 base weights, or unmerged beside "
            "them."
        ),
    ]
    weight_sync: Annotated[
        WeightSync,
        Field(description="weightSync: how a step's policy reaches the rollout servers, and is checked there."),
    ]
    routing_replay: Annotated[
        bool, Field(description="routingReplay true: the trainer replays the expert routes of the rollout server.")
    ]
    moe_only: Annotated[bool, Field(description="moeOnly true refuses a base that is no mixture of experts.")]
    judge_allowed: Annotated[bool, Field(description="judgeAllowed false refuses a judge beside the task's checks.")]
    env_revision: Annotated[
        Literal["required", "refused"],
        Field(description="envRevision of a run: required (a bridged recipe), or refused."),
    ]
    dataset: Annotated[
        Literal["required", "refused"], Field(description="dataset of a run: required, or refused (a bridged recipe).")
    ]
    bases: Annotated[
        list[Literal["halo_rlvr", "halo_rft"]],
        Field(
            min_length=1,
            max_length=2,
            description="bases of a TrainingJob that may name the recipe: halo_rlvr, halo_rft.",
            json_schema_extra={"x-kubernetes-list-type": "set"},
            examples=[["halo_rlvr"]],
        ),
    ]
