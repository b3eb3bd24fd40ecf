"""TrainingJob: one training run, what is asked (spec) and what became of it (status)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from halo_api.base import ApiModel, Name, Sha256, ShortText, Text, Time, VolumeUri, cel, mapped_list, rule
from halo_api.catalog import Resources, Toleration
from halo_api.conditions import Condition

LINEAR_LAYERS = "all-linear"


class LoraSpec(ApiModel):
    """LoRA fine-tuning on a data set; what is unset is resolved at admission and shown in status.frozen."""

    trainer: Annotated[
        Literal["Halo", "TRL"] | None,
        Field(default=None, description="trainer trains the run; unset: the base model's defaultTrainer."),
    ]
    method: Annotated[
        Literal["sft", "dpo"],
        Field(description="method is sft, supervised fine-tuning, or dpo, preference optimisation (TRL only)."),
    ] = "sft"
    dataset: Annotated[Name, Field(description="dataset names a Dataset of this namespace, of kind chat for sft.")]
    rank: Annotated[int | None, Field(default=None, ge=1, le=256, description="rank is the LoRA rank; unset: 16.")]
    alpha: Annotated[
        float | None,
        Field(default=None, gt=0, le=4096, description="alpha scales the adapter by alpha/rank; unset: 32."),
    ]
    dropout: Annotated[float, Field(ge=0, lt=1, description="dropout is the LoRA dropout.")] = 0.0
    target_modules: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.\-]+$")]] | None,
        Field(
            default=None,
            min_length=1,
            max_length=64,
            description="targetModules are the layers that get an adapter; unset: every linear layer but the output head.",
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ]
    learning_rate: Annotated[
        float | None,
        Field(default=None, gt=0, le=1, description="learningRate is the peak learning rate; unset: 2e-4 (sft)."),
    ]
    warmup_steps: Annotated[
        int,
        Field(
            ge=0,
            le=1000000,
            description="warmupSteps is the number of steps over which the learning rate rises to its peak.",
        ),
    ] = 0
    schedule: Annotated[
        Literal["cosine", "linear", "constant"],
        Field(
            description="schedule is how the learning rate falls after the warm-up: cosine or linear to zero at the last step, or constant."
        ),
    ] = "cosine"
    weight_decay: Annotated[float, Field(ge=0, le=1, description="weightDecay is AdamW's decoupled weight decay.")] = (
        0.0
    )
    max_grad_norm: Annotated[
        float, Field(gt=0, le=1000, description="maxGradNorm clips the gradient's global L2 norm of each step.")
    ] = 1.0
    max_length: Annotated[
        int | None,
        Field(
            default=None,
            ge=8,
            le=16777216,
            description="maxLength is the longest row, in tokens; unset: the base's context length.",
        ),
    ]
    overlength: Annotated[
        Literal["refuse", "drop", "truncate"],
        Field(
            description="overlength says what happens to longer rows: refuse the run, drop the rows, or truncate them at the end."
        ),
    ] = "refuse"
    micro_batch: Annotated[
        int | None,
        Field(
            default=None,
            ge=1,
            le=4096,
            description="microBatch is the number of rows per forward pass; unset: 1. It changes speed and memory, never the gradient.",
        ),
    ]


class GpuRequest(ApiModel):
    """The GPUs of a run."""

    type: Annotated[Name, Field(description="type names a GpuClass of the cluster.")]
    count: Annotated[
        int,
        Field(
            ge=1,
            le=1024,
            description="count is all GPUs of the run; more than the class's perNode are spread over several nodes, one trainer pod each.",
        ),
    ] = 1


SPEC_RULES = (
    rule(
        "self.base != 'lora_trl' || has(self.lora)",
        "'is required by base lora_trl, found none; add spec.lora with at least a dataset'",
        ".lora",
    ),
    rule(
        "self.base == 'lora_trl' || !has(self.lora)",
        "'belongs to base lora_trl, found base ' + self.base + '; remove it or set base: lora_trl'",
        ".lora",
    ),
    rule(
        "!has(self.lora) || self.lora.warmupSteps <= self.steps",
        "'must be at most spec.steps, found %d of %d steps; lower it'.format([self.lora.warmupSteps, self.steps])",
        ".lora.warmupSteps",
    ),
    rule(
        "!has(self.lora) || self.lora.method != 'dpo' || !has(self.lora.trainer) || self.lora.trainer == 'TRL'",
        "'must be TRL for method dpo, found ' + self.lora.trainer + '; set trainer: TRL or leave it out'",
        ".lora.trainer",
    ),
)


def frozen_field(name: str, path: str) -> dict[str, str]:
    """Build the rule that a run's field is a record: neither changed, added nor removed after creation."""
    return rule(
        f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
        "'is immutable: a run is a record of what was asked; apply a new TrainingJob under another name'",
        path,
    )


