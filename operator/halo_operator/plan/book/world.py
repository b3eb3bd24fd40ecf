"""What the plan of a Workspace's book looks at and decides, as frozen values; amounts are whole millionths of their unit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from halo_api.ledger import LedgerPageSpec, RunRef
from halo_api.workspace import WorkspaceSpec, WorkspaceStatus
from halo_operator.plan.wishes import Ended as Ended
from halo_operator.plan.wishes import Unit as Unit
from halo_operator.plan.wishes import Wanted as Wanted
from halo_operator.plan.world import Meta, Note, Object


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
