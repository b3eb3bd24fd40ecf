"""Says how a Workspace's book is, in conditions and in one line: funded, unfunded, overdrawn, or about to go."""

from __future__ import annotations

from halo_api.conditions import ConditionType, Reason
from halo_operator.plan import money
from halo_operator.plan.book.sums import MOST_HOLDS, UNITS, Book
from halo_operator.plan.book.world import Unit
from halo_operator.plan.conditions import Fact

T = ConditionType
FIELDS: dict[Unit, str] = {"USD": "spec.wallet.creditUsd", "H100Hours": "spec.allocation.h100Hours"}
WORDS: dict[Unit, str] = {"USD": "USD", "H100Hours": "H100-hours"}


def facts(book: Book, deleting: bool) -> dict[ConditionType, Fact]:
    """Return what Ready, Overdrawn, Reconciling and Stalled say; all but Ready are there only when true."""
    short = overdrawn(book)
    owes = {T.OVERDRAWN: ("True", str(Reason.OVERDRAWN), short)} if short else {}
    if deleting:
        words = "is being deleted: " + (
            "it waits for the runs that it holds for" if book.holds else "its last entries move to a LedgerPage"
        )
        return {T.READY: ("False", Reason.WAITING, words), T.RECONCILING: ("True", Reason.WAITING, words), **owes}
    if short:
        stands = ("False", str(Reason.OVERDRAWN), short)
        return {T.READY: stands, T.STALLED: ("True", *stands[1:]), **owes}
    if all(book.credit[unit] is None for unit in UNITS):
        return {T.READY: ("True", Reason.UNFUNDED, "nothing is held; runs are metered")}
    return {T.READY: ("True", Reason.FUNDED, funded(book))}


def funded(book: Book) -> str:
    """Say what is held on what."""
    if book.credit["H100Hours"] is None:
        return "runs are held on the wallet"
    grpo = " and GrpoRuns on the wallet" if book.credit["USD"] is not None else ""
    return f"TrainingJobs are held on the shared allocation{grpo}"


def overdrawn(book: Book) -> str:
    """Say where commitments are above the credit, and what would do; nothing where they are not."""
    return "; ".join(
        f"{FIELDS[unit]}: found {shown(book.credit[unit])}, less than the {money.usd(book.spent[unit])} {WORDS[unit]} that "
        f"are spent and the {money.usd(book.held[unit])} that are held, so nothing new is held; raise it to at least "
        f"{money.usd(book.spent[unit] + book.held[unit])}"
        for unit in UNITS
        if book.is_overdrawn(unit)
    )


def shown(credit: int | None) -> str:
    return "none" if credit is None else money.usd(credit)


def waiting(book: Book, deleting: bool, full: bool) -> str | None:
    """Say in one line what keeps runs from being held; without counts, so that it does not change with every run."""
    if deleting:
        return "the Workspace is being deleted: nothing new is held"
    if short := overdrawn(book):
        return short
    if full:
        return f"status.holds: found {MOST_HOLDS}, the most that are open at once; new runs wait until one of them ends"
    return None
