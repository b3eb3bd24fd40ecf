"""Places and raises holds, oldest run first, as far as the balance goes: nothing is held that is not free."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from halo_api.workspace import WorkspaceHold
from halo_operator.plan import money
from halo_operator.plan.book.sums import MOST_HOLDS, Book
from halo_operator.plan.book.world import Wanted
from halo_operator.plan.conditions import stamp


@dataclass
class Placing:
    """What came of the wishes: held (or raised), not free, needing nothing, and waiting until another hold is closed."""

    placed: list[Wanted] = field(default_factory=list)
    refused: list[Wanted] = field(default_factory=list)
    known: list[Wanted] = field(default_factory=list)
    later: list[Wanted] = field(default_factory=list)

    @property
    def decided(self) -> list[Wanted]:
        """All but those that wait: they are asked again as they are."""
        return self.placed + self.refused + self.known


def in_order(wish: Wanted) -> tuple[datetime, str, str]:
    """Oldest first, and the same order every time."""
    return wish.created_at, wish.run.name, wish.run.uid


def place(book: Book, wanted: list[Wanted], over: set[str], deleting: bool, now: datetime) -> Placing:
    """Decide every wish; one that does not fit stands in no later one's way.

    Runs in `over` get no hold: they have had one, or are gone. A Workspace that is being deleted holds nothing new.
    """
    result = Placing()
    for wish in sorted(wanted, key=in_order):
        hold = book.holds.get(wish.run.uid)
        more = wish.amount - (money.micro(hold.amount) if hold else 0)
        if (hold is None and wish.run.uid in over) or (hold is not None and (hold.unit != wish.unit or more <= 0)):
            result.known.append(wish)
        elif deleting or not book.can_hold(wish.unit, more):
            result.refused.append(wish)
        elif hold is None and len(book.holds) >= MOST_HOLDS:
            result.later.append(wish)
        else:
            book.put(wish.run.uid, raised(hold, wish, now) if hold else placed(wish, now))
            result.placed.append(wish)
    return result


def placed(wish: Wanted, now: datetime) -> WorkspaceHold:
    """Return a new hold at the rate of the wish, which is frozen with it."""
    return WorkspaceHold(
        run=wish.run,
        unit=wish.unit,
        amount=money.usd(wish.amount),
        rate=wish.rate,
        quoted=None if wish.quoted is None else money.usd(wish.quoted),
        placed_at=stamp(now),
    )


def raised(hold: WorkspaceHold, wish: Wanted, now: datetime) -> WorkspaceHold:
    """Return the hold with the higher amount; its rate stays the one that was frozen."""
    return hold.model_copy(update={"amount": money.usd(wish.amount), "raised_at": stamp(now)})
