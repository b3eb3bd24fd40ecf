"""Any order of what runs, people and crashes do to a Workspace's book, beside a tiny model of what the money must be."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from halo_api.ledger import LedgerEntry
from halo_operator.plan import money
from halo_operator.plan.book.pages import digest_of_page
from halo_operator.plan.book.plan import plan_book
from halo_operator.plan.wishes import Ended, Unit, Wanted
from tests.unit.builders import seconds
from tests.unit.builders_book import Books, end, granted, run, wish

UNITS: tuple[Unit, ...] = ("USD", "H100Hours")
MICRO = 1_000_000
AMOUNTS = st.one_of(st.integers(0, 40 * MICRO), st.integers(0, 9).map(lambda n: n * 5 * MICRO))
PICKS = st.integers(0, 10**6)


class Model:
    """Credit, open holds and charges by unit, in whole millionths, and the rules of them in as few words as there are."""

    def __init__(self) -> None:
        self.credit: dict[Unit, int | None] = {"USD": 100 * MICRO, "H100Hours": None}
        self.holds: dict[str, tuple[Unit, int]] = {}
        self.charged: dict[str, tuple[Unit, int]] = {}

    def taken(self, unit: Unit) -> int:
        return sum(amount for book in (self.holds, self.charged) for of, amount in book.values() if of == unit)

    def ask(self, one: Wanted) -> None:
        credit, (of, before) = self.credit[one.unit], self.holds.get(one.run.uid, (one.unit, 0))
        uid = one.run.uid
        is_right = one.amount > before if uid in self.holds else uid not in self.charged
        if credit is None or of != one.unit or not is_right:
            return
        if self.taken(of) + one.amount - before <= credit:
            self.holds[one.run.uid] = (of, one.amount)

    def close(self, uid: str, used: int) -> None:
        unit, amount = self.holds.pop(uid)
        self.charged[uid] = (unit, min(used, amount))


class BookMachine(RuleBasedStateMachine):
    """A namespace whose operator may die between any two writes; its desk is lost then, and runs ask again."""

    def __init__(self) -> None:
        super().__init__()
        self.books, self.model = Books(100), Model()
        self.made = 0
        # The runs that are there, by name, with what they ask for; and what those used that are over.
        self.runs: dict[str, Wanted] = {}
        self.over: dict[str, int] = {}
        self.desk: dict[str, Wanted | Ended] = {}

    def pick(self, number: int) -> str:
        return sorted(self.runs)[number % len(self.runs)]

    @rule(amount=AMOUNTS, unit=st.sampled_from(UNITS), age=st.integers(0, 3))
    def want(self, amount: int, unit: Unit, age: int) -> None:
        self.made += 1
        name = f"run-{self.made:05d}"
        self.runs[name] = wish(name, money.usd(amount), unit, age)
        self.desk[name] = self.runs[name]

    @rule(count=st.integers(20, 130), pick=PICKS)
    def want_many(self, count: int, pick: int) -> None:
        for number in range(count):
            self.want(pick % 1000 * 10, UNITS[number % 2], number % 3)

    @precondition(lambda self: self.runs)
    @rule(pick=PICKS, more=st.integers(-MICRO, 30 * MICRO), unit=st.sampled_from(UNITS))
    def ask_again(self, pick: int, more: int, unit: Unit) -> None:
        """A run raises its budget, asks what it asked, or asks late: after it was charged, while the entry is not in a page."""
        name = self.pick(pick)
        uid, asked = run(name).uid, self.runs[name]
        late = uid in self.model.charged and uid not in {entry.run.uid for entry in self.books.status.settled}
        if name in self.over and (uid in self.model.holds or late):
            return
        self.runs[name] = replace(asked, amount=max(asked.amount + more, 0), unit=unit if more == 0 else asked.unit)
        self.desk[name] = self.runs[name]

    @precondition(lambda self: self.runs)
    @rule(pick=PICKS, used=AMOUNTS)
    def finish(self, pick: int, used: int) -> None:
        self.over.setdefault(self.pick(pick), used)

    @rule(used=AMOUNTS)
    def finish_all(self, used: int) -> None:
        for name in self.runs:
            self.over.setdefault(name, used)

    @precondition(lambda self: self.runs)
    @rule(pick=PICKS)
    def vanish(self, pick: int) -> None:
        """Somebody strips a run's finalizer and deletes it."""
        name = self.pick(pick)
        del self.runs[name]
        self.over.pop(name, None)
        self.desk.pop(name, None)

    @rule(usd=st.none() | st.integers(0, 300), hours=st.none() | st.integers(0, 300))
    def grant(self, usd: int | None, hours: int | None) -> None:
        self.books.change(spec=granted(usd, hours), generation=self.books.world.meta.generation + 1)
        self.model.credit = {
            "USD": None if usd is None else usd * MICRO,
            "H100Hours": None if hours is None else hours * MICRO,
        }

    @rule()
    def delete(self) -> None:
        self.books.change(deleting=True)
        self.go_if_free()

    def go_if_free(self) -> None:
        """What is being deleted and has no finalizer is gone; people make it again."""
        if self.books.world.meta.deleting and not self.books.world.meta.finalizers:
            assert not self.model.holds
            self.books.recreate()

    @rule(until=st.sampled_from([0, 1, 2, 3, 9, 9, 9]))
    def look(self, until: int) -> None:
        for name, used in self.over.items():
            if run(name).uid in self.books.status.holds:
                self.desk[name] = end(name, money.usd(used))
        asked, runs = tuple(self.desk.values()), frozenset(run(name).uid for name in self.runs)
        books, deleting = self.books, self.books.world.meta.deleting
        books.now += seconds(7)
        plan = books.look(*asked, runs=runs, until=until)
        if until < 3:
            self.desk = {}
            return
        woken = {one.uid for one in plan.wake}
        ends = {one.run.uid: one for one in asked if isinstance(one, Ended)}
        for uid in [*ends, *sorted(set(self.model.holds) - runs - ends.keys())]:
            # What finds no room before a page is written is asked again; a run that is gone wakes nobody.
            if uid in self.model.holds and (uid in woken if uid in ends else uid not in books.status.holds):
                self.model.close(uid, ends[uid].used if uid in ends else 0)
        for one in sorted((a for a in asked if isinstance(a, Wanted)), key=lambda w: (w.created_at, w.run.name)):
            if not deleting:
                self.model.ask(one)
        for unit in {one.unit for one in plan.placed}:
            assert self.model.taken(unit) <= (self.model.credit[unit] or 0), "nothing is held that is not free"
        assert woken >= {one.run.uid for one in asked if isinstance(one, Wanted)}
        assert plan.requeue_after == 0.0 or woken >= ends.keys()
        self.desk = {name: one for name, one in self.desk.items() if one.run.uid not in woken}
        if plan.requeue_after is None:
            self.nothing_changes(asked, runs)
        self.go_if_free()

    def nothing_changes(self, asked: tuple[Wanted | Ended, ...], runs: frozenset[str]) -> None:
        """All that was decided, asked once more, is decided already."""
        wanted = tuple(a for a in asked if isinstance(a, Wanted))
        ended = tuple(a for a in asked if isinstance(a, Ended))
        again = plan_book(
            replace(self.books.world, wanted=wanted, ended=ended, runs=runs), self.books.now + seconds(60)
        )
        assert (again.status, again.page, again.placed, again.charged) == (None, None, (), ())

    def entries(self) -> list[LedgerEntry]:
        """Return the whole book: pages that the status knows of, then its own; a page that it does not know yet is in both."""
        status = self.books.status
        paged = self.books.pages if status.observed_generation is None else self.books.pages[: status.pages or 0]
        return [entry for page in paged for entry in page.entries] + status.settled

    @invariant()
    def the_status_is_what_the_model_says(self) -> None:
        status = self.books.status
        assert {uid: (hold.unit, money.micro(hold.amount)) for uid, hold in status.holds.items()} == self.model.holds
        if status.observed_generation is None:
            return
        shown = {"USD": (status.held, status.spent, status.balance), "H100Hours": (None, None, None)}
        if status.allocation:
            shown["H100Hours"] = (status.allocation.held, status.allocation.spent, status.allocation.balance)
        for unit in UNITS:
            held = sum(amount for of, amount in self.model.holds.values() if of == unit)
            spent = sum(amount for of, amount in self.model.charged.values() if of == unit)
            assert [money.micro(amount or 0) for amount in shown[unit][:2]] == [held, spent]
            if status.observed_generation == self.books.world.meta.generation and shown[unit][2] is not None:
                assert money.micro(shown[unit][2] or 0) == (self.model.credit[unit] or 0) - held - spent

    @invariant()
    def every_entry_adds_up_once(self) -> None:
        entries = self.entries()
        assert [entry.sequence for entry in entries] == list(range(1, len(entries) + 1))
        assert {e.run.uid: (e.unit, money.micro(e.charged)) for e in entries} == self.model.charged
        assert len(entries) == len(self.model.charged), "no run is charged twice"
        for entry in entries:
            held, used, charged, overrun = map(money.micro, (entry.held, entry.used, entry.charged, entry.overrun))
            assert (charged, overrun) == (min(held, used), used - charged)
            assert entry.outcome != "RunGone" or used == 0

    @invariant()
    def pages_are_chained_and_say_their_totals(self) -> None:
        before, spent, last = None, dict.fromkeys(UNITS, 0), 0
        for number, page in enumerate(self.books.pages, start=1):
            assert (page.page, page.previous) == (number, digest_of_page(before) if before else None)
            for entry in page.entries:
                spent[entry.unit] += money.micro(entry.charged)
            last += len(page.entries)
            totals = (page.totals.entries, page.totals.spent_usd, page.totals.spent_h100_hours)
            assert totals == (last, money.usd(spent["USD"]), money.usd(spent["H100Hours"]))
            before = page

    @invariant()
    def what_must_not_be_lost_keeps_the_workspace(self) -> None:
        if self.books.status.holds or self.books.status.settled:
            assert self.books.world.meta.finalizers

    def teardown(self) -> None:
        """Whatever happened: when all runs are over and the Workspace goes, everything is in pages, and nothing is held."""
        self.finish_all(MICRO)
        self.books.change(deleting=True)
        uid = self.books.world.meta.uid
        self.go_if_free()
        looks = 0
        while self.books.world.meta.deleting:
            self.look(9)
            looks += 1
            assert looks < 30, "it ends"
        assert self.books.world.meta.uid != uid
        assert (self.model.holds, self.books.status.settled) == ({}, [])
        self.every_entry_adds_up_once()
        self.pages_are_chained_and_say_their_totals()


BookMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestBook = BookMachine.TestCase
