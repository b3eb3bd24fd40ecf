"""What people, nodes, clocks and crashes do to runs that cost money: each method is one such thing, of a few kinds."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from halo_api.conditions import Reason
from halo_api.report import Outcome, ProgressReport
from halo_operator.plan.pod_view import parse_time
from halo_operator.plan.wishes import Unit
from halo_operator.plan.world import Object
from tests.unit.builders import checkpoint, failure, published, run_file, seconds, success
from tests.unit.builders_money import Namespace, Run, Steps
from tests.unit.builders_nodes import Truth

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


class Happenings:
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
