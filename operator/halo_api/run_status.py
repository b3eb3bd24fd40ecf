"""What a run's status is made of, whatever the kind of run: what was frozen, quoted, held and used, and how far it is."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from halo_api.amounts import Amount
from halo_api.base import ApiModel, Name, Sha256, ShortText, Text, Time, VolumeUri
from halo_api.estimate import PhaseName
from halo_api.gpu_class import Resources, Toleration
from halo_api.tracking import Tracking
from halo_api.training_methods import RftSpec, RlvrSpec, TargetModule


class FrozenLora(ApiModel):
    """LoRA settings with every default resolved; unset targetModules mean every linear layer but the output head."""

    trainer: Annotated[Literal["Halo", "TRL"] | None, Field(default=None, description="trainer that trains the run.")]
    method: Annotated[Literal["sft", "dpo"], Field(description="method is sft or dpo.")] = "sft"
    dataset: Annotated[Name, Field(description="dataset names the Dataset.")]
    rank: Annotated[int | None, Field(default=None, description="rank of the LoRA.")]
    alpha: Annotated[float | None, Field(default=None, description="alpha scales the adapter by alpha/rank.")]
    dropout: Annotated[float, Field(description="dropout of the LoRA.")] = 0.0
    target_modules: Annotated[
        list[TargetModule] | None,
        Field(default=None, max_length=64, description="targetModules that get an adapter; unset: every linear layer."),
    ]
    learning_rate: Annotated[float | None, Field(default=None, description="learningRate at its peak.")]
    warmup_steps: Annotated[int, Field(description="warmupSteps until the peak.")] = 0
    schedule: Annotated[Literal["cosine", "linear", "constant"], Field(description="schedule after the warm-up.")] = (
        "cosine"
    )
    weight_decay: Annotated[float, Field(description="weightDecay of AdamW.")] = 0.0
    max_grad_norm: Annotated[float, Field(description="maxGradNorm clips the gradient of each step.")] = 1.0
    max_length: Annotated[int | None, Field(default=None, description="maxLength of a row, in tokens.")]
    overlength: Annotated[
        Literal["refuse", "drop", "truncate"], Field(description="overlength says what happens to longer rows.")
    ] = "refuse"
    micro_batch: Annotated[int | None, Field(default=None, description="microBatch is the rows per forward pass.")]
    beta: Annotated[float | None, Field(default=None, description="beta of dpo.")]
    bundle: Annotated[int | None, Field(default=None, description="bundle is the most steps of an agent run a row.")]
    # A run that was frozen before there was packing has none, and goes on as it began.
    packing: Annotated[bool, Field(description="packing puts rows side by side into a forward pass.")] = False


class FrozenParent(ApiModel):
    """The adapter that the run continues."""

    name: Annotated[Name, Field(description="name of the Adapter.")]
    uri: Annotated[VolumeUri, Field(description="uri of its folder.")]
    digest: Annotated[Sha256, Field(description="digest over its files; the trainer refuses others.")]
    files: Annotated[
        dict[str, Sha256],
        Field(max_length=64, description="files: the SHA-256 of each, by path."),
    ] = Field(default_factory=dict)
    receipt: Annotated[
        Sha256 | None, Field(default=None, description="receipt is the digest of its receipt, which was verified.")
    ]


class FrozenRecipe(ApiModel):
    """The recipe as its file was."""

    name: Annotated[ShortText, Field(description="name that jobs write, such as sql_v3.")]
    digest: Annotated[Sha256, Field(description="digest is the SHA-256 of text.")]
    text: Annotated[Text, Field(description="text of the file: every setting that decides what trains.")]


class FrozenBase(ApiModel):
    """The catalog entry as it was at admission."""

    name: Annotated[Name, Field(description="name of the BaseModel.")]
    source: Annotated[VolumeUri, Field(description="source of its weights.")]
    revision: Annotated[ShortText, Field(description="revision of its weights.")]
    dtype: Annotated[Literal["bf16", "fp32"], Field(description="dtype of the frozen base.")]
    quantization: Annotated[
        Literal["nf4"] | None, Field(default=None, description="quantization of the frozen base; unset: none.")
    ]
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
    topology_key: Annotated[
        str | None,
        Field(default=None, max_length=316, description="topologyKey of its fast fabric; unset: the node itself."),
    ]


class Frozen(ApiModel):
    """What admission froze: an upgrade or a changed catalog never touches a run that was accepted."""

    base: Annotated[FrozenBase, Field(description="base is the base model.")]
    dataset: Annotated[
        FrozenDataset | None,
        Field(default=None, description="dataset is the inspected data set; unset where an environment has the tasks."),
    ]
    gpu: Annotated[FrozenGpu, Field(description="gpu is the GPU class.")]
    lora: Annotated[
        FrozenLora | None, Field(default=None, description="lora with every default resolved, of base lora_trl.")
    ]
    rlvr: Annotated[RlvrSpec | None, Field(default=None, description="rlvr with rolloutGpus resolved.")]
    rft: Annotated[RftSpec | None, Field(default=None, description="rft as asked.")]
    recipe: Annotated[FrozenRecipe | None, Field(default=None, description="recipe of rlvr or rft.")]
    parent: Annotated[FrozenParent | None, Field(default=None, description="parent that the run continues.")]
    image: Annotated[str, Field(max_length=512, description="image of the trainer pods.")]
    image_pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"], Field(description="imagePullPolicy of the trainer pods.")
    ]
    rollout_image: Annotated[
        str | None, Field(default=None, max_length=512, description="rolloutImage of the rollout servers, of rlvr.")
    ]
    rollout_image_pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"] | None,
        Field(default=None, description="rolloutImagePullPolicy of the rollout servers."),
    ]
    tracking: Annotated[
        Tracking | None, Field(default=None, description="tracking of the Workspace: where the metrics also go.")
    ]
    artifacts_claim: Annotated[Name, Field(description="artifactsClaim holds checkpoints and adapters.")]
    operator_version: Annotated[ShortText, Field(description="operatorVersion that accepted the run.")]


class RolloutServer(ApiModel):
    """One rollout server of a run."""

    server: Annotated[int, Field(description="server counts from 0.")]
    gpus: Annotated[int, Field(description="gpus it serves on.")]


class Topology(ApiModel):
    """How the GPUs are laid out."""

    nodes: Annotated[int, Field(description="nodes is the number of trainer pods.")]
    gpus_per_node: Annotated[int, Field(description="gpusPerNode is the number of GPUs of each.")]
    trainer_gpus: Annotated[
        int | None, Field(default=None, description="trainerGpus is the number of GPUs that train.")
    ]
    context_parallel: Annotated[
        int | None, Field(default=None, description="contextParallel is how many GPUs a long row is split over.")
    ]
    groups: Annotated[
        int | None, Field(default=None, description="groups is the number of context-parallel groups that train.")
    ]
    rollout: Annotated[
        list[RolloutServer], Field(max_length=512, description="rollout are the rollout servers and their GPUs.")
    ] = Field(default_factory=list)


class Hold(ApiModel):
    """What is set aside for the run; it is stopped there, and never charged more."""

    id: Annotated[ShortText, Field(description="id of the hold in the Workspace's status: the uid of the run.")]
    h100_hours: Annotated[Amount | None, Field(default=None, description="h100Hours held of a shared allocation.")]
    usd: Annotated[Amount | None, Field(default=None, description="usd held on the wallet.")]
    rate: Annotated[
        Amount | None,
        Field(default=None, description="rate in USD an hour of one GPU, markup included; unset: no price."),
    ]
    frozen_at: Annotated[Time, Field(description="frozenAt is when the rate was frozen.")]
    raises: Annotated[int, Field(description="raises counts how often the hold grew with the run's budget.")] = 0


class Settlement(ApiModel):
    """What became of the hold: the lesser of held and used is charged, the rest is released."""

    unit: Annotated[Literal["USD", "H100Hours"], Field(description="unit of the amounts: USD or H100Hours.")]
    quoted: Annotated[
        Amount | None, Field(default=None, description="quoted at admission: the estimate's centre, in that unit.")
    ]
    held: Annotated[Amount, Field(description="held at the end, raises included.")]
    used: Annotated[Amount, Field(description="used as metered; it may be above what was held.")]
    charged: Annotated[Amount, Field(description="charged: the lesser of held and used.")]
    overrun: Annotated[Amount, Field(description="overrun is used less charged: reported, never charged.")]
    released: Annotated[Amount, Field(description="released is held less charged.")]


class Usage(ApiModel):
    """What the run has used."""

    h100_hours: Annotated[Amount, Field(description="h100Hours used by all attempts.")]
    usd: Annotated[Amount | None, Field(default=None, description="usd that is; unset without a price.")]
    gpu_seconds: Annotated[
        dict[str, Amount], Field(max_length=8, description="gpuSeconds by role: trainer, rollout.")
    ] = Field(default_factory=dict)
    since: Annotated[Time | None, Field(default=None, description="since when the current attempt is counted.")]
    through: Annotated[
        int,
        Field(description="through is the last attempt that has ended and is counted for good in closedGpuSeconds."),
    ] = 0
    closed_gpu_seconds: Annotated[
        Amount, Field(description="closedGpuSeconds: GPU time of all attempts that have ended; it never changes again.")
    ] = "0"
    settlement: Annotated[
        Settlement | None, Field(default=None, description="settlement of the hold, once the run is over.")
    ]


class ReceiptRef(ApiModel):
    """The signed record of how the adapter came to be."""

    digest: Annotated[Sha256, Field(description="digest of the receipt.", examples=[f"sha256:{'0' * 64}"])]
    uri: Annotated[
        VolumeUri | None,
        Field(
            default=None,
            description="uri of the receipt, where it lies on a claim; the Adapter carries it in any case.",
            examples=["pvc://halo-artifacts/receipt.json"],
        ),
    ]


class RolloutsSeen(ApiModel):
    """What the last step's episodes were like, and how far their servers are from the trainer."""

    pass_rate: Annotated[
        float | None,
        Field(default=None, description="passRate is the share of the scored episodes that the verifier passed."),
    ]
    scored: Annotated[int, Field(description="scored is how many episodes have a reward.")] = 0
    unscored: Annotated[
        int,
        Field(description="unscored is how many have none: a server or an environment failed. They train nothing."),
    ] = 0
    unscored_reasons: Annotated[
        dict[str, int], Field(max_length=16, description="unscoredReasons: how many for which reason.")
    ] = Field(default_factory=dict)
    kl: Annotated[
        float | None, Field(default=None, description="kl to the reference, the k3 estimate of a token, in nats.")
    ]
    mismatch: Annotated[
        float | None,
        Field(
            default=None,
            description="mismatch is the mean difference, in nats, of the trainer's and the server's log-probability of a sampled token.",
        ),
    ]
    staleness: Annotated[
        int | None,
        Field(default=None, description="staleness is how many updates the policy that sampled is behind, at most."),
    ]
    policy: Annotated[
        int | None, Field(default=None, description="policy is the step whose policy sampled the episodes.")
    ]
    tokens_per_second: Annotated[
        float | None, Field(default=None, description="tokensPerSecond that all servers sample together.")
    ]
    servers: Annotated[int | None, Field(default=None, description="servers is how many took part in the step.")]


