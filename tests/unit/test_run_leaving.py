"""A run that goes, or whose Workspace does: in every state it is charged what it used, once, and let go of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from halo_api.workspace import WorkspaceHold
from halo_operator.plan import money
from halo_operator.plan.money_moves import leave_unread
from halo_operator.plan.moves import RunPlan
from halo_operator.plan.names import HOLD_FINALIZER
from halo_operator.plan.wishes import Ended
from tests.unit.builders import failure, success
from tests.unit.builders_money import Namespace
from tests.unit.money_stories import (
    HOUR,
    after,
    charged,
    held,
    nothing_changes,
    publishing,
    reason,
    rest,
    training,
    words,
)


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
    ns.publish()
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
