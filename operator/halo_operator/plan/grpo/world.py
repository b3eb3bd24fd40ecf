"""What the plan of a GrpoRun looks at, as frozen values: the run, the starts beside it, what its spec names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from halo_api.grpo_run import GrpoRunSpec
from halo_api.grpo_status import GrpoRunStatus
from halo_api.model_alias import ModelAliasSpec
from halo_operator.plan.world import AdapterEntry, BaseEntry, CriterionEntry, GpuEntry, Meta, WorkspaceEntry


@dataclass(frozen=True)
class Start:
    """Another GrpoRun of the namespace: when it was made, whether it was looked at, and whether it was let start."""

    uid: str
    created_at: datetime
    decided: bool = False
    limited: bool = False


@dataclass(frozen=True)
class Prompts:
    """What the run can draw its prompts from; `counted` is None while nothing of the kind is there, or it is being read; `why` says more."""

    counted: int | None = None
    why: str = ""


@dataclass(frozen=True)
class ServingAdapter:
    """An adapter of an earlier GrpoRun that answered some of the selected traffic."""

    name: str
    run: str
    published_at: datetime


@dataclass(frozen=True)
class AliasEntry:
    """A served name of the namespace."""

    name: str
    spec: ModelAliasSpec


@dataclass(frozen=True)
class GrpoCatalog:
    """What admission looks up, of all that a spec names; only read while a run is not accepted yet."""

    base: BaseEntry | None = None
    base_names: tuple[str, ...] = ()
    adapter: AdapterEntry | None = None
    workspace: WorkspaceEntry = field(default_factory=WorkspaceEntry)
    criteria: Mapping[str, CriterionEntry] = field(default_factory=dict)
    criterion_names: tuple[str, ...] = ()
    gpus: tuple[GpuEntry, ...] = ()
    alias: AliasEntry | None = None
    alias_names: tuple[str, ...] = ()
    traffic: Prompts = Prompts()
    candidates: Prompts = Prompts()
    tasks: Prompts = Prompts()
    served_by: tuple[ServingAdapter, ...] = ()


@dataclass(frozen=True)
class GrpoWorld:
    """Everything that decides what happens next to a GrpoRun."""

    meta: Meta
    created_at: datetime
    spec: GrpoRunSpec
    status: GrpoRunStatus = field(default_factory=GrpoRunStatus)
    starts: tuple[Start, ...] = ()
    catalog: GrpoCatalog = GrpoCatalog()
    # How long it waits already for its Workspace to decide about its hold.
    asked_seconds: float = 0.0
