"""The run file: the one versioned document that tells a pod everything about its work."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal

from pydantic import Field

from halo_api.adapter import AdapterFile
from halo_api.base import ApiModel, Sha256, VolumeUri
from halo_api.recipe_settings import RecipeSettings
from halo_api.report import Deadline
from halo_api.rollouts import RolloutPlan, ServerAddress
from halo_api.run_status import FrozenLora

# Where the operator mounts things in every pod of a run.
RUN_ANNOTATION = "halo.training/run-file"
CA_ANNOTATION = "halo.training/ca"
DEADLINE_ANNOTATION = "halo.training/deadline"
INFO_FOLDER = "/halo/info"
RUN_FILE_PATH = f"{INFO_FOLDER}/run.json"
CA_PATH = f"{INFO_FOLDER}/ca.crt"
DEADLINE_PATH = f"{INFO_FOLDER}/deadline.json"
TOKEN_PATH = "/halo/token/token"  # noqa: S105
WORK_FOLDER = "/halo/work"
REPORT_PATH = f"{WORK_FOLDER}/report.json"
VOLUMES_FOLDER = "/volumes"
DIGEST_VARIABLE = "HALO_RUN_FILE_SHA256"
# A file of a volume that never changes: its time is when the node set up the pod's volumes, before it pulled the image.
BORN_FOLDER = "/halo/born"
BORN_PATH = f"{BORN_FOLDER}/uid"
REPORT_AUDIENCE = "halo-report"


def volume_path(uri: str, root: str = VOLUMES_FOLDER) -> str:
    """Return where a pod sees a volume uri: pvc://CLAIM/PATH is ROOT/CLAIM/PATH."""
    return f"{root}/{uri.removeprefix('pvc://')}"


def adapters_uri(claim: str) -> str:
    """Return the folder of a claim that published and imported adapters lie in."""
    return f"pvc://{claim}/adapters"


def address(digest: str) -> str:
    """Return the name of the folder there that holds what has this digest."""
    return digest.replace(":", "-")


def claim_of(uri: str) -> str:
    """Return the claim of a volume uri."""
    return uri.removeprefix("pvc://").split("/", 1)[0]


def run_uri(claim: str, uid: str) -> str:
    """Return the folder of a claim that all attempts of a run write below."""
    return f"pvc://{claim}/{uid}"


def attempt_name(attempt: int) -> str:
    """Return the name of the folder there that one attempt may write to."""
    return f"a{attempt}"


def attempt_of(name: str) -> int | None:
    """Return which attempt's folder has this name, if one has."""
    return int(name[1:]) if re.fullmatch(r"a[1-9][0-9]{0,8}", name) else None


class RunIdentity(ApiModel):
    """Whose pod this is."""

    kind: Literal["TrainingJob", "Dataset", "Adapter"]
    namespace: str
    name: str
    uid: str
    attempt: Annotated[int, Field(ge=1)]


class BaseRef(ApiModel):
    """The base model to load."""

    name: str
    source: VolumeUri
    revision: str
    dtype: Literal["bf16", "fp32"]
    context_length: int
    quantization: Annotated[
        Literal["nf4"] | None,
        Field(description="How the frozen base is kept while a LoRA trains on it (QLoRA); unset: in its dtype."),
    ] = None


class DataRef(ApiModel):
    """The data to read; `sha256` is unset for an inspection, which finds it."""

    name: str
    kind: Literal["chat", "preference", "tasks"]
    source: VolumeUri
    sha256: Sha256 | None = None


class ResumeFrom(ApiModel):
    """The checkpoint to go on from; its digest is checked before it is loaded."""

    step: int
    uri: VolumeUri
    digest: Sha256


class ParentPlan(ApiModel):
    """The adapter that the LoRA starts from; its files are hashed again before they are loaded."""

    name: str
    uri: VolumeUri
    digest: Annotated[Sha256, Field(description="The digest over its files.")]
    files: Annotated[dict[str, Sha256], Field(description="Its files by path: to say which one differs.")] = Field(
        default_factory=dict
    )


class ContextParallel(ApiModel):
    """How long rows are split over GPUs."""

    group: Annotated[
        int, Field(ge=1, description="How many ranks share a row, consecutive ones of one node; 1: no row is split.")
    ]
    whole_row: Annotated[int, Field(ge=1, description="Tokens up to which a row is left whole on one rank.")]


class TrainPlan(ApiModel):
    """What to train: every default is resolved."""

    steps: Annotated[int, Field(ge=1)]
    batch: Annotated[int, Field(ge=1)]
    save_steps: Annotated[int, Field(ge=1)]
    seed: int
    lora: FrozenLora
    output: Annotated[VolumeUri, Field(description="The attempt's own folder; an attempt writes nowhere else.")]
    parent: ParentPlan | None = None
    resume: ResumeFrom | None = None
    context_parallel: ContextParallel | None = None


