"""A namespace whose runs cost money: its Workspace, runs and pods as an API server keeps them, and the operator's hands.

Whatever the operator does is a generator that stops before each read and write, so that a test can let anything happen in
between, or let the operator die there.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from halo_api.adapter import AdapterSpec
from halo_api.ledger import LedgerEntry, LedgerPageSpec
from halo_api.report import Deadline, Report
from halo_api.run_file import CA_ANNOTATION, DEADLINE_ANNOTATION
from halo_api.training_job import TrainingJobSpec, TrainingJobStatus
from halo_api.workspace import WorkspaceSpec, WorkspaceStatus
from halo_operator.desk import Desk
from halo_operator.plan import names
from halo_operator.plan.book.plan import plan_book
from halo_operator.plan.book.world import BookWorld
from halo_operator.plan.claim import raise_of
from halo_operator.plan.moves import clear
from halo_operator.plan.pod_view import all_of
from halo_operator.plan.run import is_terminal, plan_run
from halo_operator.plan.world import (
    AdapterEntry,
    Catalog,
    CaUpdate,
    Environment,
    GpuEntry,
    Meta,
    Note,
    Object,
    Plan,
    RunWorld,
    WorkspaceEntry,
)
from tests.unit.builders import ENVIRONMENT, catalog, gpu, seconds, spec
from tests.unit.builders_nodes import Nodes

# A GPU hour is 3.6 USD, so that a second is 0.001 USD.
PRICES = [{"region": "eu", "usdPerHour": 3, "markup": 1.2}]
Steps = Generator[str, None, None]


class Conflict(Exception):
    """Somebody else wrote first, or the object is gone."""


@dataclass
class Run:
    """A TrainingJob as it is stored."""

    meta: Meta
    spec: TrainingJobSpec
    status: TrainingJobStatus = field(default_factory=lambda: TrainingJobStatus(observed_generation=-1))
    version: int = 0


@dataclass
class Book:
    """The Workspace as it is stored."""

    meta: Meta
    spec: WorkspaceSpec
    status: WorkspaceStatus = field(default_factory=WorkspaceStatus)
    version: int = 0


class Namespace(Nodes):
    """One namespace, and the operator that looks after it."""

    def __init__(self, usd: float | None = None, hours: float | None = None) -> None:
        super().__init__()
        # How much the operator's clock is ahead of the true one.
        self.skew = 0.0
        self.gpu = gpu(prices=PRICES, perNode=1)
        self.has_base = True
        self.runs: dict[str, Run] = {}
        self.book: Book | None = None
        self.pages: list[LedgerPageSpec] = []
        self.reports: dict[str, Report] = {}
        self.adapters: dict[str, str] = {}
        self.specs: dict[str, AdapterSpec] = {}
        # Whether pods that publish run and end well as soon as they are made.
        self.publishes = True
        self.notes: list[Note] = []
        self.asked_seconds: float | None = None
        self.grant(usd, hours)
        self.restart()

    # The operator

    def restart(self) -> None:
        """The operator dies, and another one starts: all that it only remembered is lost."""
        tick = itertools.count()
        self.desk = Desk(lambda key: None, lambda: next(tick) * 0.001)
        self.listed = False
        self.gone: set[str] = set()

    @property
    def now(self) -> datetime:
        """The time as the operator has it."""
        return self.time + seconds(self.skew)

    def look(self, *names_: str) -> Plan[Any] | None:
        """The operator looks at these runs, to the end; returns the last plan."""
        for name in names_:
            for _ in self.reconcile(name):
                pass
        return self.last

    def count(self) -> None:
        """The operator looks at the Workspace, to the end."""
        for _ in self.reconcile_book():
            pass

    def settle_down(self, rounds: int = 12) -> None:
        """The operator looks at everything until nothing changes any more."""
        for _ in range(rounds):
            before = self.snapshot()
            self.look(*self.runs)
            if self.publishes:
                self.publish()
            self.count()
            self.look(*self.runs)
            if self.snapshot() == before:
                return
        raise AssertionError("it never comes to rest")

    def snapshot(self) -> object:
        """Return all that is stored."""
        runs = {name: (run.meta, run.spec, run.status) for name, run in self.runs.items()}
        book = self.book and (self.book.meta, self.book.spec, self.book.status)
        return runs, book, tuple(self.pages), deepcopy(self.pods), dict(self.adapters)

    last: Plan[Any] | None = None

    def world(self, run: Run) -> RunWorld:
        """Return what the operator sees of a run, but not of its Workspace."""
        uid = run.meta.uid
        mine = [pod for pod in self.pods.values() if pod["metadata"]["labels"][names.RUN_LABEL] == uid]
        # A node that is silent was last heard of when it became silent.
        signs = {t.uid: t.end for pod in mine if (t := self.truth[pod["metadata"]["uid"]]).silent and t.end}
        asked = self.desk.seconds("team", uid) if self.asked_seconds is None else self.asked_seconds
        views = all_of(mine, self.now, signs)
        found = Catalog()
        if any(view.ended for view in views) and run.meta.name in self.adapters:
            found = Catalog(
                adapter=AdapterEntry(run.meta.name, self.adapters[run.meta.name], self.specs[run.meta.name])
            )
        return RunWorld(run.meta, run.spec, run.status, views, self.environment, found, self.reports.get(uid), asked)

    environment: Environment = ENVIRONMENT

    def entry(self) -> WorkspaceEntry:
        """Return the Workspace as a run's look has it."""
        book = self.book
        return WorkspaceEntry() if book is None else WorkspaceEntry(True, book.spec, book.status, book.meta.deleting)

    def reconcile(self, name: str) -> Steps:
        """Look at one run: it stops before each read and write."""
        self.last = None
        if name not in self.runs:
            return
        run = replace(self.runs[name])
        world = self.world(run)
        over = run.meta.deleting or is_terminal(run.status)
        if run.status.frozen is None and not over:
            yield "catalog"
            base = {} if self.has_base else {"base": None}
            world = replace(world, catalog=catalog(gpu=GpuEntry("h100", self.gpu), workspace=self.entry(), **base))
        elif (over and (names.HOLD_FINALIZER in run.meta.finalizers or run.status.hold)) or raise_of(world):
            yield "workspace"
            world = replace(world, catalog=replace(world.catalog, workspace=self.entry()))
        plan = plan_run(world, self.now)
        try:
            yield from self.carry_out(run, plan)
        except Conflict:
            return
        self.last = plan

    def carry_out(self, run: Run, plan: Plan[TrainingJobStatus]) -> Steps:
        """Do what a plan says in its order."""
        name = run.meta.name
        if plan.finalizer == "add":
            yield "finalizer"
            there = self.same(run)
            if there.meta.deleting:
                raise Conflict
            self.written(there, meta=replace(there.meta, finalizers=(*there.meta.finalizers, names.HOLD_FINALIZER)))
            run = replace(there)
        for child in plan.first:
            yield "first"
            if child["kind"] == "Adapter":
                self.specs.setdefault(name, AdapterSpec.model_validate(child["spec"]))
                if self.adapters.setdefault(name, run.meta.uid) != run.meta.uid:
                    raise Conflict
        if plan.status is not None:
            yield "status"
            self.written(self.same(run), status=plan.status)
        for ref in plan.delete:
            yield "delete"
            self.delete_pod(ref.uid)
        for ref in plan.expel:
            yield "expel"
            self.delete_pod(ref.uid, grace=10)
        for ref in plan.release:
            yield "release"
            if ref.uid in self.pods:
                self.pods[ref.uid]["metadata"]["finalizers"] = []
                self.collect()
        for update in plan.update:
            yield "update"
            if update.ref.uid in self.pods:
                notes = self.pods[update.ref.uid]["metadata"]["annotations"]
                if isinstance(update, CaUpdate):
                    notes[CA_ANNOTATION] = update.bundle
                else:
                    notes[DEADLINE_ANNOTATION] = update.deadline.canonical()
        for child in plan.create:
            yield "create"
            self.create_pod(child)
        self.notes += plan.notes
        if plan.ask is not None:
            self.desk.ask("team", plan.ask)
        if plan.finalizer == "remove" and plan.status is None:
            yield "let go"
            there = self.runs.get(name)
            if there and there.meta.uid == run.meta.uid and names.HOLD_FINALIZER in there.meta.finalizers:
                self.written(there, meta=replace(there.meta, finalizers=()))

    def same(self, run: Run) -> Run:
        """Return the stored run if nobody wrote it since it was read."""
        there = self.runs.get(run.meta.name)
        if there is None or (there.meta.uid, there.version) != (run.meta.uid, run.version):
            raise Conflict
        return there

    def written(self, run: Run, **changes: Any) -> None:
        """Store a change of a run; one that is being deleted and has no finalizer goes, and its pods after it."""
        for key, value in changes.items():
            setattr(run, key, value)
        run.version += 1
        if run.meta.deleting and not run.meta.finalizers:
            del self.runs[run.meta.name]
            self.gone.add(run.meta.uid)
            for uid in [uid for uid, pod in self.pods.items() if self.owner(pod) == run.meta.uid]:
                self.delete_pod(uid)

    def reconcile_book(self) -> Steps:
        """Look at the Workspace, as the operator does: asked, then read, then listed."""
        wanted, ended = self.desk.asked("team")
        yield "read"
        if self.book is None:
            self.desk.decided("team", (*wanted, *ended))
            self.listed = False
            return
        book = replace(self.book)
        held = book.status.holds.keys() | {one.run.uid for one in wanted}
        yield "list"
        runs = None
        if not self.listed and held:
            runs = frozenset(run.meta.uid for run in self.runs.values())
        elif held & self.gone:
            runs = frozenset(held - self.gone)
        self.listed = True
        last = self.pages[-1] if self.pages and not (book.status.pages or book.status.entries) else None
        plan = plan_book(BookWorld(book.meta, book.spec, book.status, wanted, ended, runs, last), self.now)
        if plan.finalizer == "add":
            yield "finalizer"
            if not self.same_book(book):
                return
            self.book.meta = replace(self.book.meta, finalizers=(names.HOLD_FINALIZER,))
            self.book.version += 1
            book = replace(self.book)
        if plan.page is not None:
            yield "page"
            page = LedgerPageSpec.model_validate(plan.page["spec"])
            if page.page <= len(self.pages):
                assert self.pages[page.page - 1] == page, "a page is made again as it was"
            else:
                self.pages.append(page)
        if plan.status is not None:
            yield "status"
            if not self.same_book(book):
                return
            self.book.status = plan.status
            self.book.version += 1
        answered = {run.uid for run in plan.wake}
        self.desk.decided("team", [one for one in (*wanted, *ended) if one.run.uid in answered])
        self.notes += plan.notes
        if plan.finalizer == "remove":
            yield "let go"
            if self.book and self.book.meta.uid == book.meta.uid:
                assert self.book.meta.deleting
                self.book = None

    def same_book(self, book: Book) -> bool:
        """Whether the Workspace is as it was read."""
        there = self.book
        return there is not None and (there.meta.uid, there.version) == (book.meta.uid, book.version)

    # People

    def grant(self, usd: float | None = None, hours: float | None = None) -> None:
        """Make the Workspace, or change what it is granted."""
        facts: Object = {} if usd is None else {"wallet": {"creditUsd": usd}}
        facts |= {} if hours is None else {"allocation": {"h100Hours": hours}}
        if self.book is None:
            uid = f"workspace-{next(self.ids)}"
            self.book = Book(Meta("Workspace", "team", "workspace", uid, 1), WorkspaceSpec.model_validate(facts))
        else:
            self.book.spec = WorkspaceSpec.model_validate(facts)
            self.book.meta = replace(self.book.meta, generation=self.book.meta.generation + 1)
            self.book.version += 1

    def delete_book(self) -> None:
        """Delete the Workspace; without a finalizer it is gone at once."""
        if self.book:
            self.book.meta = replace(self.book.meta, deleting=True)
            self.book.version += 1
            if not self.book.meta.finalizers:
                self.book = None

    def submit(self, name: str, budget: float | None = None, count: int = 1, **changes: Any) -> Run:
        """Make a run."""
        if budget is not None:
            changes["budget"] = {"h100Hours": budget}
        number = next(self.ids)
        made = Meta("TrainingJob", "team", name, f"{name}-{number}", 1, created_at=self.time)
        asked = spec(gpu={"type": "h100", "count": count}, **changes)
        self.runs[name] = Run(made, asked)
        return self.runs[name]

    def edit(self, name: str, **changes: Any) -> None:
        """Change a run's spec."""
        run = self.runs[name]
        facts = run.spec.model_dump(by_alias=True, exclude_none=True) | changes
        generation = replace(run.meta, generation=run.meta.generation + 1)
        self.written(run, spec=TrainingJobSpec.model_validate(facts), meta=generation)

    def delete(self, name: str) -> None:
        """Delete a run."""
        self.written(self.runs[name], meta=replace(self.runs[name].meta, deleting=True))

    # Pods

    def of(self, name: str, role: str = "trainer", attempt: int | None = None) -> list[Object]:
        """Return a run's pods of that role by their rank, of its current attempt."""
        run = self.runs[name]
        number = str(attempt or run.status.attempt)
        found = [pod for pod in self.pods.values() if self.is_of(pod, run.meta.uid, role, number)]
        return sorted(found, key=lambda pod: int(pod["metadata"]["labels"][names.RANK_LABEL]))

    def push(self, name: str, **facts: Any) -> None:
        """A pod's report reaches the operator."""
        run = self.runs[name]
        self.reports[run.meta.uid] = Report(run_uid=run.meta.uid, attempt=run.status.attempt or 1, **facts)

    def deadline(self, pod: Object) -> Deadline:
        """Return the deadline that a pod can read."""
        return Deadline.model_validate_json(pod["metadata"]["annotations"][DEADLINE_ANNOTATION])

    # What is true

    def entries(self) -> list[LedgerEntry]:
        """Return the whole book."""
        status = self.book.status if self.book else WorkspaceStatus()
        paged = self.pages if status.observed_generation is None else self.pages[: status.pages or 0]
        return [entry for page in paged for entry in page.entries] + status.settled

    def orphans(self) -> Steps:
        """Look at the pods of runs that are gone: they stop, and are let go of once they ended."""
        there = {run.meta.uid for run in self.runs.values()}
        left = [pod for pod in self.pods.values() if pod["metadata"]["labels"][names.RUN_LABEL] not in there]
        plan = clear(all_of(left, self.now))
        for ref in plan.delete:
            yield "delete"
            self.delete_pod(ref.uid)
        for ref in plan.release:
            yield "release"
            if ref.uid in self.pods:
                self.pods[ref.uid]["metadata"]["finalizers"] = []
                self.collect()
