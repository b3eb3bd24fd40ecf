"""Adds a book up again, independently of the operator that wrote it: every number that can be computed is, exactly.

No float and no rounding but the one of a charge, up to a millionth of its unit. Each mismatch is one line with the page, the entry and
both numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, Literal

from halo_api.digests import json_digest
from halo_api.ledger import LedgerEntry, Rate
from halo_cli.ledger_book import Book, Line, Page

Unit = Literal["USD", "H100Hours"]
UNITS: tuple[Unit, ...] = ("USD", "H100Hours")
MICRO = 1_000_000
HOUR_MS = 3_600_000
# Sums of decimals have an exact decimal, and never one of that many digits.
EXACT = Context(prec=100)


def mismatches(book: Book) -> list[str]:
    """Return what does not add up; an empty list is a book that is right."""
    lines = list(book.lines())
    return [*chain(book.pages), *in_order(lines), *each(lines), *page_totals(book.pages), *status(book, lines)]


def chain(pages: tuple[Page, ...]) -> Iterator[str]:
    """Pages are numbered from 1 without a gap, and each names the digest of the one before."""
    before: Page | None = None
    for number, page in enumerate(pages, start=1):
        where = f"page {page.spec.page}"
        if page.name != name_of(page.spec.page):
            yield f"{where}: found the name {page.name}, expected {name_of(page.spec.page)}"
        if page.spec.page != number:
            yield f"{where}: found it after {number - 1} pages, expected page {number}: one is missing or there twice"
            return
        expected = digest(before.stored) if before else None
        if page.spec.previous != expected:
            yield f"{where}: found previous {page.spec.previous}, computed {expected} from page {number - 1}"
        before = page


def in_order(lines: list[Line]) -> Iterator[str]:
    """Entries are counted from 1 without a gap, and no run is settled twice."""
    runs: dict[str, Line] = {}
    for number, line in enumerate(lines, start=1):
        if line.entry.sequence != number:
            yield f"{line.where}: found sequence {line.entry.sequence}, expected {number}: an entry is missing or there twice"
            break
    for line in lines:
        first = runs.setdefault(line.entry.run.uid, line)
        if first is not line:
            yield f"{line.where}: found run {line.entry.run.name} ({line.entry.run.uid}), settled before on {first.where}"


def each(lines: list[Line]) -> Iterator[str]:
    """An entry's amounts follow from its GPU time, its rate and its hold."""
    for line in lines:
        entry = line.entry
        held, used = exact(entry.held), exact(entry.used)
        computed = {
            "used": used_of(entry),
            "charged": min(held, used),
            "overrun": used - exact(entry.charged),
            "held": max(held, Fraction(0)),
        }
        for name, right in computed.items():
            found = exact(getattr(entry, name))
            if found != right:
                yield f"{line.where} ({entry.run.name}): found {name} {shown(found)}, computed {shown(right)} {entry.unit}"


def page_totals(pages: tuple[Page, ...]) -> Iterator[str]:
    """A page's totals are the sums up to and with it."""
    sums = dict.fromkeys(UNITS, Fraction(0))
    count = 0
    for page in pages:
        for entry in page.spec.entries:
            sums[entry.unit] += exact(entry.charged)
        count += len(page.spec.entries)
        totals = page.spec.totals
        where = f"page {page.spec.page}, totals"
        if totals.entries != count:
            yield f"{where}: found entries {totals.entries}, counted {count}"
        yield from differs(f"{where}: found spentUsd", totals.spent_usd, sums["USD"])
        yield from differs(f"{where}: found spentH100Hours", totals.spent_h100_hours, sums["H100Hours"])