class Progress(ApiModel):
    """How far the run is, as its last report said."""

    step: Annotated[int, Field(description="step is the last finished optimizer step.")]
    steps: Annotated[int, Field(description="steps is the number asked for.")]
    percent: Annotated[int, Field(description="percent of the steps done.")]
    loss: Annotated[
        float | None, Field(default=None, description="loss is the mean loss per trained token of the last step.")
    ]
    reward: Annotated[
        float | None, Field(default=None, description="reward is the mean reward of the last step's episodes.")
    ]
    learning_rate: Annotated[float | None, Field(default=None, description="learningRate of the last step.")]
    grad_norm: Annotated[
        float | None, Field(default=None, description="gradNorm of the last step, before it was clipped.")
    ]
    tokens_per_second: Annotated[
        float | None, Field(default=None, description="tokensPerSecond that are trained, over the last steps.")
    ]
    rollouts: Annotated[
        RolloutsSeen | None,
        Field(default=None, description="rollouts of the last step: what its episodes were like, of rlvr."),
    ]
    mfu: Annotated[
        float | None,
        Field(
            default=None,
            description="mfu over the last steps: the share of the GPUs' peak that the model's own FLOPs are; unset where the peak is not known.",
        ),
    ]
    memory_bytes: Annotated[
        int | None,
        Field(
            default=None,
            description="memoryBytes is the most that the first process has held of its GPU; on a CPU what it holds of the node's memory.",
        ),
    ]
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
    reward: Annotated[float | None, Field(default=None, description="reward of its step.")]
    at: Annotated[Time, Field(description="at is when it was written.")]


