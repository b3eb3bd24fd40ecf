"""The report that a pod's supervisor pushes, and the outcome that it leaves as the container's termination message."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from halo_api.adapter import AdapterFile
from halo_api.base import ApiModel, Sha256, Text, Time, VolumeUri
from halo_api.conditions import Reason
from halo_api.estimate import PhaseName
from halo_api.rollouts import Servers

# Failures that another attempt may survive; every other one is the user's to mend, and a retry would fail the same way.
INFRASTRUCTURE = frozenset(
    {
        Reason.INTERRUPTED,
        Reason.CRASHED,
        Reason.RANK_LOST,
        Reason.ROLLOUT_LOST,
        Reason.NODE_LOST,
        Reason.EVICTED,
        Reason.NOT_STARTED,
    }
)


class RolloutProgress(ApiModel):
    """What a step's episodes were like, and how far the engine that sampled them is from the trainer."""

    reward: Annotated[float | None, Field(description="Mean reward of the scored episodes.")] = None
    pass_rate: Annotated[float | None, Field(description="Share of the scored episodes that the verifier passed.")] = (
        None
    )
    scored: int = 0
    # Never counted as wrong: a server or an environment failed, or time ran out.
    unscored: int = 0
    unscored_reasons: Annotated[dict[str, int], Field(max_length=16)] = Field(default_factory=dict)
    truncated: int = 0
    # Groups of equal rewards, which teach nothing.
    dropped_groups: int = 0
    kl: Annotated[float | None, Field(description="k3 estimate of KL to the reference, a token.")] = None
    mismatch: Annotated[
        float | None, Field(description="Mean |log p of the trainer - log p of the server| of sampled tokens, in nats.")
    ] = None
    mismatch_max: float | None = None
    clipped: Annotated[float | None, Field(description="Share of trained tokens whose ratio was clipped.")] = None
    staleness: Annotated[
        int | None, Field(description="The most updates that the policy which sampled a trained row is behind.")
    ] = None
    policy: Annotated[int | None, Field(description="Version of the policy that sampled the step's episodes.")] = None
    sampled_tokens: int = 0
    tokens_per_second: Annotated[float | None, Field(description="Sampled tokens a second, of all servers.")] = None
    rollout_seconds: float | None = None
    train_seconds: float | None = None
    sync_seconds: float | None = None
    servers: Annotated[int | None, Field(description="Servers that took part in the step.")] = None
    servers_wanted: int | None = None


class ProgressReport(ApiModel):
    """How far the role is."""

    step: int
    steps: int
    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    # Online RL, of the step's episodes; see docs/online-rl.md.
    rollouts: RolloutProgress | None = None
    # DPO: what the chosen answer's reward is above the rejected one's, and of how many pairs it is above.
    reward_margin: float | None = None
    reward_accuracy: float | None = None
    # With spec.lora.bundle: tokens of the steps as rows of their own for each token that goes through the model.
    bundle_ratio: float | None = None
    tokens: int = 0
    tokens_per_second: float | None = None
    # Model FLOPs over the GPUs' peak; unset where that is not known, as on a CPU.
    mfu: float | None = None
    # Of the first process: the most it has held of its GPU; on a CPU what it holds now.
    memory_bytes: int | None = None
    remaining_seconds: int | None = None


class CheckpointReport(ApiModel):
    """A finished checkpoint: complete on disk, with the digest over its files."""

    step: int
    uri: VolumeUri
    digest: Sha256
    loss: float | None = None
    # Online RL: the mean reward of its step's scored episodes.
    reward: float | None = None
    at: Time


class DiskReport(ApiModel):
    """The room on the volume of the checkpoints, as it was at the last save, or before the first."""

    free_bytes: int
    checkpoint_bytes: Annotated[int, Field(description="What a checkpoint takes: the last one, or a guess before it.")]


class AdapterReport(ApiModel):
    """The finished adapter: complete on disk."""

    uri: VolumeUri
    digest: Sha256
    step: int
    files: Annotated[tuple[AdapterFile, ...], Field(max_length=64)]


class LongRows(ApiModel):
    """How many rows are longer than a length."""

    tokens: int
    rows: int


class NamedRows(ApiModel):
    """How many rows have a name."""

    name: Annotated[str, Field(max_length=63)]
    rows: int


