"""What the stories of a run's money are told with: a run that is held, one that trains, and what a reader looks at."""

from __future__ import annotations

from typing import Any

from halo_api.conditions import Reason, condition_of
from halo_api.ledger import LedgerEntry
from halo_api.report import Outcome
from tests.unit.builders import failure, seconds, success
from tests.unit.builders_money import Namespace

HOUR = 3600
PUBLISH = 30.022


def nothing_changes(ns: Namespace) -> None:
    """Whoever looks again at what is there finds nothing to do."""
    before = ns.snapshot()
    ns.look(*ns.runs)
    ns.count()
    ns.look(*ns.runs)
    assert ns.snapshot() == before


def rest(ns: Namespace) -> None:
    ns.settle_down()
    nothing_changes(ns)


def held(budget: float = 2, hours: float = 10, count: int = 1, **changes: Any) -> Namespace:
    """One run, on a shared allocation, whose budget is held and whose pods are made."""
    ns = Namespace(hours=hours)
    ns.submit("run", budget, count, **changes)
    rest(ns)
    return ns


def training(budget: float = 2, hours: float = 10, count: int = 1, **changes: Any) -> Namespace:
    """The same, and its pods run."""
    ns = held(budget, hours, count, **changes)
    for pod in ns.of("run"):
        ns.bind(pod)
    rest(ns)
    return ns


def after(ns: Namespace, n: float) -> None:
    ns.time += seconds(n)


def reason(ns: Namespace, type_: str = "Ready", name: str = "run") -> str:
    found = condition_of(ns.runs[name].status.conditions, type_)
    return found.reason if found else ""


def words(ns: Namespace, type_: str = "Ready", name: str = "run") -> str:
    found = condition_of(ns.runs[name].status.conditions, type_)
    return found.message if found else ""


def said(ns: Namespace, reason_: str) -> list[str]:
    return [note.message for note in ns.notes if note.reason == reason_]


def only_entry(ns: Namespace) -> LedgerEntry:
    (entry,) = ns.entries()
    return entry


def charged(ns: Namespace, amount: str, outcome: str) -> None:
    """The book says that, the run's own status says the same of a run that is there, and nothing is held any more."""
    entry = only_entry(ns)
    assert (entry.charged, entry.outcome) == (amount, outcome)
    assert ns.book is None or ns.book.status.holds == {}
    if "run" in ns.runs:
        usage = ns.runs["run"].status.usage
        assert usage
        assert usage.settlement
        assert (usage.settlement.charged, usage.settlement.held) == (amount, entry.held)
        assert ns.runs["run"].meta.finalizers == ()


def at_budget(step: int = 40, attempt: int = 1) -> Outcome:
    """What a trainer leaves that stopped in time and published its last checkpoint."""
    return success(step, attempt).model_copy(update={"reason": Reason.BUDGET_REACHED})


def left_behind(step: int | None = 40) -> Outcome:
    """What a supervisor leaves that killed its trainer, which did not publish in time."""
    return failure("BudgetReached", "it did not publish in time", step)


def publishing(**changes: Any) -> Namespace:
    """A run that was killed at its budget, and whose checkpoint waits to be published."""
    ns = training(budget=1, **changes)
    ns.publishes = False
    after(ns, HOUR + 12)
    ns.end(ns.of("run")[0], left_behind())
    ns.settle_down()
    nothing_changes(ns)
    return ns
