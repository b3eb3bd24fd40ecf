"""What the operator does next with a TrainingJob, told as its life."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from halo_api.conditions import condition_of, is_true
from halo_api.report import CheckpointReport, ProgressReport, Report
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan.pod_view import LOST_AFTER_SECONDS
from halo_operator.plan.run import plan_run
from halo_operator.plan.world import GpuEntry, RunWorld
from tests.unit.builders import (
    NOW,
    catalog,
    checkpoint,
    ended,
    failure,
    gpu,
    pod,
    published,
    publisher,
    run_file,
    running,
    seconds,
    spec,
    success,
    taken,
    world,
)


def state(status: TrainingJobStatus) -> str:
    ready = condition_of(status.conditions, "Ready")
    return ready.reason if ready else ""


def started(**changes: Any) -> RunWorld:
    """A run whose first attempt was planned."""
    before = world(**changes)
    plan = plan_run(before, NOW)
    assert plan.status
    return replace(before, status=plan.status)


def published_run(at: RunWorld) -> RunWorld:
    """The run whose attempt has ended well, once the pod that publishes has, too."""
    plan = plan_run(at, NOW)
    assert plan.status
    (made,) = plan.create
    return replace(at, status=plan.status, pods=(*at.pods, publisher(made, published(run_file(made).publish))))


def test_an_accepted_run_is_frozen_and_its_attempt_is_in_the_status_before_its_pod_exists() -> None:
    plan = plan_run(world(), NOW)
    assert plan.status
    assert (plan.status.attempt, state(plan.status)) == (1, "Starting")
    assert plan.status.frozen
    assert plan.status.frozen.lora.rank == 16
    assert plan.status.frozen.lora.learning_rate == 2e-4
    assert len(plan.create) == 1
    file = run_file(plan.create[0])
    assert file.train
    assert (file.run.attempt, file.train.resume, file.train.steps) == (1, None, 100)
    assert file.train.output == "pvc://halo-artifacts/uid-1/a1"


def test_a_refused_run_is_failed_stalled_and_not_ready_and_makes_nothing() -> None:
    plan = plan_run(world(catalog=catalog(base=None)), NOW)
    assert plan.status
    assert state(plan.status) == "Refused"
    assert is_true(plan.status.conditions, "Failed")
    assert is_true(plan.status.conditions, "Stalled")
    assert plan.create == ()


def test_a_run_whose_dataset_is_missing_waits_and_says_for_what() -> None:
    plan = plan_run(world(catalog=catalog(dataset=None)), NOW)
    assert plan.status
    assert state(plan.status) == "Waiting"
    assert "no such Dataset" in (plan.status.waiting or "")
    assert plan.requeue_after


def test_a_lost_status_write_between_status_and_pod_is_made_good() -> None:
    again = plan_run(started(), NOW)
    assert again.status is None
    assert len(again.create) == 1


def test_two_nodes_get_two_pods_and_a_service_that_exists_first() -> None:
    plan = plan_run(
        world(spec=spec(gpu={"type": "h100", "count": 2}), catalog=catalog(gpu=GpuEntry("h100", gpu(perNode=1)))), NOW
    )
    assert [child["kind"] for child in plan.first] == ["Service"]
    assert [run_file(child).layout.node_rank for child in plan.create] == [0, 1]
    assert len({run_file(child).layout.rendezvous for child in plan.create}) == 1


def test_progress_alone_waits_for_ten_seconds_and_a_checkpoint_does_not() -> None:
    at = started()

    def step(n: int, checkpoints: tuple[CheckpointReport, ...] = ()) -> Report:
        done = ProgressReport(step=n, steps=100)
        return Report(run_uid="uid-1", attempt=1, sequence=n, progress=done, checkpoints=checkpoints)

    at = replace(at, pods=(running(pod()),), report=step(1))
    first = plan_run(at, NOW + seconds(1))
    assert first.status
    at = replace(at, status=first.status, report=step(2))
    second = plan_run(at, NOW + seconds(3))
    assert (second.status, second.requeue_after) == (None, pytest.approx(8))
    third = plan_run(replace(at, report=step(3, (checkpoint(3),))), NOW + seconds(4))
    assert third.status
    assert [c.step for c in third.status.checkpoints] == [3]
    assert [note.reason for note in third.notes] == ["CheckpointSaved"]


def test_a_finished_attempt_is_closed_and_its_adapter_published_before_the_status_says_so() -> None:
    at = replace(started(), pods=(ended(running(pod()), success()),))
    plan = plan_run(at, NOW)
    assert plan.status
    assert plan.status.trained
    assert (state(plan.status), plan.first, len(plan.release), len(plan.create)) == ("Publishing", (), 1, 1)
    over = plan_run(published_run(at), NOW)
    assert over.status
    assert [child["kind"] for child in over.first] == ["Adapter"]
    assert (state(over.status), is_true(over.status.conditions, "Complete")) == ("Succeeded", True)


def test_an_attempt_keeps_how_long_each_phase_took_and_they_add_up_to_its_time() -> None:
    spoke = success().model_copy(update={"seconds": {"load": 5.0, "train": 100.0, "save": 4.0, "publish": 1.0}})
    done = ended(running(pod(), since=NOW), spoke, at=NOW + seconds(120))
    status = plan_run(replace(started(), pods=(done,)), NOW).status
    assert status
    record = status.attempts[-1]
    assert {p.name: p.seconds for p in record.phases} == {
        "start": "10.0", "load": "5.0", "train": "100.0", "save": "4.0", "publish": "1.0"
    }  # fmt: skip


def test_an_adapter_of_another_run_is_never_overwritten() -> None:
    at = replace(started(), pods=(ended(running(pod()), success()),), catalog=catalog(adapter=taken("other")))
    plan = plan_run(at, NOW)
    assert plan.status
    assert (plan.first, state(plan.status)) == ((), "Failed")


@pytest.mark.parametrize("reason", ["Crashed", "Interrupted", "NodeLost", "Evicted"])
def test_after_an_infrastructure_failure_the_next_attempt_goes_on_from_the_last_checkpoint(reason: str) -> None:
    at = replace(started(), pods=(ended(running(pod()), failure(reason, step=40)),))
    plan = plan_run(at, NOW)
    assert plan.status
    assert (plan.status.attempt, plan.status.failures, state(plan.status)) == (2, 1, "Starting")
    assert len(plan.delete) == len(plan.release) == 1
    then = plan_run(replace(at, status=plan.status, pods=()), NOW + seconds(1))
    resume = run_file(then.create[0]).train
    assert resume
    assert resume.resume
    assert resume.resume.step == 40
    assert run_file(then.create[0]).run.attempt == 2


@pytest.mark.parametrize("reason", ["BadRow", "DatasetChanged", "OutOfMemory", "DiskFull", "NonFiniteLoss"])
def test_a_user_error_ends_the_run_without_a_retry(reason: str) -> None:
    plan = plan_run(replace(started(), pods=(ended(running(pod()), failure(reason, "line 7: bad")),)), NOW)
    assert plan.status
    failed = condition_of(plan.status.conditions, "Failed")
    assert failed
    assert (failed.reason, failed.message, plan.create) == (reason, "line 7: bad", ())


def test_backoff_limit_counts_relaunches() -> None:
    at = started(spec=spec(backoffLimit=1))
    plan = plan_run(replace(at, pods=(ended(running(pod()), failure("Crashed")),)), NOW)
    assert plan.status
    last = plan_run(
        replace(at, status=plan.status, pods=(ended(running(pod(attempt=2)), failure("Crashed", attempt=2)),)), NOW
    )
    assert last.status
    failed = condition_of(last.status.conditions, "Failed")
    assert failed
    assert failed.reason == "BackoffLimitExceeded"


def test_a_damaged_checkpoint_is_left_behind_and_the_one_before_it_is_used() -> None:
    at = started()
    status = at.status.model_copy(update={"attempt": 2})
    at = replace(
        at,
        status=plan_run(
            replace(
                at,
                pods=(running(pod()),),
                report=Report(run_uid="uid-1", attempt=1, checkpoints=(checkpoint(20), checkpoint(40))),
            ),
            NOW,
        ).status
        or status,
    )
    plan = plan_run(replace(at, pods=(ended(running(pod()), failure("CheckpointCorrupt")),)), NOW)
    assert plan.status
    assert [c.step for c in plan.status.checkpoints] == [20]
    assert plan.status.attempt == 2


def test_the_users_error_is_told_even_if_another_rank_was_taken_down_by_it() -> None:
    two = {"spec": spec(gpu={"type": "h100", "count": 2}), "catalog": catalog(gpu=GpuEntry("h100", gpu(perNode=1)))}
    pods = (ended(running(pod(rank=0)), failure("Crashed")), ended(running(pod(rank=1)), failure("OutOfMemory")))
    plan = plan_run(replace(started(**two), pods=pods), NOW)
    assert plan.status
    failed = condition_of(plan.status.conditions, "Failed")
    assert failed
    assert failed.reason == "OutOfMemory"


def test_when_one_rank_fails_the_others_are_stopped_before_anything_is_decided() -> None:
    two = {"spec": spec(gpu={"type": "h100", "count": 2}), "catalog": catalog(gpu=GpuEntry("h100", gpu(perNode=1)))}
    at = replace(started(**two), pods=(ended(running(pod(rank=0)), failure("Crashed")), running(pod(rank=1))))
    plan = plan_run(at, NOW)
    assert [ref.name for ref in plan.delete] == [pod(rank=1).ref.name]
    assert plan.create == ()


def test_suspend_stops_the_pods_and_resume_goes_on_without_counting_a_failure() -> None:
    at = replace(started(), pods=(running(pod()),))
    at = replace(at, spec=spec(suspend=True))
    stopping = plan_run(at, NOW)
    assert len(stopping.delete) == 1
    still = plan_run(
        replace(at, status=stopping.status or at.status, pods=(ended(at.pods[0], failure("Interrupted", step=30)),)),
        NOW,
    )
    assert still.status
    assert (state(still.status), still.status.failures, still.status.attempt) == ("Suspended", 0, 2)
    on = plan_run(replace(at, spec=spec(), status=still.status, pods=()), NOW + seconds(5))
    file = run_file(on.create[0])
    assert file.train
    assert file.train.resume
    assert (file.run.attempt, file.train.resume.step) == (2, 30)


def test_a_pod_that_cannot_be_placed_queues_the_run_and_says_why() -> None:
    at = replace(
        started(),
        pods=(pod(blocked="0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", blocked_reason="Unschedulable"),),
    )
    plan = plan_run(at, NOW + seconds(2))
    assert plan.status
    assert state(plan.status) == "Queued"
    assert "Insufficient nvidia.com/gpu" in (plan.status.waiting or "")


def test_an_image_that_cannot_be_pulled_is_said_at_once_and_ends_the_run_after_the_start_timeout() -> None:
    at = replace(
        started(), pods=(pod(bound_at=NOW, blocked="ErrImagePull: not found", blocked_reason="ImagePullFailed"),)
    )
    soon = plan_run(at, NOW + seconds(2))
    assert soon.status
    assert "ErrImagePull: not found" in (soon.status.waiting or "")
    late = plan_run(replace(at, status=soon.status), NOW + seconds(601))
    assert late.status
    failed = condition_of(late.status.conditions, "Failed")
    assert failed
    assert (failed.reason, len(late.delete)) == ("ImagePullFailed", 1)


def test_pods_that_never_start_on_their_node_are_tried_again_as_the_next_attempt() -> None:
    at = replace(started(), pods=(pod(bound_at=NOW),))
    plan = plan_run(at, NOW + seconds(601))
    assert plan.status
    assert (plan.status.attempt, plan.status.failures, len(plan.delete)) == (2, 1, 1)


def test_a_half_placed_attempt_gives_its_gpus_back() -> None:
    two = {"spec": spec(gpu={"type": "h100", "count": 2}), "catalog": catalog(gpu=GpuEntry("h100", gpu(perNode=1)))}
    pods = (running(pod(rank=0)), pod(rank=1, blocked="no node", blocked_reason="Unschedulable"))
    plan = plan_run(replace(started(**two), pods=pods), NOW + seconds(601))
    assert plan.status
    assert (plan.status.attempt, plan.status.failures, len(plan.delete)) == (2, 0, 2)


def test_pods_of_an_older_attempt_are_stopped_and_released_and_never_make_new_ones() -> None:
    at = started()
    at = replace(
        at, status=at.status.model_copy(update={"attempt": 2}), pods=(running(pod(attempt=1)), running(pod(attempt=2)))
    )
    plan = plan_run(at, NOW)
    assert [ref.uid for ref in plan.delete] == ["pod-1-0"]
    assert plan.create == ()


def test_pods_of_an_earlier_run_of_the_same_name_are_cleared_away() -> None:
    stranger = replace(running(pod()), owner_uid="uid-0")
    plan = plan_run(world(pods=(stranger,)), NOW)
    assert [ref.uid for ref in plan.delete] == ["pod-1-0"]
    assert len(plan.create) == 1


def test_a_deleted_run_never_makes_pods() -> None:
    at = started()
    plan = plan_run(replace(at, meta=replace(at.meta, deleting=True), pods=(running(pod()),)), NOW)
    assert (plan.create, plan.status, len(plan.delete)) == ((), None, 1)


def test_a_report_of_another_attempt_changes_nothing() -> None:
    at = replace(started(), pods=(running(pod()),))
    now_running = plan_run(at, NOW)
    at = replace(
        at, status=now_running.status, report=Report(run_uid="uid-1", attempt=7, checkpoints=(checkpoint(50, 7),))
    )
    assert plan_run(at, NOW).status is None


def test_a_pod_that_vanished_without_a_word_counts_as_a_failure() -> None:
    at = replace(started(), pods=(running(pod()),))
    status = plan_run(at, NOW).status
    plan = plan_run(replace(at, status=status, pods=()), NOW + seconds(30))
    assert plan.status
    assert (plan.status.attempt, plan.status.failures) == (2, 1)


def test_a_new_ca_is_put_on_live_pods() -> None:
    at = replace(started(), pods=(running(replace(pod(), ca="OLD")),))
    assert [update.bundle for update in plan_run(at, NOW).update] == ["CA"]


def test_a_deleted_pod_whose_node_is_silent_is_looked_at_again_when_it_counts_as_lost() -> None:
    going = replace(running(pod()), deleting_since=NOW)
    plan = plan_run(replace(started(), pods=(going,)), NOW)
    assert plan.requeue_after
    assert LOST_AFTER_SECONDS < plan.requeue_after <= LOST_AFTER_SECONDS + 2


def test_a_reported_outcome_is_in_the_status_before_the_pods_end_whatever_else_goes_on() -> None:
    at = replace(started(), pods=(running(pod()),))
    over = Report(run_uid="uid-1", attempt=1, sequence=9, outcome=failure("Interrupted", "told to stop"))
    for changed in (at, replace(at, spec=spec(suspend=True))):
        status = plan_run(replace(changed, report=over), NOW).status
        assert status
        assert [(r.attempt, r.reason, r.finished_at) for r in status.attempts] == [(1, "Interrupted", None)]
        assert state(status) == "Running"
    done = plan_run(replace(at, report=over.model_copy(update={"outcome": success()})), NOW).status
    assert done
    assert state(done) == "Publishing"
