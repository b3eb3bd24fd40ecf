"""Any order of what people, nodes, clocks and crashes do to runs that cost money, beside the truth of when their pods ran."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from halo_api.training_job import TrainingJobStatus
from halo_operator.plan import money, names
from halo_operator.plan.endings import GAVE_BACK
from halo_operator.plan.metering import closed_ms, gpu_ms, total_ms
from halo_operator.plan.run import is_terminal
from halo_operator.plan.wishes import Unit
from tests.unit.builders_nodes import Truth
from tests.unit.money_happenings import Happenings


class Simulation(Happenings):
    """Whatever happens, with what always holds and what was seen before."""

    def __init__(self, unit: Unit, credit: int) -> None:
        super().__init__(unit, credit)
        # What was seen, and can't be otherwise later.
        self.taken = 0
        self.used: dict[str, tuple[int, int]] = {}
        self.over: dict[str, object] = {}
        self.given_back: set[tuple[str, int]] = set()

    def act(self, action: str, a: int, b: int) -> None:
        """Something happens; `a` picks to what, `b` how."""
        getattr(self, action)(a, b)
        self.hold_true()

    # What always holds

    def hold_true(self) -> None:
        self.nothing_is_held_that_is_not_there()
        self.what_runs_is_held()
        self.usage_is_what_pods_ran_and_never_falls()
        self.every_run_is_charged_once_for_what_it_used()
        self.the_end_is_final()

    def amounts(self) -> tuple[int, int]:
        """Return what is held and spent."""
        status = self.ns.book.status if self.ns.book else None
        if status is None:
            return 0, 0
        if self.unit == "USD":
            return money.micro(status.held or 0), money.micro(status.spent or 0)
        use = status.allocation
        return (money.micro(use.held), money.micro(use.spent)) if use else (0, 0)

    def nothing_is_held_that_is_not_there(self) -> None:
        if self.ns.book is None or self.ns.book.status.observed_generation is None:
            return
        held, spent = self.amounts()
        assert held + spent <= max(self.credit * money.MICRO, self.taken), "above the credit only if that was lowered"
        self.taken = held + spent
        assert held == sum(money.micro(hold.amount) for hold in self.ns.book.status.holds.values())
        assert spent == sum(money.micro(entry.charged) for entry in self.ns.entries())

    def what_runs_is_held(self) -> None:
        for pod in [*self.live(bound=True), *self.live(bound=False)]:
            run = self.run_of(self.truth(pod))
            if run and "deletionTimestamp" not in pod["metadata"]:
                assert run.status.hold, "the status says what is held before a pod is made"
                assert names.HOLD_FINALIZER in run.meta.finalizers
                assert self.ns.book
                assert run.meta.uid in self.ns.book.status.holds

    def usage_is_what_pods_ran_and_never_falls(self) -> None:
        for run in self.ns.runs.values():
            status, uid = run.status, run.meta.uid
            self.given_back |= {(uid, r.attempt) for r in status.attempts if r.reason == GAVE_BACK}
            total, closed = total_ms(status.usage), closed_ms(status.usage)
            before = self.used.get(uid, (0, 0))
            assert (total, closed) >= before
            assert closed >= before[1]
            self.used[uid] = total, closed
            assert closed == self.true_ms(uid, status.usage.through if status.usage else 0)

    def true_ms(self, uid: str, through: int = 10**6) -> int:
        """Return what a run's attempts took of all its GPUs, by the true times of its pods."""
        attempts: dict[int, list[Truth]] = {}
        for truth in self.ns.trainers(uid):
            attempts.setdefault(truth.attempt, []).append(truth)
        total = 0
        for number, pods in attempts.items():
            starts = [pod.bound for pod in pods if pod.bound]
            if number <= through and len(starts) == self.counts[uid] and (uid, number) not in self.given_back:
                ends = [pod.end for pod in pods if pod.end]
                total += gpu_ms(self.counts[uid], max(starts), max([*ends, *starts]))
        return total

    def every_run_is_charged_once_for_what_it_used(self) -> None:
        entries = self.ns.entries()
        assert len({entry.run.uid for entry in entries}) == len(entries)
        for entry in entries:
            milliseconds = self.true_ms(entry.run.uid)
            used = (
                money.micro_hours(milliseconds) if self.unit == "H100Hours" else money.charge(milliseconds, 3_600_000)
            )
            held = money.micro(entry.held)
            assert (money.micro(entry.used), money.micro(entry.charged)) == (used, min(used, held))
            assert entry.gpu_seconds == money.seconds(milliseconds)
        by_uid = {entry.run.uid: entry for entry in entries}
        for run in self.ns.runs.values():
            entry = by_uid.get(run.meta.uid)
            if entry and run.status.hold:
                assert is_terminal(run.status), "it was settled because it is over"
                assert run.status.usage
                found = run.status.usage.settlement
                assert found
                assert (found.held, found.used, found.charged) == (entry.held, entry.used, entry.charged)

    def the_end_is_final(self) -> None:
        for run in self.ns.runs.values():
            uid = run.meta.uid
            if is_terminal(run.status):
                assert self.over.setdefault(uid, self.ending(run.status)) == self.ending(run.status)
            else:
                assert uid not in self.over

    def ending(self, status: TrainingJobStatus) -> object:
        said = [(c.type, c.status, c.reason, c.message, c.last_transition_time) for c in status.conditions]
        return said, status.usage, status.hold, status.adapter

    # Where it ends

    def come_to_rest(self) -> None:
        """Left to itself, every run ends, and nothing is held or guarded any more."""
        self.flights = {}
        for _ in range(40):
            for run in list(self.ns.runs.values()):
                if run.spec.suspend:
                    self.ns.edit(run.meta.name, suspend=False)
            self.bind_all(0, 0)
            self.look_at_all()
            self.finish(0, 0)
            self.look_at_all()
            self.go_by(70)
            if all(is_terminal(run.status) for run in self.ns.runs.values()) and not self.ns.pods_that_run():
                break
        self.look_at_all()
        for run in self.ns.runs.values():
            assert is_terminal(run.status), run.status.conditions
            assert run.meta.finalizers == ()
        assert self.ns.book
        assert self.ns.book.status.holds == {}
        before = self.ns.snapshot()
        self.look_at_all()
        assert self.ns.snapshot() == before, "at rest nothing changes"

    def go(self) -> None:
        """Then everything can go, and what was charged stays in pages."""
        charged = sum(money.micro(entry.charged) for entry in self.ns.entries())
        for name in list(self.ns.runs):
            self.ns.delete(name)
        self.ns.delete_book()
        for _ in range(5):
            self.ns.count()
        assert (self.ns.runs, self.ns.book) == ({}, None)
        assert charged == sum(money.micro(e.charged) for page in self.ns.pages for e in page.entries)

    def look_at_all(self) -> None:
        for _ in range(2):
            self.operate_on_all()
            self.hold_true()


OFTEN = {
    "operate_on_all": 5, "operate": 6, "wait": 4, "bind": 3, "bind_all": 3, "report": 3, "finish": 2, "submit": 2,
    "raise_budget": 2, "crash": 2, "suspend": 2, "operator_dies": 2, "change_credit": 2, "lose": 1, "delete_run": 1,
    "delete_workspace": 1, "clock_steps": 1,
}  # fmt: skip
ACTIONS = st.tuples(
    st.sampled_from([action for action, times in OFTEN.items() for _ in range(times)]),
    st.integers(0, 11),
    st.integers(0, 11),
)


# A busy machine is no failure.
@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["USD", "H100Hours", "H100Hours"]), st.integers(1, 6), st.lists(ACTIONS, min_size=25, max_size=70)
)
def test_whatever_happens_runs_are_held_for_first_and_charged_once_for_what_they_used(
    unit: Unit, credit: int, actions: list[tuple[str, int, int]]
) -> None:
    simulation = Simulation(unit, credit)
    simulation.submit(credit, 1)
    simulation.submit(1, credit)
    for action, a, b in actions:
        simulation.act(action, a, b)
    simulation.come_to_rest()
    simulation.go()
