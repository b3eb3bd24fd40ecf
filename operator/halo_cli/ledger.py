"""`kubectl halo ledger`: every settled entry and open hold of a namespace, added up again."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from halo_cli.kubectl import Kubectl
from halo_cli.ledger_book import Book, read_book
from halo_cli.ledger_check import mismatches
from halo_cli.ledger_view import counted, csv_of, json_of, rows, table, total_lines, totals, within

Form = Literal["table", "csv", "json", "check"]


@dataclass(frozen=True)
class Asked:
    """What is listed and how; entries from `since` on and before `until`."""

    form: Form = "table"
    since: datetime | None = None
    until: datetime | None = None


def ledger(
    kubectl: Kubectl, namespace: str | None, asked: Asked, write: Callable[[str], None], note: Callable[[str], None]
) -> int:
    """Write the ledger and say what does not add up; return 1 if something does not."""
    book = read_book(kubectl, namespace)
    wrong = mismatches(book)
    listed = list(book.lines())
    # The check is of the whole book always; an open hold is of no period.
    period = asked.since is not None or asked.until is not None
    shown, holds = within(listed, asked.since, asked.until), [] if period else book.holds()
    if asked.form == "csv":
        write(csv_of(rows(book, shown, holds)))
    elif asked.form == "json":
        write(json.dumps(json_of(book, shown, holds, wrong), indent=2) + "\n")
    elif asked.form == "table" and (shown or holds):
        said = [*table(list(rows(book, shown, holds))), "", *total_lines(totals(shown, holds))]
        write("\n".join(said) + "\n")
    if not listed and not book.holds() and not wrong:
        note(nothing(book))
    elif not shown and not holds and asked.form != "check":
        note(f"none of {counted(len(listed), 'entry', 'entries')} was settled in that time")
    for line in wrong:
        if asked.form == "check":
            write(f"{line}\n")
        else:
            note(f"does not add up: {line}")
    if asked.form == "check" and not wrong:
        entries, pages = counted(len(listed), "entry", "entries"), counted(len(book.pages), "page", "pages")
        write(f"adds up: {entries}, {pages} and {counted(len(book.holds()), 'open hold', 'open holds')}\n")
    return 1 if wrong else 0


def nothing(book: Book) -> str:
    """Say that there is nothing, and why."""
    where = f"namespace {book.namespace}" if book.namespace else "this namespace"
    if book.spec is None:
        return f"{where} has no Workspace and no ledger: nothing is held or charged here"
    return f"the ledger of {where} is empty: nothing was held or charged yet"


def date(text: str) -> datetime:
    """Read a date or a time; UTC unless it says otherwise."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(
            f"must be a date such as 2026-11-01 or a time such as 2026-11-01T08:00:00Z, found {text!r}"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
