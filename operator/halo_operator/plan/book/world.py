"""What the plan of a Workspace's book looks at and decides, as frozen values; amounts are whole millionths of their unit."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from halo_api.ledger import LedgerPageSpec, Rate, RunRef
from halo_api.workspace import WorkspaceSpec, WorkspaceStatus
from halo_operator.plan.world import Meta, Note, Object

Unit = Literal["USD", "H100Hours"]


@dataclass(frozen=True)
class Wanted:
    """A hold that a run asks for; for a run that has one, the higher one of a raised budget."""

    run: RunRef
    created_at: datetime
    unit: Unit
    amount: int
    rate: Rate
    quoted: int | None = None


@dataclass(frozen=True)
class Ended:
    """A run that is over, with what it used in the unit of its hold: the hold becomes the charge."""

    run: RunRef
    used: int
    gpu_ms: int
    outcome: str
    judge_micro_usd: int | None = None
    receipt: str | None = None


@dataclass(frozen=True)
class BookWorld:
    """Everything that decides what happens next to a Workspace.

    `runs` are the uids of all runs of the namespace, None where they were not listed. `last_page` is the newest LedgerPage of
    the namespace, whichever Workspace wrote it; it is looked up while the status knows of no page.
    """

    meta: Meta
    spec: WorkspaceSpec
    status: WorkspaceStatus
    wanted: tuple[Wanted, ...] = ()
    ended: tuple[Ended, ...] = ()
    runs: frozenset[str] | None = None
    last_page: LedgerPageSpec | None = None


@dataclass(frozen=True)
class BookPlan:
    """What to do, in this order: add the finalizer, make `page`, write `status`, wake the runs, remove the finalizer."""

    status: WorkspaceStatus | None = None
    page: Object | None = None
    finalizer: Literal["add", "remove"] | None = None
    # Runs whose wish or end was decided: they look at the book again.
    wake: tuple[RunRef, ...] = ()
    notes: tuple[Note, ...] = ()
    requeue_after: float | None = None
    # For metrics: what was placed, refused (by unit) and charged.
    placed: tuple[Wanted, ...] = ()
    refused: tuple[Wanted, ...] = ()
    charged: tuple[Ended, ...] = field(default=())