class MeasuredPhase(ApiModel):
    """How long a phase of the estimate took; what was quoted for it stands in the run's estimate."""

    name: Annotated[PhaseName, Field(description="name of the phase, as in status.estimate.phases.")]
    seconds: Annotated[Amount, Field(description="seconds on the clock, such as 912.4.")]


class AttemptRecord(ApiModel):
    """What became of one attempt."""

    attempt: Annotated[int, Field(description="attempt counts from 1.")]
    started_at: Annotated[
        Time | None, Field(default=None, description="startedAt is when its last pod was bound to a node.")
    ]
    finished_at: Annotated[Time | None, Field(default=None, description="finishedAt is when its last container ended.")]
    reason: Annotated[ShortText | None, Field(default=None, description="reason it ended for.")]
    message: Annotated[Text | None, Field(default=None, description="message of its end.")]
    gpu_seconds: Annotated[
        Amount | None,
        Field(
            default=None,
            description="gpuSeconds: all GPUs of the run from startedAt to finishedAt, known once it has ended.",
        ),
    ]
    phases: Annotated[
        list[MeasuredPhase],
        Field(
            max_length=16,
            description="phases as they were measured, known once the attempt has ended; start is what no other phase took of the time from startedAt to finishedAt.",
        ),
    ] = Field(default_factory=list)
    images: Annotated[
        list[Annotated[str, Field(max_length=512)]],
        Field(max_length=8, description="images that its trainer pods ran, as their nodes resolved them."),
    ] = Field(default_factory=list)
    rollout_images: Annotated[
        list[Annotated[str, Field(max_length=512)]],
        Field(max_length=8, description="rolloutImages that its rollout servers ran, as their nodes resolved them."),
    ] = Field(default_factory=list)
    replaced: Annotated[
        list[int],
        Field(
            max_length=3,
            description="replaced are the rollout servers whose pod was replaced, in that order; after three the attempt ends.",
        ),
    ] = Field(default_factory=list)


class TrainedAdapter(ApiModel):
    """What training left, until it is published."""

    uri: Annotated[VolumeUri, Field(description="uri of the folder that the trainer wrote it to.")]
    digest: Annotated[Sha256, Field(description="digest over its files.")]
    step: Annotated[int, Field(description="step that it was taken after.")]


class AdapterRef(ApiModel):
    """The adapter that the run published."""

    name: Annotated[Name, Field(description="name of the Adapter.")]
    uri: Annotated[VolumeUri, Field(description="uri of its folder.")]
    digest: Annotated[Sha256, Field(description="digest over its files.")]
