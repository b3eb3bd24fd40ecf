"""Settles holds: each becomes the charge for what was used, and what is left of it is free in the same write."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from halo_api.ledger import LedgerEntry
from halo_api.workspace import WorkspaceHold
from halo_operator.plan import money
from halo_operator.plan.book.sums import MOST_SETTLED, Book
from halo_operator.plan.book.world import Ended
from halo_operator.plan.conditions import stamp

RUN_GONE = "RunGone"


@dataclass
class Settling:
    """What came of the ends: charged, found without a hold, left until a page has taken entries; and holds of runs that are gone."""

    charged: list[Ended] = field(default_factory=list)
    known: list[Ended] = field(default_factory=list)
    lost: list[WorkspaceHold] = field(default_factory=list)
    later: list[Ended] = field(default_factory=list)


def settle(book: Book, ended: tuple[Ended, ...], runs: frozenset[str] | None, now: datetime) -> Settling:
    """Charge the ends in their order, then close the holds of runs that are gone and of which nobody says what they used."""
    result = Settling()
    for end in ended:
        hold = book.holds.get(end.run.uid)
        if hold is None:
            result.known.append(end)
        elif len(book.settled) >= MOST_SETTLED:
            result.later.append(end)
        else:
            enter(book, hold, end, now)
            result.charged.append(end)
    said = {end.run.uid for end in ended}
    for uid in [] if runs is None else sorted(book.holds.keys() - runs - said):
        end = Ended(run=book.holds[uid].run, used=0, gpu_ms=0, outcome=RUN_GONE)
        if len(book.settled) >= MOST_SETTLED:
            result.later.append(end)
        else:
            result.lost.append(book.holds[uid])
            enter(book, book.holds[uid], end, now)
    return result


def enter(book: Book, hold: WorkspaceHold, end: Ended, now: datetime) -> None:
    """Write the entry, raise what is spent, and close the hold; what was used above it is reported and never charged."""
    held = money.micro(hold.amount) if end.held is None else min(end.held, money.micro(hold.amount))
    charge = min(end.used, held)
    book.entries += 1
    book.settled.append(
        LedgerEntry(
            sequence=book.entries,
            run=hold.run,
            unit=hold.unit,
            rate=hold.rate,
            quoted=hold.quoted,
            held=money.usd(held),
            used=money.usd(end.used),
            charged=money.usd(charge),
            overrun=money.usd(end.used - charge),
            judge_usd=None if end.judge_micro_usd is None else money.usd(end.judge_micro_usd),
            gpu_seconds=money.seconds(end.gpu_ms),
            outcome=end.outcome,
            receipt=end.receipt,
            placed_at=hold.placed_at,
            settled_at=stamp(now),
        )
    )
    book.spent[hold.unit] += charge
    book.drop(end.run.uid)
