"""Corners of a run's life that only time, or another operator before this one, leads to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from halo_api.conditions import condition_of, is_true
from halo_api.report import ProgressReport, Report
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan.progress import rounded
from halo_operator.plan.run import plan_run
from halo_operator.plan.world import PodView, RunWorld
from tests.unit.builders import NOW, ended, failure, gpu, pod, running, seconds, spec, success, world
from tests.unit.builders import catalog as catalogue
from tests.unit.test_run_plan import GpuEntry, published_run, started, state

HOUR = seconds(3600)
WHY = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def queued(view: PodView) -> PodView:
    return replace(view, blocked=WHY, blocked_reason="Unschedulable")


def planned(before: RunWorld, now: object = NOW) -> TrainingJobStatus:
    plan = plan_run(before, now)  # type: ignore[arg-type]
    assert plan.status
    return plan.status


def test_a_pod_that_waited_long_for_its_node_has_all_its_time_to_pull_its_image() -> None:
    just_bound = replace(pod(), bound_at=NOW + HOUR)
    pulling = replace(just_bound, blocked="ErrImagePull: later", blocked_reason="ImagePullFailed")
    told = planned(replace(started(), pods=(pulling,)), NOW + HOUR + seconds(10))
    assert state(told) == "Starting"
    given_up = planned(replace(started(), pods=(pulling,)), NOW + HOUR + seconds(601))
    assert is_true(given_up.conditions, "Failed")


def test_a_pod_that_waited_long_for_its_node_has_all_its_time_to_start() -> None:
    just_bound = replace(pod(), bound_at=NOW + HOUR)
    told = planned(replace(started(), pods=(just_bound,)), NOW + HOUR + seconds(10))
    assert (state(told), told.attempt) == ("Starting", 1)


def test_gpus_are_given_back_only_after_they_were_held_in_vain() -> None:
    many = started(spec=spec(gpu={"type": "h100", "count": 2}), catalog=catalogue(gpu=GpuEntry("h100", gpu(perNode=1))))
    held = (replace(pod(), bound_at=NOW + HOUR), queued(pod(rank=1)))
    assert planned(replace(many, pods=held), NOW + HOUR + seconds(10)).attempt == 1
    assert planned(replace(many, pods=held), NOW + HOUR + seconds(601)).attempt == 2


def test_an_operator_that_knows_no_report_does_not_take_back_that_the_work_is_done() -> None:
    said = Report(run_uid="uid-1", attempt=1, sequence=3, outcome=success())
    before = replace(started(), pods=(running(pod()),), report=said)
    status = planned(before)
    assert state(status) == "Publishing"
    assert plan_run(replace(before, status=status, report=None), NOW).status is None


@pytest.mark.parametrize("outcome", [success(), failure("BadRow")], ids=["succeeded", "failed"])
def test_a_run_that_is_over_still_says_that_it_saw_a_change(outcome: object) -> None:
    over = replace(started(), pods=(ended(running(pod()), outcome),))  # type: ignore[arg-type]
    over = published_run(over) if outcome.result == "Succeeded" else over  # type: ignore[attr-defined]
    status = planned(over)
    over = replace(over, status=status)
    assert plan_run(over, NOW).status is None
    patched = replace(over, meta=replace(over.meta, generation=2), spec=spec(suspend=True))
    seen = planned(patched)
    assert seen.observed_generation == 2
    kept = [(c.type, c.status, c.reason, c.message, c.last_transition_time) for c in seen.conditions]
    assert kept == [(c.type, c.status, c.reason, c.message, c.last_transition_time) for c in status.conditions]
    assert bool(condition_of(seen.conditions, "Stalled")) == (outcome.result == "Failed")  # type: ignore[attr-defined]


def test_a_reason_of_another_version_of_the_operator_stops_nothing() -> None:
    over = replace(started(), pods=(ended(running(pod()), failure("BadRow")),))
    status = planned(over)
    unknown = [c.model_copy(update={"reason": "OfTomorrow"}) if c.reason == "BadRow" else c for c in status.conditions]
    later = replace(over, status=status.model_copy(update={"conditions": unknown}))
    assert plan_run(later, NOW).status is None
    assert [ref.uid for ref in plan_run(later, NOW).release] == ["pod-1-0"]
    seen = planned(replace(later, meta=replace(later.meta, generation=2)))
    assert {c.reason for c in seen.conditions} == {c.reason for c in unknown}


def test_a_number_that_json_does_not_have_is_left_out() -> None:
    assert [rounded(value) for value in (float("nan"), float("inf"), 1.23456, None)] == [None, None, 1.235, None]
    report = Report(run_uid="uid-1", attempt=1, progress=ProgressReport(step=1, steps=100, loss=float("nan")))
    status = planned(replace(started(), pods=(running(pod()),), report=report))
    assert status.progress
    assert (status.progress.step, status.progress.loss) == (1, None)


def test_the_status_has_what_the_last_step_was_measured_with() -> None:
    told = ProgressReport(step=1, steps=100, grad_norm=0.123456, mfu=0.41237, memory_bytes=24804065280)
    report = Report(run_uid="uid-1", attempt=1, progress=told)
    found = planned(replace(started(), pods=(running(pod()),), report=report)).progress
    assert found
    assert (found.grad_norm, found.mfu, found.memory_bytes) == (0.1235, 0.4124, 24804065280)


def test_a_run_that_was_not_started_does_not_count_its_wait() -> None:
    assert plan_run(replace(world(), status=started().status, pods=(queued(pod()),)), NOW + HOUR).delete == ()
