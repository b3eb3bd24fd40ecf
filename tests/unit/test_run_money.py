"""A run's money until its end: held before anything is made, unused while it waits, and raised before its deadline moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from halo_operator.plan.names import HOLD_FINALIZER
from halo_operator.plan.run import is_terminal, not_made
from halo_operator.plan.wishes import Wanted
from tests.unit.builders import failure, gpu, success
from tests.unit.builders_money import Namespace
from tests.unit.money_stories import (
    HOUR,
    PUBLISH,
    after,
    at_budget,
    charged,
    held,
    only_entry,
    reason,
    rest,
    said,
    training,
    words,
)

# Before anything is made


def test_a_run_asks_for_its_hold_before_anything_is_made_and_its_finalizer_is_there_before_it_asks() -> None:
    ns = Namespace(hours=10)
    run = ns.submit("run", 2)
    plan = ns.look("run")
    assert plan
    assert (plan.finalizer, plan.status, plan.first, plan.create) == ("add", None, (), ())
    assert isinstance(plan.ask, Wanted)
    assert (plan.ask.unit, plan.ask.amount) == ("H100Hours", 2_000_000)
    assert ns.runs["run"].meta.finalizers == (HOLD_FINALIZER,)
    ns.count()
    assert ns.book
    assert ns.book.status.holds.keys() == {run.meta.uid}
    ns.look("run")
    status = ns.runs["run"].status
    assert status.hold
    assert (status.hold.h100_hours, status.hold.usd, status.hold.rate, status.attempt) == ("2", None, "3.6", 1)
    assert (reason(ns, "Reserved"), len(ns.of("run"))) == ("BudgetHeld", 1)
    rest(ns)


def test_a_run_whose_hold_takes_long_says_what_it_waits_for_once() -> None:
    ns = Namespace(hours=10)
    ns.submit("run", 2)
    ns.look("run")
    ns.asked_seconds = 6
    for _ in range(3):
        plan = ns.look("run")
        assert plan
        assert (plan.requeue_after, plan.create) == (60, ())
    assert (reason(ns), reason(ns, "Reserved"), len(said(ns, "HoldPending"))) == ("Waiting", "HoldPending", 1)
    ns.asked_seconds = None
    rest(ns)
    assert reason(ns, "Reserved") == "BudgetHeld"


def test_a_run_takes_the_terms_that_its_hold_froze_although_its_gpu_changed_meanwhile() -> None:
    ns = Namespace(usd=10)
    ns.submit("run")
    ns.look("run")
    ns.count()
    ns.gpu = gpu(prices=[{"region": "us", "usdPerHour": 30, "markup": 2}], perNode=1, h100Equivalent=0.5)
    rest(ns)
    status = ns.runs["run"].status
    assert status.hold
    assert status.frozen
    assert status.estimate
    assert (status.hold.usd, status.hold.rate, status.frozen.gpu.h100_equivalent) == ("0.6084", "3.6", 1)
    assert (status.estimate.usd_per_gpu_hour, status.estimate.usd and status.estimate.usd.high) == ("3.6", "0.6084")


def test_a_run_that_somebody_was_faster_than_is_refused_with_the_shortfall() -> None:
    ns = Namespace(hours=3)
    ns.submit("first", 2)
    after(ns, 1)
    ns.submit("run", 2)
    ns.look("first", "run")
    rest(ns)
    assert (reason(ns, "Reserved", "first"), reason(ns, "Failed")) == ("BudgetHeld", "InsufficientFunds")
    assert "2 H100-hours, found 1 free in the shared allocation" in words(ns)
    assert ns.runs["run"].meta.finalizers == ()


def test_of_two_hundred_equal_runs_exactly_forty_are_held_at_most_and_the_rest_is_refused() -> None:
    ns = Namespace(hours=40)
    for number in range(200):
        ns.submit(f"run-{number:03d}", 1)
    rest(ns)
    assert ns.book
    assert (len(ns.book.status.holds), len(ns.pods)) == (40, 40)
    assert ns.book.status.allocation
    assert ns.book.status.allocation.balance == "0"
    assert [name for name in ns.runs if not is_terminal(ns.runs[name].status)] == [f"run-{n:03d}" for n in range(40)]


def test_a_run_that_is_refused_after_its_hold_was_placed_releases_it() -> None:
    ns = Namespace(hours=10)
    ns.submit("run", 2)
    ns.look("run")
    ns.count()
    ns.has_base = False
    rest(ns)
    assert reason(ns) == "Refused"
    assert (only_entry(ns).charged, only_entry(ns).gpu_seconds, ns.runs["run"].meta.finalizers) == ("0", "0", ())
    assert ns.book
    assert ns.book.status.holds == {}


def test_a_run_whose_finalizer_an_uninstall_took_off_before_its_first_status_gets_it_back_and_leaves_no_hold() -> None:
    ns = Namespace(hours=10)
    run = ns.submit("run", 2)
    ns.look("run")
    ns.count()
    ns.written(run, meta=replace(run.meta, finalizers=()))
    ns.restart()
    ns.has_base = False
    ns.look("run")
    assert ns.runs["run"].meta.finalizers == (HOLD_FINALIZER,)
    rest(ns)
    assert ns.book
    assert (reason(ns), ns.book.status.holds, ns.runs["run"].meta.finalizers) == ("Refused", {}, ())


def test_a_run_that_is_refused_while_its_hold_is_being_placed_does_not_leave_it_behind() -> None:
    ns = Namespace(hours=10)
    ns.submit("run", 2)
    ns.look("run")
    placing = ns.reconcile_book()
    assert next(placing) == "read"
    ns.has_base = False
    ns.look("run", "run", "run")
    list(placing)
    rest(ns)
    assert ns.book
    assert (ns.book.status.holds, ns.runs["run"].meta.finalizers) == ({}, ())


def test_a_run_whose_service_was_refused_first_makes_no_pod_before_its_status_says_what_is_held() -> None:
    ns = Namespace(hours=10)
    ns.submit("run", 4, count=2)
    ns.look("run")
    ns.count()
    run = ns.runs["run"]
    # Somebody has a Service of that name, so that nothing was written yet but this; then it is gone.
    told = not_made(ns.world(run), "Service run-rendezvous exists and is not this run's; delete it", ns.now)
    assert told.status
    ns.written(run, status=told.status)
    rest(ns)
    assert (ns.runs["run"].status.attempt, reason(ns, "Reserved"), len(ns.of("run"))) == (1, "BudgetHeld", 2)
    for pod in ns.of("run"):
        ns.bind(pod)
    after(ns, HOUR)
    ns.delete("run")
    rest(ns)
    for pod in list(ns.pods.values()):
        ns.end(pod, failure("Interrupted"))
    rest(ns)
    charged(ns, "2", "Cancelled")


def test_a_run_without_a_wallet_or_allocation_holds_nothing_and_is_metered() -> None:
    ns = Namespace()
    ns.submit("run")
    rest(ns)
    assert (reason(ns, "Reserved"), ns.runs["run"].meta.finalizers) == ("NothingHeld", ())
    ns.bind(ns.of("run")[0])
    after(ns, HOUR)
    ns.end(ns.of("run")[0], success())
    rest(ns)
    usage = ns.runs["run"].status.usage
    assert usage
    assert (usage.usd, usage.settlement, ns.entries()) == ("3.6", None, [])


# Time that is not used


def test_a_run_that_queued_longer_than_its_budget_has_all_of_it() -> None:
    ns = held(budget=1)
    after(ns, 5 * HOUR)
    rest(ns)
    ns.bind(ns.of("run")[0])
    rest(ns)
    assert (reason(ns), ns.deadline(ns.of("run")[0]).remaining_seconds) == ("Running", HOUR - PUBLISH)
    plan = ns.look("run")
    assert plan
    assert plan.requeue_after == pytest.approx(HOUR - PUBLISH)


def test_a_suspended_run_keeps_its_hold_and_pays_nothing_while_it_waits() -> None:
    ns = training(budget=2)
    after(ns, 600)
    ns.edit("run", suspend=True)
    ns.settle_down()
    ns.end(ns.of("run")[0], failure("Interrupted", step=12))
    rest(ns)
    assert ns.book
    assert (reason(ns), len(ns.book.status.holds), ns.pods) == ("Suspended", 1, {})
    after(ns, 10 * HOUR)
    rest(ns)
    ns.edit("run", suspend=False)
    rest(ns)
    (pod,) = ns.of("run")
    assert ns.deadline(pod).remaining_seconds == 2 * HOUR - 600 - PUBLISH
    ns.bind(pod)
    after(ns, 1200)
    ns.end(pod, success(100, 2))
    rest(ns)
    charged(ns, "0.5", "Succeeded")


def test_a_hold_that_buys_more_time_than_there_are_dates_starts_as_any_other() -> None:
    ns = Namespace(hours=1e6)
    ns.gpu = gpu(h100Equivalent=0.001, perNode=1)
    ns.submit("run", 100_000)
    rest(ns)
    ns.bind(ns.of("run")[0])
    rest(ns)
    assert reason(ns) == "Running"


# Raises


def test_a_raise_is_held_first_then_the_deadline_moves_on_the_live_pods() -> None:
    ns = training(budget=2)
    ns.edit("run", budget={"h100Hours": 3})
    ns.look("run")
    assert ns.deadline(ns.of("run")[0]).sequence == 0
    ns.count()
    assert ns.deadline(ns.of("run")[0]).sequence == 0
    rest(ns)
    status, deadline = ns.runs["run"].status, ns.deadline(ns.of("run")[0])
    assert status.hold
    assert (status.hold.h100_hours, status.hold.raises) == ("3", 1)
    assert (deadline.sequence, deadline.remaining_seconds) == (2, 3 * HOUR - PUBLISH)
    assert words(ns, "Reserved") == "3 H100-hours are held"
    assert said(ns, "BudgetRaised") == ["3 H100-hours are held, 2 before; the run stops there"]
    assert ns.book
    assert ns.book.status.holds[ns.runs["run"].meta.uid].raised_at


def test_a_raise_that_is_not_free_leaves_things_as_they_are_says_so_once_and_is_tried_again_later() -> None:
    ns = training(budget=2, hours=2.5)
    ns.edit("run", budget={"h100Hours": 3})
    rest(ns)
    for _ in range(3):
        plan = ns.look("run")
        assert plan
        # Asked of the Workspace it would be refused and wake the run, which would ask again, as fast as both can.
        assert (plan.status, plan.ask, plan.requeue_after) == (None, None, 60)
    (told,) = said(ns, "InsufficientFunds")
    assert told == words(ns, "Reserved")
    assert told == (
        "spec.budget.h100Hours: found 3, for which 1 H100-hours more must be held, but 0.5 are free; "
        "the run goes on with the 2 that it has, and asks again"
    )
    assert (reason(ns), ns.deadline(ns.of("run")[0]).sequence) == ("Running", 0)
    ns.grant(hours=5)
    rest(ns)
    assert (words(ns, "Reserved"), ns.deadline(ns.of("run")[0]).sequence) == ("3 H100-hours are held", 2)


@pytest.mark.parametrize(
    ("move", "why"), [("grant", "its Workspace has no allocation any more"), ("delete_book", "is being deleted")]
)
def test_a_raise_that_its_workspace_can_not_hold_at_all_is_not_asked_for(move: str, why: str) -> None:
    ns = training(budget=2)
    getattr(ns, move)()
    ns.edit("run", budget={"h100Hours": 3})
    rest(ns)
    plan = ns.look("run")
    assert plan
    assert (plan.status, plan.ask) == (None, None)
    assert why in words(ns, "Reserved")


def test_a_raise_while_the_next_attempt_waits_is_told_once_and_kept() -> None:
    ns = training(budget=2)
    for attempt in (1, 2):
        ns.end(ns.of("run")[0], failure("Crashed", attempt=attempt))
        ns.look("run", "run")
        for pod in ns.of("run"):
            ns.bind(pod)
    ns.settle_down()
    assert (ns.of("run"), ns.runs["run"].status.attempt) == ([], 3)
    ns.edit("run", budget={"h100Hours": 3})
    rest(ns)
    assert len(said(ns, "BudgetRaised")) == 1
    hold = ns.runs["run"].status.hold
    assert hold
    assert hold.h100_hours == "3"
    after(ns, 60)
    rest(ns)
    (pod,) = ns.of("run")
    deadline = ns.deadline(pod)
    assert (deadline.sequence, deadline.remaining_seconds) == (2, 3 * HOUR - PUBLISH)


def test_a_raise_that_comes_as_the_run_ends_is_no_part_of_what_is_settled_twice() -> None:
    ns = training(budget=1)
    ns.edit("run", budget={"h100Hours": 3})
    ns.look("run")
    after(ns, HOUR + 40)
    ns.end(ns.of("run")[0], at_budget())
    ending = ns.reconcile("run")
    assert next(ending) == "workspace"
    while next(ending) != "status":
        pass
    ns.count()
    list(ending)
    rest(ns)
    charged(ns, "1", "BudgetReached")
