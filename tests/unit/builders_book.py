"""Worlds for tests of a Workspace's book, and the operator's hands: what a plan says is done in its order, also up to a crash."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from halo_api.ledger import LedgerPageSpec, Rate, RunRef
from halo_api.workspace import WorkspaceSpec, WorkspaceStatus
from halo_operator.plan import money
from halo_operator.plan.book.plan import plan_book
from halo_operator.plan.book.world import BookPlan, BookWorld
from halo_operator.plan.wishes import Ended, Unit, Wanted
from halo_operator.plan.world import Meta
from tests.unit.builders import NOW

RATE = Rate(gpu_class="h100", region="eu-west", usd_per_hour="2.5", markup="1.2", h100_equivalent="1")
FINALIZER = "halo.training/hold"


def run(name: str) -> RunRef:
    return RunRef(kind="TrainingJob", name=name, uid=f"uid-of-{name}")


def wish(name: str, amount: float | str, unit: Unit = "USD", age: int = 0, **changes: Any) -> Wanted:
    """A run's wish; `age` is how many seconds it is older than others."""
    found = Wanted(run(name), NOW - timedelta(seconds=age), unit, money.micro(amount), RATE)
    return replace(found, **changes)


def end(name: str, used: float | str, outcome: str = "Succeeded", **changes: Any) -> Ended:
    return replace(Ended(run(name), money.micro(used), 3_600_000, outcome), **changes)


def granted(usd: float | None = None, hours: float | None = None) -> WorkspaceSpec:
    wallet = {} if usd is None else {"wallet": {"creditUsd": usd}}
    return WorkspaceSpec.model_validate(wallet | ({} if hours is None else {"allocation": {"h100Hours": hours}}))


def book_world(usd: float | None = 100, hours: float | None = None, **changes: Any) -> BookWorld:
    meta = Meta("Workspace", "team", "workspace", "workspace-1", 1)
    return replace(BookWorld(meta, granted(usd, hours), WorkspaceStatus()), **changes)


class Books:
    """A namespace with one Workspace and its pages, as the API server keeps them."""

    def __init__(self, usd: float | None = 100, hours: float | None = None) -> None:
        self.world = book_world(usd, hours)
        self.pages: list[LedgerPageSpec] = []
        self.now: datetime = NOW
        self.writes = 0

    @property
    def status(self) -> WorkspaceStatus:
        return self.world.status

    def look(self, *asked: Wanted | Ended, runs: frozenset[str] | None = None, until: int = 9) -> BookPlan:
        """Plan what was asked and do at most `until` of it, in the order that a plan is carried out in."""
        world = replace(
            self.world,
            wanted=tuple(a for a in asked if isinstance(a, Wanted)),
            ended=tuple(a for a in asked if isinstance(a, Ended)),
            runs=runs,
            last_page=self.pages[-1] if self.pages and not self.status.pages else None,
        )
        plan = plan_book(world, self.now)
        for step in (self._add, self._page, self._status, self._remove)[:until]:
            step(plan)
        return plan

    def change(self, **changes: Any) -> None:
        """Change the Workspace's metadata, or its spec."""
        spec = changes.pop("spec", self.world.spec)
        self.world = replace(self.world, spec=spec, meta=replace(self.world.meta, **changes))

    def recreate(self) -> None:
        """The Workspace is gone and made again: a new uid, and nothing in its status."""
        uid = f"{self.world.meta.uid}+"
        self.world = replace(self.world, status=WorkspaceStatus())
        self.change(uid=uid, deleting=False, finalizers=())

    def _add(self, plan: BookPlan) -> None:
        if plan.finalizer == "add":
            assert not self.world.meta.deleting, "the API server refuses that"
            self.change(finalizers=(FINALIZER,))

    def _page(self, plan: BookPlan) -> None:
        if plan.page is None:
            return
        spec = LedgerPageSpec.model_validate(plan.page["spec"])
        if spec.page <= len(self.pages):
            assert self.pages[spec.page - 1] == spec, "a page that is there is the same"
            return
        assert plan.page["metadata"]["name"] == f"page-{len(self.pages) + 1:09d}"
        self.pages.append(spec)

    def _status(self, plan: BookPlan) -> None:
        if plan.status is not None:
            # As it comes back from the API server, with every bound of the model.
            self.world = replace(self.world, status=WorkspaceStatus.model_validate(plan.status.to_json()))
            self.writes += 1

    def _remove(self, plan: BookPlan) -> None:
        if plan.finalizer == "remove":
            assert not self.status.holds, "it waits for every hold"
            assert not self.status.settled, "it goes only when everything is in a page"
            self.change(finalizers=())
