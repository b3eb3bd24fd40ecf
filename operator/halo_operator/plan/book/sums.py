"""The sums of a Workspace's book in whole millionths, read from its status and written back without loss."""

from __future__ import annotations

from dataclasses import dataclass

from halo_api.ledger import LedgerEntry
from halo_api.workspace import AllocationUse, WorkspaceHold, WorkspaceSpec
from halo_operator.plan import money
from halo_operator.plan.book.world import BookWorld, Unit

UNITS: tuple[Unit, ...] = ("USD", "H100Hours")
MOST_HOLDS = 1000
MOST_SETTLED = 200


@dataclass
class Book:
    """One plan's working copy of the book: held is always the sum of the open holds, spent that of all charges ever."""

    credit: dict[Unit, int | None]
    held: dict[Unit, int]
    spent: dict[Unit, int]
    holds: dict[str, WorkspaceHold]
    settled: list[LedgerEntry]
    entries: int
    pages: int
    digest: str | None

    def balance(self, unit: Unit) -> int:
        """Return what is free; less than nothing where credit was lowered, or taken away, below what is spent and held."""
        return (self.credit[unit] or 0) - self.held[unit] - self.spent[unit]

    def can_hold(self, unit: Unit, amount: int) -> bool:
        """Whether that much is free; an amount of nothing needs credit that is not overdrawn, too."""
        return self.credit[unit] is not None and self.balance(unit) >= max(amount, 0)

    def is_overdrawn(self, unit: Unit) -> bool:
        """Whether commitments are above the credit. Credit that is not there owes nothing for what is over: a namespace may move on."""
        return self.balance(unit) < 0 and (self.credit[unit] is not None or self.held[unit] > 0)

    def put(self, uid: str, hold: WorkspaceHold) -> None:
        """Open a hold, or replace a run's by a higher one."""
        self.drop(uid)
        self.holds[uid] = hold
        self.held[hold.unit] += money.micro(hold.amount)

    def drop(self, uid: str) -> None:
        """Close a run's hold, if it has one."""
        if (hold := self.holds.pop(uid, None)) is not None:
            self.held[hold.unit] -= money.micro(hold.amount)


def opened(world: BookWorld) -> Book:
    """Return the book as the status has it."""
    status, use = world.status, world.status.allocation
    return Book(
        credit=credits(world.spec),
        held={unit: held(status.holds, unit) for unit in UNITS},
        spent={"USD": money.micro(status.spent or 0), "H100Hours": money.micro(use.spent if use else 0)},
        holds=dict(status.holds),
        settled=list(status.settled),
        entries=status.entries or 0,
        pages=status.pages or 0,
        digest=status.page_digest,
    )


def credits(spec: WorkspaceSpec) -> dict[Unit, int | None]:
    """Return all that was ever paid in or granted, by unit; None where there is no wallet, or no allocation."""
    return {
        "USD": money.micro(spec.wallet.credit_usd) if spec.wallet else None,
        "H100Hours": money.micro(spec.allocation.h100_hours) if spec.allocation else None,
    }


def held(holds: dict[str, WorkspaceHold], unit: Unit) -> int:
    return sum(money.micro(hold.amount) for hold in holds.values() if hold.unit == unit)


def charged(entries: list[LedgerEntry], unit: Unit) -> int:
    return sum(money.micro(entry.charged) for entry in entries if entry.unit == unit)


def is_shown(book: Book, unit: Unit) -> bool:
    """Whether the status speaks of a unit: there is credit in it, or there was and not all of it is back."""
    return book.credit[unit] is not None or book.held[unit] > 0 or book.spent[unit] > 0


def usd_columns(book: Book) -> dict[str, str]:
    """Return balance, held and spent of the wallet."""
    if not is_shown(book, "USD"):
        return {}
    return {
        "balance": money.usd(book.balance("USD")),
        "held": money.usd(book.held["USD"]),
        "spent": money.usd(book.spent["USD"]),
    }


def allocation_use(book: Book) -> AllocationUse | None:
    """Return the same of the shared allocation."""
    if not is_shown(book, "H100Hours"):
        return None
    return AllocationUse(
        granted=money.usd(book.credit["H100Hours"] or 0),
        held=money.usd(book.held["H100Hours"]),
        spent=money.usd(book.spent["H100Hours"]),
        balance=money.usd(book.balance("H100Hours")),
    )