class RlvrPlan(ApiModel):
    """What to train by online RL: the recipe's settings in full, and every default resolved."""

    recipe: Annotated[str, Field(description="The recipe's name; `settings` are what its file says.")]
    recipe_digest: Sha256
    settings: RecipeSettings
    steps: int
    episodes: Annotated[int, Field(ge=1, description="Episodes that one step trains on, of all trainers together.")]
    save_steps: int
    seed: int
    thinking: Annotated[
        bool | None, Field(description="What rollouts sample with: on, off; unset: as the base's chat template has it.")
    ] = None
    context_length: Annotated[int, Field(ge=1, description="Tokens that an episode may fill.")]
    output: Annotated[VolumeUri, Field(description="The attempt's own folder; an attempt writes nowhere else.")]
    parent: ParentPlan | None = None
    resume: ResumeFrom | None = None
    context_parallel: ContextParallel | None = None


class PublishPlan(ApiModel):
    """What is to be published: the adapter that training left, or that of a checkpoint."""

    source: Annotated[
        ResumeFrom, Field(description="Its step and folder, and the digest over all files of the folder.")
    ]
    folder: Annotated[Literal["", "adapter/"], Field(description="What of the source is published.")] = ""
    store: Annotated[VolumeUri, Field(description="The folder that adapters lie in, each named by its digest.")]


class VerifyPlan(ApiModel):
    """The published adapter whose files are to be hashed again."""

    uri: VolumeUri
    files: Annotated[tuple[AdapterFile, ...], Field(max_length=64, description="The files as they were published.")]


class Layout(ApiModel):
    """Where this pod stands among the run's trainer pods."""

    nodes: Annotated[int, Field(ge=1)] = 1
    node_rank: Annotated[int, Field(ge=0)] = 0
    gpus_per_node: Annotated[int, Field(ge=1)] = 1
    rendezvous: Annotated[str | None, Field(description="HOST:PORT of the first pod, above one node.")] = None
    rendezvous_timeout_seconds: int = 600


class Reporting(ApiModel):
    """Where and how often the supervisor pushes the report."""

    url: str
    interval_seconds: float = 3.0
    final_push_seconds: Annotated[
        float,
        Field(description="How long the last push is tried; the outcome stays in the termination message anyway."),
    ] = 30.0


class WandbPlan(ApiModel):
    """The run of Weights & Biases that the metrics go to; its key is in the environment."""

    project: str
    entity: str | None = None
    base_url: str | None = None
    id: Annotated[str, Field(description="The run's uid, so that all attempts are one run there.")]
    name: str
    secret: Annotated[str, Field(description="The Secret of the key, in words: to say that it is missing.")]


class RunFile(ApiModel):
    """Everything a pod must know; it travels as an annotation of the pod itself."""

    version: Literal["v1"] = "v1"
    role: Literal["train", "rollout", "inspect", "publish", "verify"]
    run: RunIdentity
    needed_base: BaseRef | None = Field(default=None, alias="base", description="Unset for a role that reads no model.")
    data: DataRef | None = None
    train: TrainPlan | None = None
    rlvr: Annotated[RlvrPlan | None, Field(description="Of a trainer, in place of `train`: online RL.")] = None
    rollout: RolloutPlan | None = None
    servers: Annotated[
        tuple[ServerAddress, ...],
        Field(description="The rollout servers as the attempt began; answers to pushes have newer."),
    ] = ()
    publish: PublishPlan | None = None
    verify: VerifyPlan | None = None
    layout: Layout = Layout()
    reporting: Reporting | None = None
    wandb: Annotated[WandbPlan | None, Field(description="Where the metrics go beside the output; unset: nowhere.")] = (
        None
    )
    deadline: Deadline | None = None
    grace_seconds: Annotated[float, Field(description="How long the role may take to stop before it is killed.")] = 60.0
    publish_seconds: Annotated[
        float,
        Field(
            description="How long the role may take, at its deadline, to publish its last checkpoint before it is killed."
        ),
    ] = 30.0

    @property
    def training(self) -> TrainPlan | RlvrPlan | None:
        """What a trainer trains, whichever way; unset for any other role."""
        return self.train or self.rlvr

    @property
    def base(self) -> BaseRef:
        """The base model of a role that reads one."""
        if self.needed_base is None:
            raise ValueError("the run file has no base; the operator writes it")
        return self.needed_base

    def canonical(self) -> str:
        """Return the one JSON text whose digest the pod checks."""
        return self.model_dump_json(by_alias=True, exclude_none=True)


def digest_of(text: str) -> str:
    """Return the digest of a run file's text as the pod's environment names it."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
