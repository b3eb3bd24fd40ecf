"""A run at its budget: told to stop to the second, published by whoever can, and charged what ran."""

from __future__ import annotations

import pytest

from halo_api.conditions import is_true
from halo_api.report import Outcome
from halo_operator.plan import names
from halo_operator.plan.moves import RECHECK_SECONDS
from halo_operator.plan.run import not_made, plan_run
from tests.unit.builders import checkpoint, failure, published, run_file, success
from tests.unit.money_stories import (
    HOUR,
    PUBLISH,
    after,
    at_budget,
    charged,
    held,
    left_behind,
    only_entry,
    publishing,
    reason,
    rest,
    said,
    training,
    words,
)


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


def test_a_trainer_that_did_not_publish_leaves_it_to_a_pod_without_gpus_that_is_not_billed() -> None:
    ns = publishing()
    assert (reason(ns), len(ns.of("run", "publish"))) == ("Publishing", 1)
    (pod,) = ns.of("run", "publish")
    file = run_file(pod)
    assert file.publish
    assert (file.publish.source.step, file.publish.folder) == (40, "adapter/")
    assert "nvidia.com/gpu" not in str(pod["spec"])
    assert ns.book
    assert len(ns.book.status.holds) == 1
    ns.bind(pod)
    after(ns, 600)
    ns.end(pod, published(run_file(pod).publish))
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
    ns.publishes = False
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
    assert publish.source.step == 20
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
    ns.end(pod, published(run_file(pod).publish))
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
    ns.publishes = False
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
    ns.end(publisher, published(run_file(publisher).publish))
    rest(ns)
    assert reason(ns, "Complete") == "BudgetReached"
    charged(ns, "0.994445", "BudgetReached")
