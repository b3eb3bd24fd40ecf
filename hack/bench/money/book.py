"""What a Workspace's book may say: every version that is read is checked by itself and against the one before, in exact decimals."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Any

Object = dict[str, Any]

MICRO = Decimal(1_000_000)
HOUR = Decimal(3600)
# A node's clock is believed as far as this; what lies outside is its offset, and is taken off its times.
BELIEVED = (timedelta(seconds=-2), timedelta(seconds=30))


@dataclass(frozen=True)
class Violation:
    """One thing that must never be, with the evidence."""

    kind: str
    namespace: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.namespace}: {self.evidence}"


@dataclass
class Book:
    """The book of one Workspace, whose credit is not changed and on which every hold is worth the same."""

    namespace: str
    credit: Decimal
    hold: Decimal
    violations: list[Violation] = field(default_factory=list)
    held_once: set[str] = field(default_factory=set)
    reads: int = 0
    versions: set[int] = field(default_factory=set)
    _newest: int = 0
    _before: Object = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def says(self, kind: str, evidence: str) -> None:
        self.violations.append(Violation(kind, self.namespace, evidence))

    def see(self, workspace: Object) -> None:
        """Check one read of the Workspace; it may be older than the last one, as another connection's may."""
        with self._lock:
            self.reads += 1
            version = int(workspace["metadata"]["resourceVersion"])
            if version in self.versions:
                return
            self.versions.add(version)
            status = workspace.get("status", {})
            where = f"resourceVersion {version}"
            self._alone(status, where)
            if version > self._newest:
                self._after(self._before, status, where)
                self._newest, self._before = version, status

    def _alone(self, status: Object, where: str) -> None:
        holds, entries = status.get("holds", {}), status.get("settled", [])
        self.held_once |= holds.keys()
        held, spent = total(hold["amount"] for hold in holds.values()), Decimal(status.get("spent", "0"))
        if held + spent > self.credit:
            self.says("Overspent", f"{where}: held {held} and spent {spent} are above the credit of {self.credit}")
        for uid, hold in holds.items():
            if hold["run"]["uid"] != uid or hold["unit"] != "USD" or Decimal(hold["amount"]) != self.hold:
                self.says("WrongHold", f"{where}: the hold of {uid} is {hold}, and all are of {self.hold} USD")
        for figure, right in (("held", held), ("balance", self.credit - held - spent)):
            if Decimal(status.get(figure, right)) != right:
                self.says("WrongSum", f"{where}: {figure} is {status[figure]}, and adds up to {right}")
        if both := holds.keys() & {entry["run"]["uid"] for entry in entries}:
            self.says("HeldAgain", f"{where}: {sorted(both)} are held and settled")
        if not status.get("pages"):
            for words in add_up(entries, spent, status.get("entries") or 0):
                self.says("WrongEntry", f"{where}: {words}")

    def _after(self, before: Object, now: Object, where: str) -> None:
        was, is_ = Decimal(before.get("spent", "0")), Decimal(now.get("spent", "0"))
        if is_ < was:
            self.says("SpentFell", f"{where}: from {was} to {is_}")
        known, found = before.get("settled", []), now.get("settled", [])
        if not now.get("pages") and found[: len(known)] != known:
            self.says("EntryChanged", f"{where}: {known} became {found[: len(known)]}")
        settled = {entry["run"]["uid"] for entry in found}
        lost = before.get("holds", {}).keys() - now.get("holds", {}).keys() - settled
        if lost and not now.get("pages"):
            self.says("HoldLost", f"{where}: the holds of {sorted(lost)} went without an entry")
        for uid, hold in now.get("holds", {}).items():
            if hold != before.get("holds", {}).get(uid, hold):
                self.says("HoldChanged", f"{where}: {before['holds'][uid]} became {hold}")


def total(amounts: Iterable[str]) -> Decimal:
    return sum(map(Decimal, amounts), Decimal(0))


def add_up(entries: list[Object], spent: Decimal, last: int) -> list[str]:
    """Add a whole book up again from its first entry; return what is wrong with it."""
    wrong = []
    sequences = [entry["sequence"] for entry in entries]
    if sequences != list(range(1, last + 1)):
        wrong.append(f"the sequences are {sequences}, and the book says that it has {last}")
    for entry in entries:
        used, held, charged = (Decimal(entry[figure]) for figure in ("used", "held", "charged"))
        if charged != min(used, held) or Decimal(entry["overrun"]) != used - charged:
            wrong.append(f"of {used} used and {held} held, {charged} is charged with an overrun of {entry['overrun']}")
    if (found := total(entry["charged"] for entry in entries)) != spent:
        wrong.append(f"the charges add up to {found}, and {spent} is spent")
    uids = [entry["run"]["uid"] for entry in entries]
    if twice := sorted({uid for uid in uids if uids.count(uid) > 1}):
        wrong.append(f"{twice} are settled more than once")
    return wrong


@dataclass
class Life:
    """A trainer pod as its node played it, by the clock that wrote each time."""

    attempt: int
    gpus: int
    # The API server's clock, then twice the node's.
    scheduled: datetime | None = None
    started: datetime | None = None
    finished: datetime | None = None

    @property
    def gpu_seconds(self) -> int:
        """From its binding to its end, the node's clock set right. One that was never bound took no GPU."""
        if self.scheduled is None:
            return 0
        if self.started is None or self.finished is None:
            raise ValueError(f"{self} has not ended")
        offset = self.started - self.scheduled
        if BELIEVED[0] <= offset <= BELIEVED[1]:
            offset = timedelta(0)
        return self.gpus * max(0, round((self.finished - offset - self.scheduled).total_seconds()))


def price(rate: Object) -> Decimal:
    """USD of a GPU hour at a frozen rate, rounded up to a micro-USD."""
    return rounded_up(Decimal(rate["usdPerHour"]) * Decimal(rate.get("markup", "1")))


def cost(gpu_seconds: int, usd_per_hour: Decimal) -> Decimal:
    """What GPU time costs, rounded up to a micro-USD."""
    # In micro-USD first: a quotient of whole numbers is only rounded once.
    micro = int(usd_per_hour * MICRO) * gpu_seconds
    return Decimal(-(-micro // int(HOUR))) / MICRO


def rounded_up(usd: Decimal) -> Decimal:
    return (usd * MICRO).to_integral_value(ROUND_CEILING) / MICRO
