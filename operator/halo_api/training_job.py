"""TrainingJob: one training run, what is asked (spec) and what became of it (status)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from halo_api.amounts import HOURS_DECIMALS, exactly
from halo_api.base import ApiModel, Name, Sha256, ShortText, Text, cel, mapped_list
from halo_api.conditions import Condition
from halo_api.estimate import Estimate
from halo_api.run_status import (
    AdapterRef,
    AttemptRecord,
    Checkpoint,
    Frozen,
    Hold,
    Progress,
    ReceiptRef,
    Topology,
    TrainedAdapter,
    Usage,
)
from halo_api.training_methods import LoraSpec, RftSpec, RlvrSpec
from halo_api.training_rules import SPEC_RULES, frozen_field


class GpuRequest(ApiModel):
    """The GPUs of a run."""

    type: Annotated[Name, Field(description="type names a GpuClass of the cluster.", examples=["h100"])]
    count: Annotated[
        int,
        Field(
            ge=1,
            le=1024,
            description="count is all GPUs of the run; more than the class's perNode are spread over several nodes, one trainer pod each.",
            examples=[4],
        ),
    ] = 1


class ParentRef(ApiModel):
    """The adapter version that a run continues."""

    adapter: Annotated[
        Name,
        Field(
            description="adapter names a verified Adapter of this namespace: same base and revision, same rank and alpha.",
            examples=["support-v3"],
        ),
    ]


class Budget(ApiModel):
    """The most that a run may use."""

    h100_hours: Annotated[
        float,
        Field(
            gt=0,
            le=100000,
            description="h100Hours is the most H100-hours that the run may use, with at most 3 decimals; it is stopped there and keeps its last checkpoint as its adapter. May be raised later, never lowered.",
            examples=[12.5],
            json_schema_extra=exactly(HOURS_DECIMALS, 1e5),
        ),
    ]


# A raised budget is a rule of its own.
MUTABLE = {"suspend", "budget"}


class TrainingJobSpec(ApiModel):
    """What to train. Everything but suspend and a raised budget is immutable: a run is a record of what was asked."""

    base: Annotated[
        Literal["lora_trl", "halo_rlvr", "halo_rft"],
        Field(
            description="base is the kind of training: lora_trl, LoRA on a data set; halo_rlvr, online RL with verifiable rewards; halo_rft, rejection-sampling fine-tuning."
        ),
    ]
    base_model: Annotated[
        Name,
        Field(
            description="baseModel names a BaseModel of the cluster's catalog (kubectl get basemodels).",
            examples=["qwen3-8b"],
        ),
    ]
    gpu: Annotated[
        GpuRequest, Field(description="gpu is the type and number of GPUs; all of them are billed, idle or not.")
    ]
    steps: Annotated[
        int, Field(ge=1, le=1000000, description="steps is the number of optimizer steps.", examples=[200])
    ]
    batch: Annotated[
        int,
        Field(
            ge=1,
            le=65536,
            description="batch is the number of rows per optimizer step, over all GPUs, where a bundle is one row; with base halo_rlvr of episodes per step for each trainer GPU, a multiple of the recipe's group size.",
            examples=[16],
        ),
    ]
    save_steps: Annotated[
        int,
        Field(
            ge=1,
            le=1000000,
            description="saveSteps is the number of steps between checkpoints; there is always one at the last step, and a relaunch resumes from the last.",
            examples=[50],
        ),
    ] = 50
    seed: Annotated[
        int,
        Field(
            ge=0,
            le=2147483647,
            description="seed decides data order, adapter initialisation and dropout, and nothing else: runs that differ only in it are comparable.",
            examples=[0],
        ),
    ] = 0
    parent: Annotated[
        ParentRef | None,
        Field(
            default=None,
            description="parent is the adapter version that the run continues; unset: it starts a new one.",
        ),
    ]
    trainable: Annotated[
        Literal["lora", "full"],
        Field(description="trainable is lora; full, the model's own weights, is refused: no base offers it yet."),
    ] = "lora"
    budget: Annotated[
        Budget | None,
        Field(
            default=None,
            description="budget of the run: required by the Workspace's shared allocation, or by base halo_rlvr on a paid plan.",
        ),
    ]
    mode: Annotated[
        Literal["final", "reasoning"] | None,
        Field(
            default=None,
            description="mode that rollouts sample in and the adapter is served in, of bases halo_rlvr and halo_rft: final, thinking off, or reasoning, on; unset: the recipe's own sampling.",
        ),
    ]
    context_parallel: Annotated[
        int | Annotated[str, Field(max_length=8)] | None,
        Field(
            default=None,
            description="contextParallel splits long rows over GPUs: auto with base lora_trl (sft with Halo), 2 or 4 with base halo_rlvr; unset: off.",
            examples=["auto"],
            json_schema_extra={"x-kubernetes-int-or-string": True, "maxLength": 8},
        ),
    ]
    suspend: Annotated[
        bool,
        Field(description="suspend true stops the run's pods and keeps its last checkpoint; false goes on from there."),
    ] = False
    backoff_limit: Annotated[
        int,
        Field(
            ge=0,
            le=100,
            description="backoffLimit is how often the run is relaunched from its last checkpoint after an infrastructure failure.",
            examples=[3],
        ),
    ] = 3
    lora: Annotated[
        LoraSpec | None,
        Field(
            default=None,
            description="lora is required by base lora_trl; base halo_rft takes its rank, alpha and learningRate; refused by halo_rlvr.",
        ),
    ]
    rlvr: Annotated[
        RlvrSpec | None, Field(default=None, description="rlvr is required by base halo_rlvr and refused elsewhere.")
    ]
    rft: Annotated[
        RftSpec | None, Field(default=None, description="rft is required by base halo_rft and refused elsewhere.")
    ]

    @property
    def method(self) -> str:
        """What trains, in one word: sft or dpo, or the recipe."""
        if recipe := self.rlvr or self.rft:
            return recipe.recipe
        return (self.lora.method if self.lora else None) or "sft"


TrainingJobSpec.model_config["json_schema_extra"] = cel(
    *SPEC_RULES,
    *(frozen_field(field.alias or name) for name, field in TrainingJobSpec.model_fields.items() if name not in MUTABLE),
)
TrainingJobSpec.model_rebuild(force=True)


class TrainingJobStatus(ApiModel):
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
    method: Annotated[
        ShortText | None, Field(default=None, description="method is sft, dpo, or the recipe of rlvr or rft.")
    ]
    estimate: Annotated[
        Estimate | None, Field(default=None, description="estimate is what the run was quoted at admission.")
    ]
    hold: Annotated[Hold | None, Field(default=None, description="hold is what is set aside for the run.")]
    usage: Annotated[Usage | None, Field(default=None, description="usage is what the run has used.")]
    recipe_digest: Annotated[
        Sha256 | None, Field(default=None, description="recipeDigest is the SHA-256 of the recipe's file.")
    ]
    attempt: Annotated[
        int | None,
        Field(
            default=None, description="attempt is the current one; a relaunch after a failure or a suspend is the next."
        ),
    ]
    failures: Annotated[
        int | None,
        Field(
            default=None,
            description="failures counts the attempts that infrastructure ended, against spec.backoffLimit.",
        ),
    ]
    attempts: Annotated[
        list[AttemptRecord],
        Field(max_length=10, description="attempts are the last 10."),
    ] = Field(default_factory=list)
    frozen: Annotated[Frozen | None, Field(default=None, description="frozen is what admission resolved and froze.")]
    topology: Annotated[Topology | None, Field(default=None, description="topology is how the GPUs are laid out.")]
    progress: Annotated[Progress | None, Field(default=None, description="progress as last reported.")]
    checkpoints: Annotated[
        list[Checkpoint],
        Field(
            max_length=10, description="checkpoints are the last 3 and the one of the lowest loss; each is at its uri."
        ),
    ] = Field(default_factory=list)
    trained: Annotated[
        TrainedAdapter | None,
        Field(default=None, description="trained is what training left, from its end until it is published."),
    ]
    adapter: Annotated[AdapterRef | None, Field(default=None, description="adapter that the run published.")]
    receipt: Annotated[
        ReceiptRef | None,
        Field(default=None, description="receipt is the signed record of how the adapter came to be."),
    ]
    waiting: Annotated[Text | None, Field(default=None, description="waiting says in one line what the run waits for.")]


class TrainingJob(ApiModel):
    """TrainingJob is one training run: it is checked, placed, trained and published as an Adapter of the same name."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-halo-crd": {
                "plural": "trainingjobs",
                "shortNames": ["tj"],
                "scope": "Namespaced",
                "columns": [
                    ["Base", "string", ".spec.base", 0],
                    ["Model", "string", ".spec.baseModel", 0],
                    ["Recipe/Method", "string", ".status.method", 0],
                    ["State", "string", '.status.conditions[?(@.type=="Ready")].reason', 0],
                    ["Step", "integer", ".status.progress.step", 0],
                    ["Progress", "integer", ".status.progress.percent", 0],
                    ["H100-H", "string", ".status.usage.h100Hours", 0],
                    ["Reward/Loss", "number", ".status.progress['reward','loss']", 0],
                    ["Adapter", "string", ".status.adapter.name", 0],
                    ["Age", "date", ".metadata.creationTimestamp", 0],
                    ["Quote", "string", ".status.estimate.h100Hours.centre", 1],
                    ["Held", "string", ".status.hold['h100Hours','usd']", 1],
                    ["GPUs", "integer", ".spec.gpu.count", 1],
                    ["Attempt", "integer", ".status.attempt", 1],
                    ["Waiting", "string", ".status.waiting", 1],
                ],
            }
        }
    )

    spec: Annotated[TrainingJobSpec, Field(description="spec is what to train.")]
    status: Annotated[
        TrainingJobStatus | None,
        Field(default=None, description="status is what became of it; only the operator writes it."),
    ]
