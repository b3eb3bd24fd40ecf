"""Reconciles a Workspace, the one writer of its money: takes all that was asked for at the desk and decides it in one write."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from datetime import datetime

from halo_api.ledger import LedgerPageSpec
from halo_api.workspace import WORKSPACE, WorkspaceSpec, WorkspaceStatus
from halo_operator import metrics
from halo_operator.cluster import AlreadyExists, Cluster, Conflict, NotFound, Object, Rejected
from halo_operator.desk import Asked, Desk
from halo_operator.events import Recorder
from halo_operator.finalizers import adding, change, removing
from halo_operator.gather import Unreadable, meta_of, read
from halo_operator.plan.book.plan import plan_book
from halo_operator.plan.book.world import BookPlan, BookWorld
from halo_operator.plan.names import HOLD_FINALIZER
from halo_operator.plan.world import Note
from halo_operator.queue import Key

KIND = "Workspace"
RUN_KINDS = ("TrainingJob", "GrpoRun")
PAGE_NAME = re.compile(r"page-\d{9,}")

# Between two writes, so that runs which start together are held together; longer while runs wait for their first look.
PAUSE_SECONDS = 0.5
BUSY_PAUSE_SECONDS = 2.0
# Mending it wakes us at once.
UNREADABLE_SECONDS = 300.0
GONE_REMEMBERED = 10_000


class Workspaces:
    """Holds what the book's reconcile needs beside the key."""

    def __init__(
        self,
        cluster: Cluster,
        desk: Desk,
        recorder: Recorder,
        now: Callable[[], datetime],
        wake: Callable[[Key], None],
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`wake` has a run reconciled; `busy` says whether new runs wait, so that more wishes are about to come."""
        self._cluster = cluster
        self._desk = desk
        self._recorder = recorder
        self._now = now
        self._wake = wake
        self._busy = busy
        self._looked: set[str] = set()
        self._gone: dict[str, None] = {}
        self._wrote: dict[str, float] = {}

    def look_for_gone(self, namespace: str) -> None:
        """Have the next reconcile list the runs: no event tells of one that went while nobody watched."""
        self._looked.discard(namespace)

    def gone(self, namespace: str, uid: str) -> None:
        """Note that a run was deleted. Uids never come back, so that this stays true of wishes that come late."""
        self._gone[uid] = None
        while len(self._gone) > GONE_REMEMBERED:
            del self._gone[next(iter(self._gone))]
        self._wake(Key(KIND, namespace, WORKSPACE))

    async def __call__(self, key: Key) -> float | None:
        """Reconcile one Workspace; return when to look again."""
        if (pause := self._pause(key.namespace)) > 0:
            return pause
        # Asked, then read, then listed: every run that has a hold in what was read, or a wish in what was asked, was there
        # before the listing began, so that one which is not listed is gone. Any other order could settle the hold of a
        # live run: one that was made, and got its hold, between a listing and a later read.
        wanted, ended = self._desk.asked(key.namespace)
        body = await self._cluster.get(KIND, key.namespace, key.name)
        if body is None:
            self._close(key.namespace, (*wanted, *ended))
            return None
        listing = key.namespace not in self._looked
        self._looked.add(key.namespace)
        try:
            spec, status = read(WorkspaceSpec, body), read(WorkspaceStatus, body, "status")
            held = status.holds.keys() | {one.run.uid for one in wanted}
            runs = await self._runs(key.namespace, held, listing)
            page = await self._last_page(key.namespace, status)
            world = BookWorld(meta_of(body), spec, status, wanted, ended, runs, page)
            plan = plan_book(world, self._now())
            await self._apply(body, world, plan)
        except Unreadable as error:
            self._recorder.record(body, Note("Warning", error.refusal.reason, error.refusal.message))
            self._looked.discard(key.namespace)
            return UNREADABLE_SECONDS
        except Exception:
            if listing:
                self._looked.discard(key.namespace)
            raise
        return plan.requeue_after

    def _pause(self, namespace: str) -> float:
        pause = BUSY_PAUSE_SECONDS if self._busy() else PAUSE_SECONDS
        left = self._wrote.get(namespace, float("-inf")) + pause - time.monotonic()
        # It may become quiet before.
        return min(left, PAUSE_SECONDS)

    def _close(self, namespace: str, asked: tuple[Asked, ...]) -> None:
        """Forget a Workspace that is gone; runs look for themselves what that means to them."""
        self._desk.decided(namespace, asked)
        self._wrote.pop(namespace, None)
        self._looked.discard(namespace)
        metrics.no_book(namespace)
        for one in asked:
            self._wake(Key(one.run.kind, namespace, one.run.name))

    async def _runs(self, namespace: str, held: set[str], listing: bool) -> frozenset[str] | None:
        """Return the uids of the runs that are there, as far as they hold or want something; None where nobody looked."""
        if listing and held:
            lists = await asyncio.gather(*(self._cluster.list_meta(kind, namespace) for kind in RUN_KINDS))
            return frozenset(run["metadata"]["uid"] for found in lists for run in found)
        return frozenset(held - self._gone.keys()) if held & self._gone.keys() else None

    async def _last_page(self, namespace: str, status: WorkspaceStatus) -> LedgerPageSpec | None:
        """Return the newest page, which an earlier Workspace of the namespace may have left, while the book is empty."""
        if status.pages or status.entries:
            return None
        found = [page["metadata"]["name"] for page in await self._cluster.list_meta("LedgerPage", namespace)]
        newest = max(filter(PAGE_NAME.fullmatch, found), key=lambda name: (len(name), name), default=None)
        page = await self._cluster.get("LedgerPage", namespace, newest) if newest else None
        return read(LedgerPageSpec, page) if page else None

    async def _apply(self, body: Object, world: BookWorld, plan: BookPlan) -> None:
        """Carry out a plan in its order: a hold is never without the finalizer, a page is there before its entries go."""
        namespace = world.meta.namespace
        try:
            if plan.finalizer == "add":
                body = await change(self._cluster, body, adding(body, HOLD_FINALIZER))
            if plan.page is not None:
                await self._make_page(body, plan.page)
            if plan.status is not None:
                self._wrote[namespace] = time.monotonic()
                body = body | {"metadata": await self._cluster.write_status(body, plan.status.to_json())}
        except NotFound as error:
            raise Conflict(404, str(error)) from None
        metrics.book(namespace, plan.status or world.status)
        metrics.booked(world, plan)
        answered = {run.uid for run in plan.wake}
        asked: tuple[Asked, ...] = (*world.wanted, *world.ended)
        self._desk.decided(namespace, [one for one in asked if one.run.uid in answered])
        for run in plan.wake:
            self._wake(Key(run.kind, namespace, run.name))
        for note in plan.notes:
            self._recorder.record(body, note)
        if plan.finalizer == "remove":
            try:
                await change(self._cluster, body, removing(body, HOLD_FINALIZER))
            except NotFound:
                return

    async def _make_page(self, body: Object, page: Object) -> None:
        """Make a page, or find it made before a crash; a namespace that goes takes none, and keeps nothing anyway."""
        meta = page["metadata"]
        try:
            await self._cluster.create(page)
        except AlreadyExists:
            there = await self._cluster.get("LedgerPage", meta["namespace"], meta["name"])
            if there and read(LedgerPageSpec, there) == read(LedgerPageSpec, page):
                return
            words = f"LedgerPage {meta['name']}: found other entries than those of status.settled"
            now = await self._cluster.get(KIND, meta["namespace"], WORKSPACE)
            if now is None or there is None or _version(now) != _version(body):
                raise Conflict(409, words) from None
            # Looking again would find the same, as fast as we can look.
            words = f"{words}, as if the status were older than the page; nothing is settled until an administrator mends it"
            self._recorder.record(body, Note("Warning", "LedgerDiffers", words))
            raise Rejected(409, words) from None
        except Rejected as error:
            if not (error.status == 403 and "being terminated" in str(error)):
                raise


def _version(body: Object) -> str:
    return str(body["metadata"]["resourceVersion"])
