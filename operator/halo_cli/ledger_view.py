"""A book as people and programs read it: a table with totals, CSV, or JSON; amounts are written as they stand in the book."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from halo_api.ledger import Rate, RunRef
from halo_api.workspace import WorkspaceHold
from halo_cli.kubectl import Object
from halo_cli.ledger_book import Book, Line
from halo_cli.ledger_check import UNITS, Unit, exact, shown, total

# The columns of the CSV, in their order; docs/money.md says what each is. New ones come last.
COLUMNS = (
    "state", "sequence", "page", "namespace", "runKind", "runName", "runUid", "unit", "gpuClass", "region", "usdPerHour",
    "markup", "h100Equivalent", "quoted", "held", "used", "charged", "overrun", "judgeUsd", "gpuSeconds", "outcome", "receipt",
    "placedAt", "raisedAt", "settledAt",
)  # fmt: skip
AMOUNTS = frozenset(COLUMNS[COLUMNS.index("usdPerHour") : COLUMNS.index("outcome")])
FORMULA = ("=", "+", "-", "@", "\t", "\r")
SHORT = (("SEQ", "sequence"), ("RUN", "run"), ("UNIT", "unit"), ("HELD", "held"), ("USED", "used"), ("CHARGED", "charged"), ("GPU-SECONDS", "gpuSeconds"), ("OUTCOME", "outcome"), ("SETTLED", "settledAt"))  # fmt: skip
NUMBERS = ("sequence", "held", "used", "charged", "gpuSeconds")

Holds = Sequence[tuple[str, WorkspaceHold]]


def within(lines: Iterable[Line], since: datetime | None, until: datetime | None) -> list[Line]:
    """Return the entries that were settled from `since` on and before `until`: months follow each other without a gap."""
    return [
        line
        for line in lines
        for at in [datetime.fromisoformat(line.entry.settled_at)]
        if (since is None or at >= since) and (until is None or at < until)
    ]


def rows(book: Book, lines: Iterable[Line], holds: Holds) -> Iterator[dict[str, str]]:
    """Yield a row for each entry and each open hold, by the names of the columns."""
    for line in lines:
        stored = line.entry.to_json()
        page = "" if line.page is None else str(line.page)
        yield row(book, line.entry.run, line.entry.rate, stored) | {"state": "settled", "page": page}
    for uid, hold in holds:
        stored = hold.to_json()
        stored["held"] = stored.pop("amount")
        yield row(book, hold.run, hold.rate, stored) | {"state": "open", "runUid": uid}


def row(book: Book, run: RunRef, rate: Rate, stored: dict[str, Any]) -> dict[str, str]:
    flat = stored | rate.to_json() | {f"run{key.capitalize()}": value for key, value in run.to_json().items()}
    flat["namespace"] = book.namespace or ""
    return {name: str(flat.get(name, "")) for name in COLUMNS}


def csv_of(found: Iterable[dict[str, str]]) -> str:
    """Write the rows as RFC 4180 has it, the names of the columns first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    writer.writerows([cell(name, each[name]) for name in COLUMNS] for each in found)
    return text.getvalue()


def cell(name: str, value: str) -> str:
    """Return a cell that no spreadsheet takes for a formula."""
    return f"'{value}" if value.startswith(FORMULA) and name not in AMOUNTS else value


def table(found: Sequence[dict[str, str]]) -> list[str]:
    """Write the rows for a terminal, with the columns that people ask for."""
    cells = [[title for title, _ in SHORT]]
    for each in found:
        run = {"run": f"{each['runKind'].lower()}/{each['runName']}"}
        is_open = {"sequence": "open", "settledAt": f"held since {each['placedAt']}"} if each["state"] == "open" else {}
        cells.append([(each | run | is_open)[key] for _, key in SHORT])
    widths = [max(len(line[column]) for line in cells) for column in range(len(SHORT))]
    right = [key in NUMBERS for _, key in SHORT]
    return [
        "  ".join(
            text.rjust(width) if end else text.ljust(width)
            for text, width, end in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in cells
    ]


def totals(lines: Sequence[Line], holds: Holds) -> dict[Unit, dict[str, Any]]:
    """Return the sums of what is listed, by unit; a unit that nothing was ever held in is left out."""
    found: dict[Unit, dict[str, Any]] = {}
    for unit in UNITS:
        entries = [line.entry for line in lines if line.entry.unit == unit]
        opened = [hold.amount for _, hold in holds if hold.unit == unit]
        if entries or opened:
            found[unit] = {
                "entries": len(entries),
                "charged": shown(total(entry.charged for entry in entries)),
                "used": shown(total(entry.used for entry in entries)),
                "overrun": shown(total(entry.overrun for entry in entries)),
                "gpuSeconds": shown(total(entry.gpu_seconds for entry in entries)),
                "openHolds": len(opened),
                "openHeld": shown(total(opened)),
            }
    return found


def total_lines(found: dict[Unit, dict[str, Any]]) -> list[str]:
    """Say the sums, one line a unit."""
    return [
        f"{unit}: {counted(sums['entries'], 'entry', 'entries')}, charged {sums['charged']} of {sums['used']} used"
        + (f", overrun {sums['overrun']} not charged" if exact(sums["overrun"]) else "")
        + (
            f"; {counted(sums['openHolds'], 'open hold', 'open holds')} of {sums['openHeld']}"
            if sums["openHolds"]
            else ""
        )
        for unit, sums in found.items()
    ]


def counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def json_of(book: Book, lines: Sequence[Line], holds: Holds, wrong: list[str]) -> Object:
    """Return the book as one JSON object; an entry is what the API has, with its page."""
    return {
        "namespace": book.namespace,
        "workspaceUid": book.uid,
        "entries": [line.entry.to_json() | {"page": line.page} for line in lines],
        "openHolds": [hold.to_json() for _, hold in holds],
        "totals": totals(lines, holds),
        "mismatches": wrong,
    }
