"""What a plan looks at (World) and what it decides (Plan), as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Generic, Literal, TypeVar

from halo_api.adapter import AdapterSpec, AdapterStatus
from halo_api.catalog import BaseModelSpec
from halo_api.criterion import CriterionSpec, CriterionStatus
from halo_api.dataset import DatasetSpec, DatasetStatus
from halo_api.environment import EnvironmentSpec, EnvironmentStatus
from halo_api.gpu_class import GpuClassSpec
from halo_api.recipe import RecipeSpec
from halo_api.report import Deadline, Outcome, Report
from halo_api.training_job import TrainingJobSpec, TrainingJobStatus
from halo_api.workspace import WorkspaceSpec, WorkspaceStatus
from halo_operator.plan.wishes import Ended, Wanted

Object = dict[str, Any]
StatusT = TypeVar("StatusT")


@dataclass(frozen=True)
class Meta:
    """The identity of the object that is reconciled."""

    kind: str
    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str = ""
    deleting: bool = False
    finalizers: tuple[str, ...] = ()
    created_at: datetime | None = None


@dataclass(frozen=True)
class PodRef:
    """Exactly one pod object."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class PodView:
    """What a plan needs to know of a pod; `ended` means that its containers cannot run any more."""

    ref: PodRef
    owner_uid: str | None
    role: str
    attempt: int
    rank: int
    phase: str
    created_at: datetime
    # Of a rollout server: which of its pods in the attempt; and whether it can sample with the policy that was announced.
    incarnation: int = 1
    ready: bool = False
    bound_at: datetime | None = None
    finished_at: datetime | None = None
    deleting_since: datetime | None = None
    running: bool = False
    ended: bool = False
    outcome: Outcome | None = None
    blocked: str | None = None
    blocked_reason: Literal["Unschedulable", "ImagePullFailed", "PodRejected"] | None = None
    metered: bool = False
    ca: str | None = None
    base_model: str | None = None
    base_revision: str | None = None
    node: str | None = None
    # Bound to a node that tells no more of it: when it ended is known from other signs only.
    lost: bool = False
    # How many seconds the node's clock is ahead of the API server's.
    clock_offset: float = 0.0
    deadline: Deadline | None = None
    # By its label, which only the operator may set: an orphaning delete takes the owner away, not this.
    run_uid: str | None = None
    # Of its own container: what was asked for, and what its node resolved that to.
    image: str | None = None
    image_pull_policy: str | None = None
    image_id: str | None = None


@dataclass(frozen=True)
class Environment:
    """What the installation decides, not the object."""

    trainer_image: str
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"]
    artifacts_claim: str
    report_url: str
    ca_bundle: str
    operator_version: str
    start_timeout_seconds: int
    rollout_image: str = ""
    rollout_image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"


@dataclass(frozen=True)
class BaseEntry:
    """A catalog entry with its name."""

    name: str
    spec: BaseModelSpec


@dataclass(frozen=True)
class GpuEntry:
    """A GPU class with its name."""

    name: str
    spec: GpuClassSpec


@dataclass(frozen=True)
class DatasetEntry:
    """A data set of the run's namespace."""

    name: str
    generation: int
    spec: DatasetSpec
    status: DatasetStatus


@dataclass(frozen=True)
class AdapterEntry:
    """An adapter of the run's namespace, and which run made it."""

    name: str
    run_uid: str | None
    spec: AdapterSpec | None = None


@dataclass(frozen=True)
class Verdict:
    """What a condition says of the object as it is now; Unknown where nobody has looked yet."""

    status: Literal["True", "False", "Unknown"] = "Unknown"
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class ParentEntry:
    """The adapter that a run continues, and whether its receipt and files were found right."""

    name: str
    spec: AdapterSpec
    verified: Verdict = Verdict()
    status: AdapterStatus = field(default_factory=AdapterStatus)


@dataclass(frozen=True)
class RecipeEntry:
    """A frozen recipe, with its file and the digest of it."""

    name: str
    digest: str
    spec: RecipeSpec
    text: str = ""


@dataclass(frozen=True)
class EnvironmentEntry:
    """An environment revision; `public` where it lies in the operator's own namespace."""

    name: str
    spec: EnvironmentSpec
    status: EnvironmentStatus = field(default_factory=EnvironmentStatus)
    qualified: Verdict = Verdict()
    public: bool = False