def status(book: Book, lines: list[Line]) -> Iterator[str]:
    """What the Workspace's status says is what its entries and open holds add up to."""
    found = book.status
    if found is None or (found.entries is None and book.pages):
        # A Workspace that was made again goes on from the last page once the operator has looked at it.
        return
    where = "Workspace status"
    if (found.entries or 0) != len(lines):
        yield f"{where}: found entries {found.entries or 0}, counted {len(lines)}"
    last = known_page(book)
    if (found.pages or 0) != (last.spec.page if last else 0):
        yield f"{where}: found pages {found.pages or 0}, counted {len(book.pages)}"
    elif last and found.page_digest != digest(last.stored):
        yield f"{where}: found pageDigest {found.page_digest}, computed {digest(last.stored)} from page {last.spec.page}"
    sums = spent(lines)
    held = {unit: total(hold.amount for _, hold in book.holds() if hold.unit == unit) for unit in UNITS}
    yield from differs(f"{where}: found spent", found.spent, sums["USD"])
    yield from differs(f"{where}: found held", found.held, held["USD"])
    if book.observed and book.spec and book.spec.wallet:
        left = exact(repr(book.spec.wallet.credit_usd)) - sums["USD"] - held["USD"]
        yield from differs(f"{where}: found balance", found.balance, left)
    if found.allocation:
        left = exact(found.allocation.granted) - sums["H100Hours"] - held["H100Hours"]
        yield from differs(f"{where}: found allocation.spent", found.allocation.spent, sums["H100Hours"])
        yield from differs(f"{where}: found allocation.held", found.allocation.held, held["H100Hours"])
        yield from differs(f"{where}: found allocation.balance", found.allocation.balance, left)


def known_page(book: Book) -> Page | None:
    """Return the last page that the status should know: a new one is made first, while its entries are still in the status."""
    if not book.pages or book.status is None:
        return None
    *before, last = book.pages
    is_new = last.spec.page == (book.status.pages or 0) + 1 and last.spec.entries[-1] in book.status.settled
    return (before[-1] if before else None) if is_new else last


def differs(what: str, found: str | None, computed: Fraction) -> Iterator[str]:
    """Say that an amount is not what it should be; an unset one says nothing."""
    if found is not None and exact(found) != computed:
        yield f"{what} {found}, computed {shown(computed)}"


def spent(lines: list[Line]) -> dict[Unit, Fraction]:
    """Return what was charged, by unit."""
    return {unit: total(line.entry.charged for line in lines if line.entry.unit == unit) for unit in UNITS}


def total(amounts: Iterable[str]) -> Fraction:
    return sum(map(exact, amounts), Fraction(0))


def used_of(entry: LedgerEntry) -> Fraction:
    """Return what the entry's GPU time comes to at its rate, rounded up to a millionth of its unit."""
    milliseconds = exact(entry.gpu_seconds) * 1000
    if entry.unit == "H100Hours":
        # Weighed in whole milliseconds first, as a budget is counted.
        weighed = ceiling(milliseconds * exact(entry.rate.h100_equivalent))
        return Fraction(ceiling(Fraction(weighed * MICRO, HOUR_MS)), MICRO)
    return Fraction(ceiling(milliseconds * rate_of(entry.rate) / HOUR_MS), MICRO) + exact(entry.judge_usd or "0")


def rate_of(rate: Rate) -> int:
    """Return the price of a GPU hour with its markup, in micro-USD, rounded up to one; without a price nothing is billed."""
    if rate.usd_per_hour is None:
        return 0
    return ceiling(exact(rate.usd_per_hour) * exact(rate.markup or "1") * MICRO)


def digest(stored: dict[str, Any]) -> str:
    """Return the SHA-256 of a page's spec as canonical JSON."""
    return json_digest(stored)


def name_of(page: int) -> str:
    return f"page-{page:09d}"


def exact(amount: str) -> Fraction:
    return Fraction(Decimal(amount))


def ceiling(amount: Fraction) -> int:
    return -(-amount.numerator // amount.denominator)


def shown(amount: Fraction) -> str:
    """Write an amount as a decimal without zeros at its end."""
    text = f"{EXACT.divide(Decimal(amount.numerator), Decimal(amount.denominator)):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