class InspectionReport(ApiModel):
    """What the inspection counted."""

    sha256: Sha256
    rows: int
    tokens: int
    trained_tokens: int
    longest_row: int
    # By powers of two and at the base's context: what a run's own limit leaves out can be told without reading again.
    longer: Annotated[tuple[LongRows, ...], Field(max_length=32)] = ()
    # Of kind tasks: the environments that they run in, and the tags that most of them have.
    environments: Annotated[tuple[NamedRows, ...], Field(max_length=8)] = ()
    tags: Annotated[tuple[NamedRows, ...], Field(max_length=16)] = ()


class AdapterConfig(ApiModel):
    """What an adapter's own adapter_config.json says of it; unset: it says nothing, or is no JSON."""

    base: Text | None = None
    revision: Text | None = None
    rank: int | None = None
    alpha: float | None = None


class FileProblem(ApiModel):
    """One file that is not as it was published."""

    problem: Annotated[str, Field(max_length=32, description="What is wrong with it: a word of receipt_check.Problem.")]
    message: Annotated[str, Field(max_length=400, description="Which file, and what was found.")]


class VerificationReport(ApiModel):
    """What the files of a published adapter are now."""

    digest: Annotated[Sha256, Field(description="The digest over those of its files that are there.")]
    problems: Annotated[
        tuple[FileProblem, ...],
        Field(max_length=5, description="Which file is missing, cut, changed or too many, the first five."),
    ] = ()
    config: AdapterConfig = AdapterConfig()


class Outcome(ApiModel):
    """How the role ended. As JSON it fits into a termination message (4,096 bytes): the message is cut, the facts never."""

    result: Literal["Succeeded", "Failed"]
    reason: Reason
    message: Text = ""
    checkpoint: CheckpointReport | None = None
    adapter: AdapterReport | None = None
    inspection: InspectionReport | None = None
    verification: VerificationReport | None = None
    # On the clock, by phase of the estimate.
    seconds: dict[PhaseName, float] = Field(default_factory=dict)

    @property
    def retriable(self) -> bool:
        """Whether infrastructure ended the role, so that another attempt may succeed."""
        return self.result == "Failed" and self.reason in INFRASTRUCTURE

    def termination_message(self, limit: int = 4096) -> str:
        """Return the JSON of at most `limit` bytes; only `message` is shortened."""
        for keep in (1024, 512, 256, 0):
            text = self.model_copy(update={"message": self.message[:keep]}).model_dump_json(
                by_alias=True, exclude_none=True
            )
            if len(text.encode()) <= limit:
                return text
        raise ValueError(f"an outcome of {len(text)} bytes does not fit into {limit}")


class Report(ApiModel):
    """The whole current state of a pod's role: a level, not a delta; the same body may be pushed many times."""

    version: Literal["v1"] = "v1"
    run_uid: str
    attempt: int
    sequence: int = 0
    phase: Literal["Starting", "Loading", "Working", "Finishing", "Done"] = "Starting"
    progress: ProgressReport | None = None
    checkpoints: Annotated[
        tuple[CheckpointReport, ...],
        Field(
            description="Those that are there, and stay until a status has left them out; in the order of their steps."
        ),
    ] = ()
    held: Annotated[
        CheckpointReport | None,
        Field(
            description="The newest, while too many wait for a status: only the outcome tells it, the next save deletes it."
        ),
    ] = None
    disk: DiskReport | None = None
    outcome: Outcome | None = None

    @property
    def last_checkpoint(self) -> CheckpointReport | None:
        """The newest that is there; to be told once the role has ended."""
        return self.held or (self.checkpoints[-1] if self.checkpoints else None)


class Deadline(ApiModel):
    """How long the role may run, counted from when the node set up the pod's volumes; the higher sequence wins.

    That moment is the pod's own to know, so that no clocks need agree and a deadline that is read late is still right.
    """

    sequence: int
    remaining_seconds: float | None = None

    def canonical(self) -> str:
        """Return the JSON text that the annotation carries."""
        return self.model_dump_json(by_alias=True, exclude_none=True)


class Answer(ApiModel):
    """The operator's answer to a push."""

    acknowledged: Annotated[
        bool, Field(description="Every checkpoint and outcome of the report is in the run's status.")
    ]
    saved_step: Annotated[
        int | None,
        Field(
            description="The step of the newest checkpoint in the run's status, for pods that know no `checkpoints`."
        ),
    ] = None
    checkpoints: Annotated[
        tuple[int, ...] | None,
        Field(description="The steps of this attempt whose checkpoints the run's status names; unset: not known yet."),
    ] = None
    deadline: Deadline | None = None
    servers: Annotated[Servers | None, Field(description="Of online RL: where the run's rollout servers are now.")] = (
        None
    )
    command: Literal["continue", "stop"] = "continue"
