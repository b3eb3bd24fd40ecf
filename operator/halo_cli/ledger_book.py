"""A namespace's book as the cluster has it: its pages and what the Workspace's status adds to them, read at one instant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from halo_api.base import ApiModel
from halo_api.ledger import LedgerEntry, LedgerPageSpec
from halo_api.workspace import WORKSPACE, WorkspaceHold, WorkspaceSpec, WorkspaceStatus
from halo_cli.kubectl import CliError, Kubectl, NotThere, Object

# How often the Workspace is read again where its pages were already ahead of it.
READS = 5

Model = TypeVar("Model", bound=ApiModel)


@dataclass(frozen=True)
class Page:
    """A LedgerPage; `stored` is its spec as the API server has it, which the next page's digest is over."""

    name: str
    spec: LedgerPageSpec
    stored: dict[str, Any]


@dataclass(frozen=True)
class Line:
    """A settled entry and where it stands: the page's number, or None in the Workspace's status."""

    page: int | None
    entry: LedgerEntry

    @property
    def where(self) -> str:
        place = "status.settled" if self.page is None else f"page {self.page}"
        return f"{place}, entry {self.entry.sequence}"


@dataclass(frozen=True)
class Book:
    """All that a namespace's book consists of; `status` and `spec` are unset where there is no Workspace."""

    namespace: str | None
    pages: tuple[Page, ...]
    uid: str | None = None
    spec: WorkspaceSpec | None = None
    status: WorkspaceStatus | None = None
    # Whether the status was written for this very spec: what was paid in since is in no balance yet.
    observed: bool = False

    def lines(self) -> Iterator[Line]:
        """Yield every settled entry once: those of the pages, then those that are in no page yet."""
        seen: dict[int, LedgerEntry] = {}
        for page in self.pages:
            for entry in page.spec.entries:
                seen[entry.sequence] = entry
                yield Line(page.spec.page, entry)
        for entry in self.status.settled if self.status else ():
            # A page is made first and its entries leave the status then: an equal one is the same one.
            if seen.get(entry.sequence) != entry:
                yield Line(None, entry)

    def holds(self) -> list[tuple[str, WorkspaceHold]]:
        """Return the open holds with the uids of their runs, the oldest first."""
        found = self.status.holds if self.status else {}
        return sorted(found.items(), key=lambda item: (item[1].placed_at, item[1].run.name, item[0]))


def read_book(kubectl: Kubectl, namespace: str | None = None) -> Book:
    """Read the book; the Workspace first, so that no entry can have left it for a page that was not read."""
    for _ in range(READS):
        workspace = workspace_of(kubectl)
        pages = pages_of(kubectl.get("ledgerpages.halo.training")["items"])
        book = book_of(workspace, pages, namespace)
        if not is_behind(book):
            break
    return book


def workspace_of(kubectl: Kubectl) -> Object | None:
    try:
        return kubectl.get("workspaces.halo.training", WORKSPACE)
    except NotThere:
        return None


def is_behind(book: Book) -> bool:
    """Whether pages have entries that the status does not count: it was written between the two reads, or is wrong."""
    last = max((page.spec.entries[-1].sequence for page in book.pages), default=0)
    return book.status is not None and book.status.entries is not None and book.status.entries < last


def book_of(workspace: Object | None, pages: tuple[Page, ...], namespace: str | None = None) -> Book:
    """Return the book of what kubectl gave."""
    if workspace is None:
        return Book(namespace, pages)
    meta, stored = workspace["metadata"], workspace.get("status")
    status = parsed(WorkspaceStatus, stored, "Workspace workspace, status") if stored else None
    return Book(
        namespace=str(meta["namespace"]),
        pages=pages,
        uid=str(meta["uid"]),
        spec=parsed(WorkspaceSpec, workspace["spec"], "Workspace workspace, spec"),
        status=status,
        observed=status is not None and status.observed_generation == meta.get("generation"),
    )


def pages_of(items: list[Object]) -> tuple[Page, ...]:
    """Return the pages in the order of their numbers."""
    found = (
        Page(name, parsed(LedgerPageSpec, item["spec"], f"LedgerPage {name}, spec"), item["spec"])
        for item in items
        for name in [str(item["metadata"]["name"])]
    )
    return tuple(sorted(found, key=lambda page: (page.spec.page, page.name)))


def parsed(model: type[Model], stored: Any, what: str) -> Model:
    """Read what is stored as what it should be."""
    try:
        return model.model_validate(stored)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CliError(
            f"{what}.{where}: {first['msg']}; kubectl-halo and the cluster's Halo differ in version"
        ) from None
