"""The pages of a Workspace's book: settled entries as immutable, chained LedgerPage objects.

A page is made only of what a status says already: whoever makes it again after a crash makes the same one.
"""

from __future__ import annotations

from halo_api import API_VERSION
from halo_api.digests import json_digest
from halo_api.ledger import LedgerPageSpec, LedgerTotals
from halo_operator.plan import money
from halo_operator.plan.book.sums import Book, charged
from halo_operator.plan.world import Meta, Object

# A page is due above this many settled entries, and takes that many: the latest stay in the status, to be looked at.
PAGE_ENTRIES = 100


def digest_of_page(spec: LedgerPageSpec) -> str:
    """Return the SHA-256 of a page's spec as canonical JSON: sorted keys, no spaces, ASCII."""
    return json_digest(spec.to_json())


def page_name(number: int) -> str:
    """Return the name of a page; by name they sort as by number."""
    return f"page-{number:09d}"


def go_on(book: Book, page: LedgerPageSpec) -> None:
    """Continue the book of an earlier Workspace of the namespace: credit counts all ever paid in, so what was spent stays."""
    book.spent = {"USD": money.micro(page.totals.spent_usd), "H100Hours": money.micro(page.totals.spent_h100_hours)}
    book.entries, book.pages, book.digest = page.totals.entries, page.page, digest_of_page(page)


def due_page(book: Book, meta: Meta) -> LedgerPageSpec | None:
    """Return the page that must be made now, if any: one of the oldest entries, or of all when the Workspace goes.

    A Workspace that goes and holds nothing gets no more entries, so that its last page, too, is always the same.
    """
    if len(book.settled) > PAGE_ENTRIES:
        entries = book.settled[:PAGE_ENTRIES]
    elif meta.deleting and not book.holds and book.settled:
        entries = book.settled
    else:
        return None
    rest = book.settled[len(entries) :]
    return LedgerPageSpec(
        page=book.pages + 1,
        workspace_uid=meta.uid,
        previous=book.digest,
        entries=list(entries),
        totals=LedgerTotals(
            entries=entries[-1].sequence,
            spent_usd=money.usd(book.spent["USD"] - charged(rest, "USD")),
            spent_h100_hours=money.usd(book.spent["H100Hours"] - charged(rest, "H100Hours")),
        ),
    )


def turn(book: Book, page: LedgerPageSpec) -> None:
    """Take a page's entries out of the book; its sums keep them."""
    book.settled = book.settled[len(page.entries) :]
    book.pages, book.digest = page.page, digest_of_page(page)


def page_object(page: LedgerPageSpec, meta: Meta) -> Object:
    """Return the LedgerPage. It has no owner: what was charged outlives the Workspace."""
    return {
        "apiVersion": API_VERSION,
        "kind": "LedgerPage",
        "metadata": {
            "name": page_name(page.page),
            "namespace": meta.namespace,
            "labels": {"app.kubernetes.io/managed-by": "halo"},
        },
        "spec": page.to_json(),
    }
