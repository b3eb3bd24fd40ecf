"""A run's money, told as its life: held before anything is made, stopped at its budget, charged once, and let go of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from halo_api.conditions import Reason, condition_of, is_true
from halo_api.ledger import LedgerEntry
from halo_api.report import Outcome
from halo_api.run_file import RUN_ANNOTATION, RunFile
from halo_api.workspace import WorkspaceHold
from halo_operator.plan import money, names
from halo_operator.plan.money_moves import leave_unread
from halo_operator.plan.moves import RECHECK_SECONDS, RunPlan
from halo_operator.plan.names import HOLD_FINALIZER
from halo_operator.plan.run import is_terminal, not_made, plan_run
from halo_operator.plan.wishes import Ended, Wanted
from halo_operator.plan.world import Object
from tests.unit.builders import checkpoint, failure, gpu, seconds, success
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


def run_file(pod: Object) -> RunFile:
    return RunFile.model_validate_json(pod["metadata"]["annotations"][RUN_ANNOTATION])


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


# Stopping at the budget


def test_a_run_is_told_to_stop_to_the_second_so_that_publishing_still_fits() -> None:
    ns = held(budget=2)
    file = run_file(ns.of("run")[0])
    assert file.deadline
    assert (file.deadline.sequence, file.deadline.remaining_seconds) == (0, 2 * HOUR - PUBLISH)
    assert ns.deadline(ns.of("run")[0]) == file.deadline
    assert file.publish_seconds == PUBLISH
    after(ns, 5 * HOUR)
    ns.bind(ns.of("run")[0])
    rest(ns)
    after(ns, 100)
    plan = ns.look("run")
    assert plan
    assert plan.requeue_after == pytest.approx(2 * HOUR - PUBLISH - 100)
    ns.push("run", checkpoints=(checkpoint(40),))
    after(ns, 2 * HOUR - 100 - 31)
    rest(ns)
    assert reason(ns) == "Running"
    after(ns, 1)
    rest(ns)
    assert (reason(ns), words(ns)) == ("Publishing", "its budget is reached; it publishes the checkpoint of step 40")
    assert len(said(ns, "BudgetReached")) == 1


def test_pods_that_were_bound_at_different_times_stop_at_the_same_moment() -> None:
    ns = held(budget=4, count=2)
    first, second = ns.of("run")
    ns.bind(first)
    rest(ns)
    assert ns.deadline(first).sequence == 0
    after(ns, 500)
    ns.bind(second, ahead=-300)
    rest(ns)
    role = 2 * HOUR - PUBLISH
    assert [(ns.deadline(p).sequence, ns.deadline(p).remaining_seconds) for p in ns.of("run")] == [
        (1, role + 500),
        (0, role),
    ]


@pytest.mark.parametrize("outcome", [failure("BudgetBeforeFirstCheckpoint"), left_behind()], ids=["fresh", "resumed"])
def test_a_pod_whose_time_ran_out_while_it_waited_for_the_last_one_costs_nothing_and_ends_nothing(
    outcome: Outcome,
) -> None:
    ns = held(budget=0.2, count=2)
    first, _ = ns.of("run")
    ns.bind(first)
    rest(ns)
    after(ns, 331)
    ns.end(first, outcome)
    rest(ns)
    assert (reason(ns), ns.runs["run"].status.attempt) == ("Queued", 2)
    assert words(ns) == "attempt 1 got only part of its GPUs within 330 s and gives them back"
    after(ns, 150)
    rest(ns)
    (again, _) = ns.of("run")
    assert ns.deadline(again).remaining_seconds == 360 - PUBLISH


def test_what_does_not_end_by_itself_is_killed_half_a_minute_after_its_time() -> None:
    ns = training(budget=1)
    ns.push("run", checkpoints=(checkpoint(40),))
    after(ns, HOUR + 29)
    plan = ns.look("run")
    assert plan
    assert (plan.expel, plan.requeue_after) == ((), pytest.approx(1))
    after(ns, 1)
    plan = ns.look("run")
    assert plan
    assert [ref.uid for ref in plan.expel] == [ns.of("run")[0]["metadata"]["uid"]]
    after(ns, 10)
    ns.end(ns.of("run")[0], None, code=137)
    ns.settle_down()
    ns.bind(ns.of("run", "publish", 1)[0])
    ns.end(ns.of("run", "publish", 1)[0], success())
    rest(ns)
    charged(ns, "1", "BudgetReached")
    assert only_entry(ns).overrun == "0.011112"


def test_a_trainer_that_publishes_in_time_completes_its_run_at_the_budget() -> None:
    ns = training(budget=1)
    after(ns, HOUR - 10)
    ns.end(ns.of("run")[0], at_budget())
    rest(ns)
    assert (reason(ns), reason(ns, "Complete")) == ("BudgetReached", "BudgetReached")
    assert words(ns) == "adapter run published after step 40 of 100: its budget is reached"
    charged(ns, "0.997223", "BudgetReached")
    usage = ns.runs["run"].status.usage
    assert usage
    assert usage.settlement
    assert (usage.settlement.released, usage.settlement.overrun) == ("0.002777", "0")
    assert ns.adapters == {"run": ns.runs["run"].meta.uid}


def test_a_pod_that_ends_before_its_peer_does_not_make_the_attempt_one_that_never_started() -> None:
    ns = training(budget=4, count=2)
    after(ns, HOUR)
    ns.end(ns.of("run")[1], success())
    rest(ns)
    assert reason(ns) == "Running"
    after(ns, 20)
    ns.end(ns.of("run")[0], success())
    rest(ns)
    charged(ns, "2.011112", "Succeeded")


def publishing(**changes: Any) -> Namespace:
    """A run that was killed at its budget, and whose checkpoint waits to be published."""
    ns = training(budget=1, **changes)
    after(ns, HOUR + 12)
    ns.end(ns.of("run")[0], left_behind())
    ns.settle_down()
    nothing_changes(ns)
    return ns


def test_a_trainer_that_did_not_publish_leaves_it_to_a_pod_without_gpus_that_is_not_billed() -> None:
    ns = publishing()
    assert (reason(ns), len(ns.of("run", "publish"))) == ("Publishing", 1)
    (pod,) = ns.of("run", "publish")
    file = run_file(pod)
    assert file.publish
    assert file.publish.checkpoint.step == 40
    assert "nvidia.com/gpu" not in str(pod["spec"])
    assert ns.book
    assert len(ns.book.status.holds) == 1
    ns.bind(pod)
    after(ns, 600)
    ns.end(pod, success(40))
    rest(ns)
    assert reason(ns, "Complete") == "BudgetReached"
    charged(ns, "1", "BudgetReached")
    entry = only_entry(ns)
    assert (entry.used, entry.overrun, entry.gpu_seconds) == ("1.003334", "0.003334", "3612")


def test_publishing_that_fails_is_tried_again_up_to_the_backoff_limit() -> None:
    ns = publishing(backoffLimit=1)
    for number in range(2):
        (*_, pod) = ns.of("run", "publish")
        assert len(ns.of("run", "publish")) == number + 1
        ns.bind(pod)
        ns.end(pod, failure("Crashed", "no space left"))
        rest(ns)
    assert (reason(ns, "Failed"), is_true(ns.runs["run"].status.conditions, "Complete")) == ("Crashed", False)
    assert "the checkpoint of step 40 could not be published: no space left" in words(ns)
    charged(ns, "1", "Crashed")


def test_a_checkpoint_that_is_gone_leaves_the_adapter_to_the_one_before() -> None:
    ns = training(budget=1, backoffLimit=0)
    ns.push("run", checkpoints=(checkpoint(20), checkpoint(40)))
    after(ns, HOUR + 12)
    ns.end(ns.of("run")[0], left_behind())
    rest(ns)
    (pod,) = ns.of("run", "publish")
    ns.bind(pod)
    ns.end(pod, failure("CheckpointCorrupt", "found nothing there"))
    rest(ns)
    (_, pod) = ns.of("run", "publish")
    publish = run_file(pod).publish
    assert publish
    assert publish.checkpoint.step == 20
    ns.bind(pod)
    rest(ns)
    assert words(ns) == "its budget is reached; the checkpoint of step 20 is published"
    ns.end(pod, failure("CheckpointCorrupt", "found nothing there"))
    rest(ns)
    assert (reason(ns, "Failed"), len(ns.of("run", "publish"))) == ("CheckpointCorrupt", 2)


def test_a_publish_pod_that_was_deleted_does_not_keep_its_name_from_the_next() -> None:
    ns = publishing(backoffLimit=2)
    for _ in range(2):
        (*_, pod) = ns.of("run", "publish")
        ns.bind(pod)
        ns.end(pod, failure("Crashed"))
        if len(ns.of("run", "publish")) == 2:
            del ns.pods[ns.of("run", "publish")[0]["metadata"]["uid"]]
        rest(ns)
    assert [p["metadata"]["labels"][names.RANK_LABEL] for p in ns.of("run", "publish")] == ["1", "2"]


def test_a_publish_pod_that_a_quota_refuses_is_tried_again_without_a_word() -> None:
    ns = publishing()
    ns.pods = {uid: pod for uid, pod in ns.pods.items() if pod not in ns.of("run", "publish")}
    run = ns.runs["run"]
    told = not_made(ns.world(run), "exceeded quota: pods", ns.now)
    assert told.status
    ns.written(run, status=told.status)
    again = plan_run(ns.world(run), ns.now)
    assert (again.status, again.notes, again.requeue_after) == (None, (), RECHECK_SECONDS)
    assert len(again.create) == 1
    rest(ns)
    (pod,) = ns.of("run", "publish")
    ns.bind(pod)
    ns.end(pod, success(40))
    rest(ns)
    assert reason(ns, "Complete") == "BudgetReached"


@pytest.mark.parametrize("outcome", [failure("BudgetBeforeFirstCheckpoint"), left_behind(None)], ids=["said", "killed"])
def test_a_run_that_had_nothing_to_keep_at_its_budget_fails_and_is_charged_what_ran(outcome: Outcome) -> None:
    ns = training(budget=1)
    after(ns, HOUR - 30)
    ns.end(ns.of("run")[0], outcome)
    rest(ns)
    assert reason(ns, "Failed") == "BudgetBeforeFirstCheckpoint"
    charged(ns, "0.991667", "BudgetBeforeFirstCheckpoint")


@pytest.mark.parametrize("backoff_limit", [0, 3])
def test_a_run_whose_node_is_lost_with_too_little_left_to_go_on_is_published(backoff_limit: int) -> None:
    ns = training(budget=1, backoffLimit=backoff_limit)
    ns.push("run", checkpoints=(checkpoint(40),))
    after(ns, HOUR - 20)
    ns.look("run")
    (pod,) = ns.of("run")
    ns.lose(pod)
    after(ns, 60)
    ns.delete_pod(pod["metadata"]["uid"])
    after(ns, 200)
    ns.settle_down()
    (made,) = [p for p in ns.pods.values() if p["metadata"]["labels"]["halo.training/role"] == "publish"]
    ns.bind(made)
    ns.end(made, success(40))
    rest(ns)
    assert reason(ns, "Complete") == "BudgetReached"
    charged(ns, "0.994445", "BudgetReached")


def test_a_node_that_is_lost_early_leaves_the_rest_of_the_budget_to_the_next_attempt() -> None:
    ns = training(budget=1)
    ns.push("run", checkpoints=(checkpoint(40),))
    after(ns, 600)
    (pod,) = ns.of("run")
    ns.lose(pod)
    ns.delete_pod(pod["metadata"]["uid"])
    after(ns, 200)
    rest(ns)
    (second,) = ns.of("run", attempt=2)
    assert ns.deadline(second).remaining_seconds == 3000 - PUBLISH
    usage = ns.runs["run"].status.usage
    assert usage
    assert (usage.closed_gpu_seconds, usage.through) == ("600", 1)


def test_a_raise_before_the_checkpoint_of_a_run_at_its_budget_is_published_starts_nothing_beside_it() -> None:
    ns = training(budget=1)
    ns.push("run", checkpoints=(checkpoint(40),))
    after(ns, HOUR - 20)
    ns.edit("run", suspend=True)
    ns.settle_down()
    ns.end(ns.of("run")[0], failure("Interrupted", step=41))
    rest(ns)
    ns.edit("run", suspend=False)
    rest(ns)
    (publisher,) = ns.of("run", "publish")
    ns.edit("run", budget={"h100Hours": 3})
    rest(ns)
    assert ns.of("run") == []
    ns.bind(publisher)
    ns.end(publisher, success(41))
    rest(ns)
    assert reason(ns, "Complete") == "BudgetReached"
    charged(ns, "0.994445", "BudgetReached")


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


# Leaving


def deleted(ns: Namespace) -> Namespace:
    """Delete the run; its pods end when they are asked to."""
    ns.delete("run")
    for _ in range(4):
        if "run" in ns.runs:
            ns.settle_down()
        after(ns, 10)
        for uid, pod in list(ns.pods.items()):
            truth = ns.truth[uid]
            if truth.bound and truth.end is None:
                ns.end(pod, failure("Interrupted"))
        list(ns.orphans())
    ns.count()
    nothing_changes(ns)
    assert (ns.runs, ns.pods) == ({}, {})
    assert ns.book is None or ns.book.status.holds == {}
    return ns


def test_a_run_that_is_deleted_before_its_hold_is_placed_leaves_nothing() -> None:
    ns = Namespace(hours=10)
    ns.submit("run", 2)
    ns.look("run")
    assert deleted(ns).entries() == []


def test_a_run_that_is_deleted_once_it_holds_and_has_no_pods_is_charged_nothing() -> None:
    ns = Namespace(hours=10)
    ns.submit("run", 2)
    ns.look("run")
    ns.count()
    charged(deleted(ns), "0", "Cancelled")


def test_a_run_that_is_deleted_in_the_queue_is_charged_nothing() -> None:
    ns = held()
    after(ns, HOUR)
    charged(deleted(ns), "0", "Cancelled")


def test_a_run_that_is_deleted_before_it_ever_ran_says_what_becomes_of_its_hold() -> None:
    ns = held(suspend=True)
    ns.delete("run")
    ns.look("run")
    usage = ns.runs["run"].status.usage
    assert usage
    assert usage.settlement
    assert (usage.settlement.charged, usage.settlement.released) == ("0", "2")
    assert words(ns, "Reserved") == "0 of 2 H100-hours are charged, 2 released"
    charged(deleted(ns), "0", "Cancelled")


def test_a_run_that_is_deleted_while_it_trains_is_charged_until_its_pods_ended() -> None:
    ns = training(count=2, budget=4)
    after(ns, HOUR)
    charged(deleted(ns), "2.005556", "Cancelled")


def test_a_run_that_is_deleted_and_whose_spec_can_not_be_read_is_charged_what_ran() -> None:
    ns = training(budget=2, count=2)
    run, book = ns.runs["run"], ns.book
    assert book
    hold = book.status.holds[run.meta.uid]
    first, second = ns.of("run")

    def leave(held: WorkspaceHold | None) -> RunPlan:
        return leave_unread(run.meta, run.status, ns.world(run).pods, held, ns.now, asked=False)

    plan = leave(hold)
    assert (len(plan.delete), plan.release, plan.ask) == (2, (), None)
    after(ns, 1800)
    ns.end(first, failure("Interrupted"))
    ns.end(second, failure("Interrupted"))
    plan = leave(hold)
    assert isinstance(plan.ask, Ended)
    assert (plan.ask.used, plan.ask.outcome, plan.release) == (1_000_000, "Cancelled", ())
    plan = leave(None)
    assert (len(plan.release), plan.finalizer) == (2, "remove")


def test_a_run_that_is_deleted_while_it_is_suspended_is_charged_what_ran() -> None:
    ns = training()
    after(ns, HOUR)
    ns.edit("run", suspend=True)
    ns.settle_down()
    ns.end(ns.of("run")[0], failure("Interrupted", step=12))
    rest(ns)
    after(ns, HOUR)
    charged(deleted(ns), "1", "Cancelled")


def test_a_run_that_is_deleted_while_it_publishes_is_charged_what_ran() -> None:
    charged(deleted(publishing()), "1", "Cancelled")


def test_a_run_that_is_deleted_when_it_is_over_was_charged_before() -> None:
    ns = training()
    after(ns, HOUR)
    ns.end(ns.of("run")[0], success())
    rest(ns)
    charged(ns, "1", "Succeeded")
    charged(deleted(ns), "1", "Succeeded")


def test_a_run_that_is_deleted_in_the_moment_of_its_end_is_charged_for_how_it_ended() -> None:
    ns = training()
    after(ns, HOUR)
    ns.end(ns.of("run")[0], success())
    ns.look("run")
    charged(deleted(ns), "1", "Succeeded")


def test_an_orphaning_delete_that_takes_the_owner_of_the_pods_away_is_charged_the_same() -> None:
    ns = training()
    after(ns, HOUR)
    for pod in ns.pods.values():
        pod["metadata"]["ownerReferences"] = []
    charged(deleted(ns), "1.002778", "Cancelled")


def test_a_run_on_a_lost_node_is_deleted_without_waiting_for_the_node() -> None:
    ns = training()
    after(ns, HOUR)
    ns.lose(ns.of("run")[0])
    ns.delete("run")
    rest(ns)
    assert "run" in ns.runs
    after(ns, 200)
    ns.settle_down()
    assert ns.runs == {}
    charged(ns, "1", "Cancelled")


def test_a_workspace_that_goes_waits_for_its_holds_and_takes_its_book_into_a_page() -> None:
    ns = training()
    ns.delete_book()
    rest(ns)
    assert ns.book
    after(ns, HOUR)
    ns.end(ns.of("run")[0], success())
    ns.settle_down()
    assert (ns.book, len(ns.pages)) == (None, 1)
    charged(ns, "1", "Succeeded")
    ns.grant(hours=10)
    ns.submit("next", 9.001)
    rest(ns)
    assert reason(ns, "Failed", "next") == "InsufficientFunds"


def test_a_run_whose_workspace_is_gone_ends_and_is_let_go_of() -> None:
    ns = training()
    ns.book = None
    after(ns, 60)
    rest(ns)
    assert reason(ns) == "Running"
    ns.end(ns.of("run")[0], success())
    rest(ns)
    assert (reason(ns, "Complete"), ns.runs["run"].meta.finalizers) == ("Succeeded", ())
    deleted(ns)


def test_a_run_whose_finalizer_an_uninstall_took_off_gets_it_back_and_is_charged() -> None:
    ns = training()
    assert ns.book
    for one in (ns.runs["run"], ns.book):
        one.meta = replace(one.meta, finalizers=())
        one.version += 1
    ns.restart()
    rest(ns)
    assert ns.runs["run"].meta.finalizers == (HOLD_FINALIZER,)
    after(ns, HOUR)
    ns.end(ns.of("run")[0], success())
    rest(ns)
    charged(ns, "1", "Succeeded")


@pytest.mark.parametrize("ahead", [(300, -300), (-300, -300), (0, 300)])
def test_nodes_and_an_operator_whose_clocks_differ_are_charged_the_same(ahead: tuple[float, float]) -> None:
    ns = held(budget=4, count=2)
    for pod, off in zip(ns.of("run"), ahead, strict=True):
        ns.bind(pod, off)
        after(ns, 100)
    rest(ns)
    ns.skew = -300
    after(ns, HOUR)
    for pod in ns.of("run"):
        ns.end(pod, success())
    rest(ns)
    charged(ns, money.usd(money.micro_hours(2 * 3700 * 1000)), "Succeeded")
