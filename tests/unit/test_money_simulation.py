"""Any order of what people, nodes, clocks and crashes do to runs that cost money, beside the truth of when their pods ran."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from halo_api.conditions import Reason
from halo_api.report import Outcome, ProgressReport
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan import money, names
from halo_operator.plan.endings import GAVE_BACK
from halo_operator.plan.metering import closed_ms, gpu_ms, total_ms
from halo_operator.plan.pod_view import parse_time
from halo_operator.plan.run import is_terminal
from halo_operator.plan.wishes import Unit
from halo_operator.plan.world import Object
from tests.unit.builders import checkpoint, failure, published, run_file, seconds, success
from tests.unit.builders_money import Namespace, Run, Steps, Truth

AHEAD = (0.0, 300.0, -300.0)
MOST_RUNS = 4
PUBLISH_SECONDS = 30
# How a pod meets its deadline: its trainer publishes; it hangs, and its supervisor kills it; it hears of nothing.
PUBLISHES, HANGS, DEAF = range(3)
CRASHES = (
    failure("Crashed"),
    failure("Crashed", step=7),
    failure("OutOfMemory"),
    failure("Interrupted"),
    failure("NodeLost", step=30),
    None,
)


class Simulation:
    """A namespace whose operator does one read or write at a time, and may die between any two of them."""

    def __init__(self, unit: Unit, credit: int) -> None:
        self.ns = Namespace()
        self.unit, self.credit = unit, credit
        self.pay()
        # What the operator is in the middle of.
        self.flights: dict[str, Steps] = {}
        self.made = 0
        self.counts: dict[str, int] = {}
        # How pods meet their deadlines, what they saved, and when they will have ended.
        self.manners: dict[str, int] = {}
        self.saved: dict[str, int] = {}
        self.dies: dict[str, datetime] = {}
        # What was seen, and can't be otherwise later.
        self.taken = 0
        self.used: dict[str, tuple[int, int]] = {}
        self.over: dict[str, object] = {}
        self.given_back: set[tuple[str, int]] = set()

    def act(self, action: str, a: int, b: int) -> None:
        """Something happens; `a` picks to what, `b` how."""
        getattr(self, action)(a, b)
        self.hold_true()

    # People

    def pay(self) -> None:
        self.ns.grant(**{"usd" if self.unit == "USD" else "hours": float(self.credit)})

    def submit(self, a: int, b: int) -> None:
        if len(self.ns.runs) == MOST_RUNS:
            return
        self.made += 1
        budget = (0.3, 0.5, 1.0, 2.0)[a % 4] if self.unit == "H100Hours" else None
        count = 1 + b % 2
        run = self.ns.submit(f"run-{self.made}", budget, count, suspend=b == 0, backoffLimit=a % 3)
        self.counts[run.meta.uid] = count

    def pick(self, number: int) -> str | None:
        """Return the name of a run."""
        there = sorted(self.ns.runs)
        return there[number % len(there)] if there else None

    def suspend(self, a: int, b: int) -> None:
        if name := self.pick(a):
            self.ns.edit(name, suspend=b % 3 == 0)

    def raise_budget(self, a: int, b: int) -> None:
        name = self.pick(a)
        budget = self.ns.runs[name].spec.budget if name else None
        if name and budget:
            self.ns.edit(name, budget={"h100Hours": round(budget.h100_hours + (0.1, 0.5, 3.0)[b % 3], 3)})

    def change_credit(self, a: int, b: int) -> None:
        self.credit = 1 + (a + b) % 12
        self.pay()

    def delete_run(self, a: int, b: int) -> None:
        if name := self.pick(a):
            self.ns.delete(name)

    def delete_workspace(self, a: int, b: int) -> None:
        self.ns.delete_book()
        self.pay_again()

    def pay_again(self) -> None:
        """Make the Workspace again that is gone."""
        if self.ns.book is None:
            self.pay()

    # The operator

    def operate(self, a: int, b: int) -> None:
        """The operator goes on with one of its tasks, a few reads and writes."""
        tasks = ["book", *sorted(self.ns.runs)]
        self.go_on(tasks[a % len(tasks)], 1 + b % 5)

    def go_on(self, task: str, steps: int) -> None:
        flight = self.flights.get(task)
        if flight is None:
            starts: dict[str, Any] = {"book": self.ns.reconcile_book, "orphans": self.ns.orphans}
            flight = starts[task]() if task in starts else self.ns.reconcile(task)
        self.flights[task] = flight
        for _ in range(steps):
            if next(flight, None) is None:
                self.flights.pop(task, None)
                break
        self.pay_again()

    def operate_on_all(self, a: int = 0, b: int = 0) -> None:
        for task in [*sorted(self.ns.runs), "book", *sorted(self.ns.runs), "orphans"]:
            self.go_on(task, 99)

    def operator_dies(self, a: int, b: int) -> None:
        self.flights = {}
        self.ns.reports = {}
        self.ns.restart()

    def clock_steps(self, a: int, b: int) -> None:
        self.ns.skew = (0.0, -300.0)[a % 2]

    # Nodes

    def live(self, *, bound: bool) -> list[Object]:
        """Return the pods that wait for a node, or that run."""
        found = []
        for uid, pod in self.ns.pods.items():
            truth = self.ns.truth[uid]
            waits = truth.bound is None and "deletionTimestamp" not in pod["metadata"]
            runs = truth.bound is not None and truth.end is None
            if runs if bound else waits:
                found.append(pod)
        return found

    def bind(self, a: int, b: int) -> None:
        if found := self.live(bound=False):
            pod = found[a % len(found)]
            self.ns.bind(pod, AHEAD[(a + b) % 3])
            self.manners[pod["metadata"]["uid"]] = b % 3

    def bind_all(self, a: int, b: int) -> None:
        for number, _ in enumerate(self.live(bound=False)):
            self.bind(0, b + number * a)

    def report(self, a: int, b: int) -> None:
        """The first pod of an attempt says how far it is."""
        found = [p for p in self.live(bound=True) if (t := self.truth(p)).role == "trainer" and t.rank == 0]
        if found:
            truth = self.truth(found[a % len(found)])
            run = self.run_of(truth)
            if run is None or run.status.attempt != truth.attempt:
                return
            step = self.saved.get(truth.run, 0) + 1 + b
            made = (checkpoint(step, truth.attempt),) if b % 3 else ()
            if made:
                self.saved[truth.run] = step
            self.ns.push(run.meta.name, checkpoints=made, progress=ProgressReport(step=step, steps=100))

    def finish(self, a: int, b: int) -> None:
        """A whole attempt, or a pod that publishes, ends well."""
        found = self.live(bound=True)
        if not found:
            return
        truth = self.truth(found[a % len(found)])
        mates = [p for p in found if self.key(self.truth(p)) == self.key(truth)]
        if truth.role == "trainer" and len(mates) < self.counts[truth.run]:
            return
        for pod in mates:
            plan = run_file(pod).publish
            self.ns.end(pod, published(plan) if plan else success(100, truth.attempt))

    def crash(self, a: int, b: int) -> None:
        if found := self.live(bound=True):
            self.ns.end(found[a % len(found)], CRASHES[b % len(CRASHES)], code=137)

    def lose(self, a: int, b: int) -> None:
        if found := self.live(bound=True):
            self.ns.lose(found[a % len(found)])

    def truth(self, pod: Object) -> Truth:
        return self.ns.truth[pod["metadata"]["uid"]]

    def key(self, truth: Truth) -> tuple[str, str, int]:
        return truth.run, truth.role, truth.attempt

    def run_of(self, truth: Truth) -> Run | None:
        return next((run for run in self.ns.runs.values() if run.meta.uid == truth.run), None)

    def wait(self, a: int, b: int) -> None:
        self.go_by((1, 20, 70, 300, 900, 3000)[(a + b) % 6])

    def go_by(self, n: int) -> None:
        """Time goes by; pods meet their deadlines, and those that are asked to go do."""
        until = self.ns.time + seconds(n)
        while True:
            due = min(
                ((at, pod["metadata"]["uid"]) for pod in self.ns.pods.values() if (at := self.due(pod))), default=None
            )
            if due is None or due[0] > until:
                break
            self.ns.time = max(due[0], self.ns.time)
            self.meet(self.ns.pods[due[1]])
        self.ns.time = until

    def due(self, pod: Object) -> datetime | None:
        """Return when a pod does something by itself."""
        truth, uid = self.truth(pod), pod["metadata"]["uid"]
        deleting = parse_time(pod["metadata"].get("deletionTimestamp"))
        if truth.silent and truth.end:
            return None if deleting else truth.end + seconds(60)
        if truth.bound is None or truth.end is not None:
            return None
        times = []
        if deleting:
            times.append(self.dies.setdefault(uid, min(deleting, self.ns.time + seconds(3))))
        remaining = self.ns.deadline(pod).remaining_seconds
        if truth.role == "trainer" and remaining is not None and self.manners[uid] != DEAF:
            wait = 5 if self.manners[uid] == PUBLISHES else PUBLISH_SECONDS + 15
            times.append(truth.bound + seconds(math.ceil(max(remaining, 0)) + wait))
        return min(times, default=None)

    def meet(self, pod: Object) -> None:
        """It is time: the pod is asked to go, ends because it was, or is at its budget."""
        truth, uid = self.truth(pod), pod["metadata"]["uid"]
        if truth.silent:
            self.ns.delete_pod(uid)
        elif uid in self.dies:
            self.ns.end(pod, failure("Interrupted", attempt=truth.attempt), code=143)
        else:
            self.ns.end(pod, self.at_budget(truth, self.manners[uid]))

    def at_budget(self, truth: Truth, manners: int) -> Outcome:
        step, run = self.saved.get(truth.run), self.run_of(truth)
        # A checkpoint that the operator never heard of is not in what an attempt resumes from.
        known = run.status.checkpoints[-1].step if run and run.status.checkpoints else None
        if truth.rank or (step is None and known is None):
            return failure("BudgetBeforeFirstCheckpoint")
        if manners == HANGS:
            return failure("BudgetReached", step=step or known, attempt=truth.attempt)
        return success(step or known or 1, truth.attempt).model_copy(update={"reason": Reason.BUDGET_REACHED})

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