MUTABLE = {"suspend"}


class TrainingJobSpec(ApiModel):
    """What to train. Everything but suspend is immutable: a run is a record of what was asked."""

    base: Annotated[
        Literal["lora_trl", "halo_rlvr", "halo_rft"],
        Field(
            description="base is the kind of training: lora_trl, LoRA on a data set; halo_rlvr, online RL with verifiable rewards; halo_rft, rejection-sampling fine-tuning."
        ),
    ]
    base_model: Annotated[
        Name, Field(description="baseModel names a BaseModel of the cluster's catalog (kubectl get basemodels).")
    ]
    gpu: Annotated[
        GpuRequest, Field(description="gpu is the type and number of GPUs; all of them are billed, idle or not.")
    ]
    steps: Annotated[int, Field(ge=1, le=1000000, description="steps is the number of optimizer steps.")]
    batch: Annotated[
        int, Field(ge=1, le=65536, description="batch is the number of rows per optimizer step, over all GPUs.")
    ]
    save_steps: Annotated[
        int,
        Field(
            ge=1,
            le=1000000,
            description="saveSteps is the number of steps between checkpoints; there is always one at the last step, and a relaunch resumes from the last.",
        ),
    ] = 50
    seed: Annotated[
        int,
        Field(
            ge=0,
            le=2147483647,
            description="seed decides data order, adapter initialisation and dropout, and nothing else: runs that differ only in it are comparable.",
        ),
    ] = 0
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
        ),
    ] = 3
    lora: Annotated[
        LoraSpec | None, Field(default=None, description="lora is required by base lora_trl and refused elsewhere.")
    ]


TrainingJobSpec.model_config["json_schema_extra"] = cel(
    *SPEC_RULES,
    *(
        frozen_field(field.alias or name, f".{field.alias or name}")
        for name, field in TrainingJobSpec.model_fields.items()
        if name not in MUTABLE
    ),
)
TrainingJobSpec.model_rebuild(force=True)


class FrozenBase(ApiModel):
    """The catalog entry as it was at admission."""

    name: Annotated[Name, Field(description="name of the BaseModel.")]
    source: Annotated[VolumeUri, Field(description="source of its weights.")]
    revision: Annotated[ShortText, Field(description="revision of its weights.")]
    dtype: Annotated[Literal["bf16", "fp32"], Field(description="dtype of the frozen base.")]
    context_length: Annotated[int, Field(description="contextLength, in tokens.")]


class FrozenDataset(ApiModel):
    """The data set as it was inspected."""

    name: Annotated[Name, Field(description="name of the Dataset.")]
    source: Annotated[VolumeUri, Field(description="source of its file.")]
    sha256: Annotated[Sha256, Field(description="sha256 of the file; the trainer refuses another.")]
    rows: Annotated[int, Field(description="rows in it.")]
    longest_row: Annotated[int, Field(description="longestRow, in tokens of the base.")]


class FrozenGpu(ApiModel):
    """How pods ask for their GPUs."""

    type: Annotated[Name, Field(description="type is the GpuClass.")]
    resource_name: Annotated[ShortText, Field(description="resourceName in the pods.")]
    node_selector: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=16, description="nodeSelector of the pods.")
    ]
    tolerations: Annotated[list[Toleration], Field(max_length=16, description="tolerations of the pods.")]
    per_gpu: Annotated[Resources, Field(description="perGpu is the CPU and memory per GPU.")]
    h100_equivalent: Annotated[float, Field(description="h100Equivalent of one GPU.")]


