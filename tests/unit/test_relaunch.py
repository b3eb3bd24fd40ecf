"""When the next attempt starts: after its back-off, and never beside the one before it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from halo_api.training_job import TrainingJobStatus
from halo_operator.plan import names
from halo_operator.plan.attempts import attempt_of
from halo_operator.plan.run import plan_run
from halo_operator.plan.world import GpuEntry, PodView, RunWorld
from tests.unit.builders import NOW, catalog, ended, failure, gpu, pod, running, seconds, spec, success
from tests.unit.test_run_plan import started

TOO_LATE = seconds(601)
TWO = {"spec": spec(gpu={"type": "h100", "count": 2}), "catalog": catalog(gpu=GpuEntry("h100", gpu(perNode=1)))}


def planned(before: RunWorld, after: float) -> TrainingJobStatus:
    plan = plan_run(before, NOW + seconds(after))
    assert plan.status
    return plan.status


def going(view: PodView) -> PodView:
    return replace(view, deleting_since=NOW + seconds(691))


def gone(view: PodView) -> PodView:
    return ended(going(view), failure("Interrupted"), NOW + seconds(610))


def test_gpus_that_were_given_back_are_asked_for_again_after_a_minute() -> None:
    pods = (running(pod()), pod(rank=1, blocked="no node", blocked_reason="Unschedulable"))
    held = replace(started(**TWO), pods=pods)
    status = planned(held, 601)
    assert [(r.reason, r.finished_at is not None) for r in status.attempts] == [("GaveBack", True)]
    after = replace(held, status=status, pods=tuple(gone(p) for p in pods))
    assert plan_run(after, NOW + seconds(630)).create == ()
    assert len(plan_run(after, NOW + seconds(662)).create) == 2


def test_pods_that_never_start_are_made_again_with_the_back_off_of_every_failure() -> None:
    before = replace(started(), pods=(replace(pod(), bound_at=NOW),))
    status = planned(before, 601).model_copy(update={"failures": 2})
    after = replace(before, status=status, pods=(gone(before.pods[0]),))
    assert plan_run(after, NOW + seconds(605)).create == ()
    assert len(plan_run(after, NOW + seconds(612)).create) == 1


@pytest.mark.parametrize("still", [pod(bound_at=NOW), running(pod())], ids=["not-started", "running"])
def test_the_next_attempt_waits_until_no_pod_of_the_last_can_run_any_more(still: PodView) -> None:
    before = replace(started(), pods=(replace(pod(), bound_at=NOW),))
    status = planned(before, 601)
    assert status.attempt == 2
    waiting = plan_run(replace(before, status=status, pods=(going(still),)), NOW + seconds(640))
    assert (waiting.create, waiting.status) == ((), None)
    assert waiting.requeue_after
    assert len(plan_run(replace(before, status=status, pods=(gone(still),)), NOW + seconds(640)).create) == 1


@pytest.mark.parametrize("run", ["7b-sft", "1", "9" * 253])
def test_a_run_whose_name_starts_with_a_digit_gets_a_service_that_kubernetes_takes(run: str) -> None:
    name = names.rendezvous_service(run, "uid-1")
    assert name[0].isalpha()
    assert len(name) <= names.LONGEST_LABEL


def test_an_adapter_whose_digest_is_not_that_of_its_files_is_made_again_and_never_published() -> None:
    made = success()
    assert made.adapter
    other = made.model_copy(update={"adapter": made.adapter.model_copy(update={"digest": "sha256:" + "0" * 64})})
    at = replace(started(), pods=(ended(running(pod()), other, NOW + seconds(60)),))
    plan = plan_run(at, NOW + seconds(61))
    assert plan.first == ()
    assert plan.status
    assert (plan.status.attempt, plan.status.attempts[0].reason) == (2, "Crashed")
    assert "is not that of its files" in str(plan.status.attempts[0].message)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ("OutOfMemory", "OutOfMemory"),
        ("Crashed", "Crashed"),
        ("NodeLost", "NodeLost"),
        # That pod was deleted because its peer had failed.
        ("Interrupted", "RankLost"),
    ],
)
@pytest.mark.parametrize("first", [0, 1])
def test_a_run_that_lost_a_rank_says_why_where_another_pod_knows(first: int, other: str, told: str) -> None:
    ends = {first: failure("RankLost"), 1 - first: failure(other)}
    pods = tuple(ended(running(pod(rank=rank)), outcome, NOW) for rank, outcome in ends.items())
    outcome = attempt_of(1, 2, pods).failure
    assert outcome
    assert outcome.reason == told
