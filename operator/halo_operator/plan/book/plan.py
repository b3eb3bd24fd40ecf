"""Plans a Workspace's book: all that was asked since the last look, decided in one status.

Whatever was asked twice, in any order, or again after a crash, is held once and charged once: a hold is keyed by the uid of
its run, an end without a hold was charged before, and a page is only ever made of what a status says already.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from halo_api.conditions import ConditionType, Reason, is_true
from halo_api.ledger import LedgerPageSpec, RunRef
from halo_api.workspace import WorkspaceHold, WorkspaceStatus
from halo_operator.plan import conditions, names
from halo_operator.plan.book.facts import facts, overdrawn, waiting
from halo_operator.plan.book.pages import due_page, go_on, page_name, page_object, turn
from halo_operator.plan.book.place import Placing, place
from halo_operator.plan.book.settle import settle
from halo_operator.plan.book.sums import Book, allocation_use, opened, usd_columns
from halo_operator.plan.book.world import BookPlan, BookWorld
from halo_operator.plan.world import Note

T = ConditionType


def plan_book(world: BookWorld, now: datetime) -> BookPlan:
    """Return what to do next. Ends come before wishes: what they release is free for them."""
    meta = world.meta
    book = opened(world)
    if world.last_page is not None and not book.entries and not book.pages:
        go_on(book, world.last_page)
    page = due_page(book, meta)
    if page is not None:
        turn(book, page)
    ends = settle(book, world.ended, world.runs, now)
    # Where a run both asked for a hold and ended, the end is the later word, also while it waits for its page.
    said = {end.run.uid for end in world.ended}
    wishes = place(
        book, [wish for wish in world.wanted if wish.run.uid not in said], over(world, book), meta.deleting, now
    )
    status = status_of(world, book, wishes, now)
    more = ends.later or due_page(book, meta) is not None
    return BookPlan(
        status=None if status == world.status else status,
        page=page_object(page, meta) if page else None,
        finalizer=finalizer(world, book),
        wake=each_once([end.run for end in ends.charged + ends.known] + [wish.run for wish in wishes.decided]),
        notes=(*page_notes(page), *lost_notes(ends.lost), *overdrawn_notes(world, book)),
        requeue_after=0.0 if more else None,
        placed=tuple(wishes.placed),
        refused=tuple(wishes.refused),
        charged=tuple(ends.charged),
    )


def over(world: BookWorld, book: Book) -> set[str]:
    """Return the uids of runs that were charged already, and of those that ask and are gone: a late wish holds nothing for them."""
    settled = {entry.run.uid for entry in (*world.status.settled, *book.settled)}
    if world.last_page is not None:
        settled |= {entry.run.uid for entry in world.last_page.entries}
    asking = {wish.run.uid for wish in world.wanted}
    return settled | (asking - world.runs if world.runs is not None else set())


def status_of(world: BookWorld, book: Book, wishes: Placing, now: datetime) -> WorkspaceStatus:
    """Return the status that says the book."""
    deleting, found = world.meta.deleting, facts(book, world.meta.deleting)
    types = (T.READY, *((T.OVERDRAWN,) if T.OVERDRAWN in found else ()))
    return WorkspaceStatus(
        observed_generation=world.meta.generation,
        conditions=conditions.update(world.status.conditions, found, world.meta.generation, now, types),
        **usd_columns(book),
        allocation=allocation_use(book),
        holds=book.holds,
        settled=book.settled,
        entries=book.entries or None,
        pages=book.pages or None,
        page_digest=book.digest,
        waiting=waiting(book, deleting, full=bool(wishes.later)),
    )


def finalizer(world: BookWorld, book: Book) -> Literal["add", "remove"] | None:
    """Add it before the first thing that needs it; take it off only when the Workspace goes and everything is in a page."""
    there, needed = names.HOLD_FINALIZER in world.meta.finalizers, bool(book.holds or book.settled)
    if needed and not there and not world.meta.deleting:
        return "add"
    if there and not needed and world.meta.deleting:
        return "remove"
    return None


def each_once(runs: Iterable[RunRef]) -> tuple[RunRef, ...]:
    return tuple({run.uid: run for run in runs}.values())


def page_notes(page: LedgerPageSpec | None) -> list[Note]:
    if page is None:
        return []
    first, last = page.entries[0].sequence, page.entries[-1].sequence
    return [Note("Normal", "PageWritten", f"entries {first} to {last} are in LedgerPage {page_name(page.page)}")]


def lost_notes(lost: Iterable[WorkspaceHold]) -> list[Note]:
    return [
        Note(
            "Warning",
            "HoldLost",
            f"{hold.run.kind} {hold.run.name} is gone and nothing says what it used: its hold of {hold.amount} {hold.unit} "
            "is released, and nothing is charged",
        )
        for hold in lost
    ]


def overdrawn_notes(world: BookWorld, book: Book) -> list[Note]:
    words = overdrawn(book)
    if not words or is_true(world.status.conditions, T.OVERDRAWN):
        return []
    return [Note("Warning", Reason.OVERDRAWN, words)]