class Frozen(ApiModel):
    """What admission froze: an upgrade or a changed catalog never touches a run that was accepted."""

    base: Annotated[FrozenBase, Field(description="base is the base model.")]
    dataset: Annotated[FrozenDataset, Field(description="dataset is the inspected data set.")]
    gpu: Annotated[FrozenGpu, Field(description="gpu is the GPU class.")]
    lora: Annotated[LoraSpec, Field(description="lora with every default resolved.")]
    image: Annotated[str, Field(max_length=512, description="image of the trainer pods.")]
    image_pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"], Field(description="imagePullPolicy of the trainer pods.")
    ]
    artifacts_claim: Annotated[Name, Field(description="artifactsClaim holds checkpoints and adapters.")]
    operator_version: Annotated[ShortText, Field(description="operatorVersion that accepted the run.")]


class Topology(ApiModel):
    """How the GPUs are laid out."""

    nodes: Annotated[int, Field(description="nodes is the number of trainer pods.")]
    gpus_per_node: Annotated[int, Field(description="gpusPerNode is the number of GPUs of each.")]


class Progress(ApiModel):
    """How far the run is, as its last report said."""

    step: Annotated[int, Field(description="step is the last finished optimizer step.")]
    steps: Annotated[int, Field(description="steps is the number asked for.")]
    percent: Annotated[int, Field(description="percent of the steps done.")]
    loss: Annotated[
        float | None, Field(default=None, description="loss is the mean loss per trained token of the last step.")
    ]
    learning_rate: Annotated[float | None, Field(default=None, description="learningRate of the last step.")]
    tokens_per_second: Annotated[float | None, Field(default=None, description="tokensPerSecond over the last steps.")]
    remaining_seconds: Annotated[
        int | None, Field(default=None, description="remainingSeconds is the trainer's own guess.")
    ]
    updated_at: Annotated[Time, Field(description="updatedAt is when the operator took this report.")]


class Checkpoint(ApiModel):
    """A checkpoint that a relaunch can resume from."""

    step: Annotated[int, Field(description="step after which it was written.")]
    attempt: Annotated[int, Field(description="attempt that wrote it.")]
    uri: Annotated[VolumeUri, Field(description="uri of its folder.")]
    digest: Annotated[Sha256, Field(description="digest over its files; a resume checks it.")]
    loss: Annotated[float | None, Field(default=None, description="loss of its step.")]
    at: Annotated[Time, Field(description="at is when it was written.")]


class AttemptRecord(ApiModel):
    """What became of one attempt."""

    attempt: Annotated[int, Field(description="attempt counts from 1.")]
    started_at: Annotated[
        Time | None, Field(default=None, description="startedAt is when its last pod was bound to a node.")
    ]
    finished_at: Annotated[Time | None, Field(default=None, description="finishedAt is when its last container ended.")]
    reason: Annotated[ShortText | None, Field(default=None, description="reason it ended for.")]
    message: Annotated[Text | None, Field(default=None, description="message of its end.")]


class AdapterRef(ApiModel):
    """The adapter that the run published."""

    name: Annotated[Name, Field(description="name of the Adapter.")]
    uri: Annotated[VolumeUri, Field(description="uri of its folder.")]
    digest: Annotated[Sha256, Field(description="digest over its files.")]


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
        Field(max_length=10, description="checkpoints are the last 10."),
    ] = Field(default_factory=list)
    adapter: Annotated[AdapterRef | None, Field(default=None, description="adapter that the run published.")]
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
                    ["Method", "string", ".spec.lora.method", 0],
                    ["State", "string", '.status.conditions[?(@.type=="Ready")].reason', 0],
                    ["Step", "integer", ".status.progress.step", 0],
                    ["Progress", "integer", ".status.progress.percent", 0],
                    ["Loss", "number", ".status.progress.loss", 0],
                    ["Adapter", "string", ".status.adapter.name", 0],
                    ["Age", "date", ".metadata.creationTimestamp", 0],
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