@dataclass(frozen=True)
class CriterionEntry:
    """A rubric judge's criterion, as it was calibrated."""

    name: str
    spec: CriterionSpec
    status: CriterionStatus = field(default_factory=CriterionStatus)
    calibrated: Verdict = Verdict()
    drifted: Verdict = Verdict()


@dataclass(frozen=True)
class WorkspaceEntry:
    """The run's namespace as its Workspace has it; the defaults are what a namespace without one gets."""

    exists: bool = False
    spec: WorkspaceSpec = field(default_factory=WorkspaceSpec)
    status: WorkspaceStatus = field(default_factory=WorkspaceStatus)
    deleting: bool = False

    @property
    def free_usd(self) -> Decimal | None:
        """What the wallet can still hold; None without one. Not status.balance, which lags behind a credit that was just changed."""
        if self.spec.wallet is None:
            return None
        used = Decimal(self.status.held or 0) + Decimal(self.status.spent or 0)
        return Decimal(repr(self.spec.wallet.credit_usd)) - used

    @property
    def free_h100_hours(self) -> Decimal | None:
        """What the shared allocation can still hold; None without one."""
        if self.spec.allocation is None:
            return None
        use = self.status.allocation
        used = Decimal(use.held) + Decimal(use.spent) if use else Decimal(0)
        return Decimal(repr(self.spec.allocation.h100_hours)) - used


@dataclass(frozen=True)
class Catalog:
    """What admission looks up, of all that a spec names; only read while a run is not accepted yet."""

    base: BaseEntry | None = None
    base_names: tuple[str, ...] = ()
    gpu: GpuEntry | None = None
    gpu_names: tuple[str, ...] = ()
    dataset: DatasetEntry | None = None
    adapter: AdapterEntry | None = None
    workspace: WorkspaceEntry = field(default_factory=WorkspaceEntry)
    parent: ParentEntry | None = None
    recipe: RecipeEntry | None = None
    recipe_names: tuple[str, ...] = ()
    environment: EnvironmentEntry | None = None
    warmup: EnvironmentEntry | None = None
    retention: EnvironmentEntry | None = None
    criterion: CriterionEntry | None = None


@dataclass(frozen=True)
class RunWorld:
    """Everything that decides what happens next to a TrainingJob."""

    meta: Meta
    spec: TrainingJobSpec
    status: TrainingJobStatus
    pods: tuple[PodView, ...]
    environment: Environment
    catalog: Catalog = Catalog()
    report: Report | None = None
    # How long it waits already for its Workspace to decide about its hold.
    asked_seconds: float = 0.0


@dataclass(frozen=True)
class DatasetWorld:
    """Everything that decides what happens next to a Dataset."""

    meta: Meta
    spec: DatasetSpec
    status: DatasetStatus
    pods: tuple[PodView, ...]
    environment: Environment
    bases: dict[str, BaseModelSpec] = field(default_factory=dict)
    base_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Note:
    """One event to record."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    action: str = "Reconcile"


@dataclass(frozen=True)
class CaUpdate:
    """A live pod whose CA bundle must be renewed before the new CA serves."""

    ref: PodRef
    bundle: str


@dataclass(frozen=True)
class DeadlineUpdate:
    """A live pod that must learn of another deadline."""

    ref: PodRef
    deadline: Deadline


@dataclass(frozen=True)
class Plan(Generic[StatusT]):
    """What to do, in this order: add the finalizer, make `first`, write `status`, delete, release, update, create, record,
    ask the Workspace, remove the finalizer.

    `first` are objects that the status will speak of (an Adapter); `create` are pods whose attempt the status names before
    they exist; `release` are pods whose times and outcome the status now keeps, so that their finalizer can go; `expel` are
    pods that are out of time: they are killed within seconds. `ask` is what the Workspace shall hold or settle for the run.
    """

    status: StatusT | None = None
    first: tuple[Object, ...] = ()
    create: tuple[Object, ...] = ()
    delete: tuple[PodRef, ...] = ()
    release: tuple[PodRef, ...] = ()
    expel: tuple[PodRef, ...] = ()
    update: tuple[CaUpdate | DeadlineUpdate, ...] = ()
    finalizer: Literal["add", "remove"] | None = None
    ask: Wanted | Ended | None = None
    # What the receipt of the Adapter in `first` says, to be signed and put beside it.
    statement: Object | None = None
    notes: tuple[Note, ...] = ()
    requeue_after: float | None = None
