"""What a run is charged for: its pods' times on one clock, every attempt once, whatever the clocks and the operator do."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from datetime import datetime
from decimal import Decimal
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_api.report import Deadline, ProgressReport, Report
from halo_api.run_file import DEADLINE_ANNOTATION
from halo_api.run_status import Hold
from halo_api.training_job import TrainingJobStatus
from halo_operator.cluster import Cluster
from halo_operator.last_signs import views_of
from halo_operator.plan import progress
from halo_operator.plan.attempts import attempt_of
from halo_operator.plan.conditions import stamp
from halo_operator.plan.freeze import freeze
from halo_operator.plan.metering import closed_ms, gpu_ms, metered, settled, total_ms, used, with_attempt
from halo_operator.plan.names import METERED_FINALIZER
from halo_operator.plan.pod_view import LOST_AFTER_SECONDS, all_of, heartbeat_of, pod_view
from halo_operator.plan.world import GpuEntry, Object
from halo_operator.reports import Reports
from tests.unit.builders import NOW, catalog, gpu, seconds, trainer_object, world

FIVE_MINUTES = 300.0


def at(n: float) -> datetime:
    return NOW + seconds(n)


def started(weight: float = 1.0, rate: str | None = "3.6") -> TrainingJobStatus:
    """A run that was accepted: at 3.6 USD an hour, a GPU second is 0.001 USD."""
    entry = GpuEntry("h100", gpu(h100Equivalent=weight))
    hold = Hold(id="uid-1", usd="10", rate=rate, frozen_at=stamp(NOW))
    return TrainingJobStatus(attempt=1, frozen=freeze(world(catalog=catalog(gpu=entry))), hold=hold)


def look(
    status: TrainingJobStatus,
    pods: list[Object],
    now: datetime = NOW,
    *,
    reason: str | None = None,
    nodes: int = 1,
    gpus: int = 1,
    step: int | None = None,
    signs: dict[str, datetime] | None = None,
    given_up: datetime | None = None,
) -> TrainingJobStatus:
    """One look of the operator at a run: its report, its pods, its usage."""
    number = status.attempt or 1
    told = ProgressReport(step=step, steps=1000) if step is not None else None
    status = progress.with_report(status, Report(run_uid="uid-1", attempt=number, progress=told), now)
    attempt = attempt_of(number, nodes, all_of(pods, now, signs or {}))
    if attempt.pods or given_up:
        status = progress.with_record(status, attempt, reason, given_up=given_up)
    return metered(status, attempt, gpus)


def next_attempt(status: TrainingJobStatus) -> TrainingJobStatus:
    return status.model_copy(update={"attempt": (status.attempt or 1) + 1})


def gpu_seconds(status: TrainingJobStatus) -> Decimal:
    assert status.usage
    assert status.usage.gpu_seconds == {"trainer": status.usage.closed_gpu_seconds}
    return Decimal(status.usage.closed_gpu_seconds)


def with_condition(pod: Object, **condition: Any) -> Object:
    changed = deepcopy(pod)
    changed["status"]["conditions"].append(condition)
    return changed


@pytest.mark.parametrize("ahead", [(0.0, 0.0), (FIVE_MINUTES, -FIVE_MINUTES), (-FIVE_MINUTES, -FIVE_MINUTES), (-3, 31)])
def test_nodes_whose_clocks_differ_are_charged_the_same_from_the_last_bound_to_the_last_end(
    ahead: tuple[float, float],
) -> None:
    pods = [
        trainer_object(rank=0, bound=at(0), finished=at(1010), ahead=ahead[0]),
        trainer_object(rank=1, bound=at(40), finished=at(1040), ahead=ahead[1]),
    ]
    status = look(started(), pods, at(2000), reason="Succeeded", nodes=2, gpus=16)
    assert gpu_seconds(status) == 16 * 1000
    assert status.usage
    assert status.usage.usd == "16"
    (record,) = status.attempts
    assert (record.started_at, record.finished_at, record.gpu_seconds) == (stamp(at(40)), stamp(at(1040)), "16000")


@pytest.mark.parametrize("late", [-2, 0, 7, 30])
def test_a_kubelet_that_takes_its_time_is_no_wrong_clock(late: float) -> None:
    pod = trainer_object(bound=at(0), finished=at(100))
    pod["status"]["startTime"] = stamp(at(late))
    assert pod_view(pod, at(200)).clock_offset == 0.0
    assert gpu_seconds(look(started(), [pod], at(200), reason="Succeeded")) == 100


@pytest.mark.parametrize(
    ("finished_at", "expected"),
    [
        ("2026-11-29T14:01:40+02:00", "100"),
        ("2026-11-29T06:31:40-05:30", "100"),
        ("2026-11-29T12:01:40.999999999Z", "100"),
        ("2026-11-29T11:59:59Z", "0"),
    ],
)
def test_a_time_counts_in_any_zone_by_its_whole_seconds_and_never_below_nothing(
    finished_at: str, expected: str
) -> None:
    pod = trainer_object(finished=at(100))
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = finished_at
    assert str(gpu_seconds(look(started(), [pod], at(200), reason="Succeeded"))) == expected


def test_a_mesh_beside_our_container_is_not_what_is_charged() -> None:
    pod = trainer_object(finished=at(100))
    mesh = {"name": "mesh", "state": {"terminated": {"finishedAt": stamp(at(900)), "exitCode": 0}}}
    pod["status"]["containerStatuses"].insert(0, mesh)
    assert gpu_seconds(look(started(), [pod], at(1000), reason="Succeeded")) == 100


READY = {"type": "Ready", "status": "True", "lastTransitionTime": stamp(at(20 + FIVE_MINUTES))}
UNREADY = {"type": "Ready", "status": "False", "lastTransitionTime": stamp(at(340))}


@pytest.mark.parametrize(
    ("ready", "sign", "expected"),
    [
        ("a heartbeat", at(300), 300),
        ("none", None, 0),
        ("ready since, on its node's clock", None, 20),
        ("unready since, on the controller's clock", None, 340),
        ("a sign from before the start", at(-50), 0),
    ],
)
def test_a_lost_node_is_charged_to_its_last_sign_of_life(ready: str, sign: datetime | None, expected: int) -> None:
    pod = trainer_object(ahead=FIVE_MINUTES)
    pod = with_condition(pod, **READY) if ready.startswith("ready") else pod
    pod = with_condition(pod, **UNREADY) if ready.startswith("unready") else pod
    pod["metadata"]["deletionTimestamp"] = stamp(at(1000))
    silent = at(1000 + LOST_AFTER_SECONDS + 1)
    (before,) = all_of([pod], at(1000 + LOST_AFTER_SECONDS))
    (view,) = all_of([pod], silent)
    assert (before.lost, before.ended, view.lost, view.ended, view.node) == (False, False, True, True, "node-0")
    signs = {view.ref.uid: sign} if sign else {}
    assert gpu_seconds(look(started(), [pod], silent, reason="NodeLost", signs=signs)) == expected


def test_a_heartbeat_is_told_on_the_api_servers_clock() -> None:
    (view,) = all_of([trainer_object(ahead=-FIVE_MINUTES)], NOW)
    renewed = (at(77.25) - seconds(FIVE_MINUTES)).isoformat()
    assert heartbeat_of({"spec": {"renewTime": renewed}}, view) == at(77.25)
    assert heartbeat_of({"spec": {}}, view) is None


def test_an_operator_that_restarted_takes_a_lost_pods_last_report_from_the_status() -> None:
    class NoLease:
        async def get(self, *_: str) -> None:
            """The Node was deleted, and its Lease with it."""

    pod = with_condition(trainer_object(), **READY)
    pod["metadata"] |= {"deletionTimestamp": stamp(at(1000)), "finalizers": [METERED_FINALIZER]}
    progress = {"step": 5, "steps": 9, "percent": 55, "updatedAt": stamp(at(600))}
    status = TrainingJobStatus.model_validate({"attempt": 1, "progress": progress})
    reports, now = Reports(lambda: at(590)), at(1000 + LOST_AFTER_SECONDS + 1)
    told = [asyncio.run(views_of(cast(Cluster, NoLease()), reports, [pod], status, now))]
    reports.put(Report(run_uid=told[0][0].run_uid or "", attempt=1))
    told.append(asyncio.run(views_of(cast(Cluster, NoLease()), reports, [pod], status, now)))
    assert [view.finished_at for (view,) in told] == [at(600), at(590)]


def test_a_pod_whose_end_its_node_told_is_not_lost_however_long_it_is_held() -> None:
    pod = trainer_object(finished=at(100))
    pod["metadata"]["deletionTimestamp"] = stamp(at(100))
    (view,) = all_of([pod], at(100_000), {"pod-1-0": at(5000)})
    assert (view.lost, view.finished_at) == (False, at(100))


def test_a_pod_that_the_garbage_collector_failed_is_lost() -> None:
    collected = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
    pod = with_condition(trainer_object(phase="Failed"), **collected, lastTransitionTime=stamp(at(900)))
    (view,) = all_of([pod], at(900), {"pod-1-0": at(55)})
    assert (view.lost, view.finished_at) == (True, at(55))


def test_a_pod_evicted_before_it_ran_is_charged_to_what_its_kubelet_told() -> None:
    pod = trainer_object(ahead=FIVE_MINUTES, phase="Failed", reason="Evicted", containerStatuses=[])
    assert gpu_seconds(look(started(), [pod], at(90), reason="Evicted")) == 0
    told = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    pod = with_condition(pod, **told, lastTransitionTime=stamp(at(30 + FIVE_MINUTES)))
    assert gpu_seconds(look(started(), [pod], at(90), reason="Evicted")) == 30


def test_an_attempt_that_never_had_all_its_pods_on_nodes_costs_nothing() -> None:
    pods = [trainer_object(rank=0, bound=at(0)), trainer_object(rank=1, bound=None)]
    status = look(started(), pods, at(600), reason="GaveBack", nodes=2, given_up=at(600))
    assert (gpu_seconds(status), status.attempts[0].finished_at) == (0, stamp(at(600)))
    again = [trainer_object(attempt=2, rank=n, bound=at(700), finished=at(800)) for n in (0, 1)]
    status = look(next_attempt(status), again, at(900), reason="Succeeded", nodes=2, gpus=2)
    assert gpu_seconds(status) == 200


def test_an_attempt_that_is_given_up_is_charged_to_then_whatever_its_pods_say_later() -> None:
    status = look(started(), [trainer_object()], at(601), reason="NotStarted", given_up=at(601))
    later = look(status, [trainer_object(finished=at(660))], at(700), reason="NotStarted", given_up=at(700))
    assert gpu_seconds(later) == 601
    assert later == status


def test_pods_that_somebody_took_away_are_charged_to_their_last_report() -> None:
    status = look(started(), [trainer_object()], at(5))
    silent = look(status, [], at(500), reason="Interrupted", given_up=at(500))
    assert gpu_seconds(silent) == 0
    status = look(status, [trainer_object()], at(130), step=3)
    gone = look(status, [], at(500), reason="Interrupted", given_up=at(500))
    assert gpu_seconds(gone) == 130
    second = look(next_attempt(gone), [trainer_object(attempt=2, bound=at(600))], at(610))
    assert gpu_seconds(look(second, [], at(900), reason="Interrupted", given_up=at(900))) == 130


def test_the_start_stays_when_a_pod_is_made_again() -> None:
    status = look(started(), [trainer_object(bound=at(10))], at(20))
    again = look(status, [trainer_object(bound=at(50), finished=at(110))], at(200), reason="Succeeded")
    assert (gpu_seconds(again), again.attempts[0].started_at) == (100, stamp(at(10)))


def test_twelve_suspends_cost_what_they_ran_though_ten_records_are_kept() -> None:
    status = started(weight=0.5)
    for n in range(1, 14):
        pod = trainer_object(attempt=n, bound=at(1000 * n), finished=at(1000 * n + n))
        for _ in range(2):
            status = look(status, [pod], at(1000 * n + 500), reason="Suspended", gpus=4)
        status = next_attempt(status)
    spent = 4 * sum(range(1, 14))
    assert gpu_seconds(status) == spent
    assert (len(status.attempts), status.usage and status.usage.through) == (10, 13)
    assert status.usage
    assert Decimal(status.usage.usd or "") == Decimal(spent) / 1000
    assert status.usage.h100_hours == "0.050556", "182 s, rounded up to a millionth of an hour"
    rate = 3_600_000
    assert (used(status.usage, "USD", 0.5, rate), used(status.usage, "H100Hours", 0.5, rate)) == (364_000, 50_556)


def test_a_live_look_without_progress_changes_nothing() -> None:
    pod = trainer_object()
    status = look(started(), [pod], at(5))
    assert status.usage
    assert (status.usage.since, total_ms(status.usage)) == (stamp(NOW), 0)
    assert look(status, [pod], at(500)) == status
    reported = look(status, [pod], at(60), step=1, gpus=2)
    assert (total_ms(reported.usage), closed_ms(reported.usage)) == (120_000, 0)
    assert look(reported, [pod], at(900), step=1, gpus=2) == reported


def test_an_operator_whose_clock_steps_back_takes_no_usage_away_and_goes_on_writing() -> None:
    pod = trainer_object()
    status = look(started(), [pod], at(400), step=1)
    back = look(status, [pod], at(100), step=2)
    assert (total_ms(status.usage), total_ms(back.usage)) == (400_000, 400_000)
    assert progress.seconds_until_due(status, back, at(100)) == 0.0
    ended = look(back, [trainer_object(finished=at(401))], at(102), reason="Succeeded")
    assert gpu_seconds(ended) == 401


def test_usage_alone_waits_with_progress_but_an_attempt_that_is_closed_is_written_at_once() -> None:
    pod = trainer_object()
    first = look(started(), [pod], at(10), step=1)
    second = look(first, [pod], at(12), step=2)
    assert first.usage != second.usage
    assert progress.seconds_until_due(first, second, at(12)) == 8.0
    closed = look(second, [trainer_object(finished=at(13))], at(14), reason="Succeeded")
    assert progress.seconds_until_due(second, closed, at(14)) == 0.0
    assert closed.usage
    settlement = settled("USD", 10_000_000, 13_000, None)
    over = closed.model_copy(update={"usage": closed.usage.model_copy(update={"settlement": settlement})})
    assert progress.seconds_until_due(closed, over, at(14)) == 0.0


@pytest.mark.parametrize(
    ("held", "spent", "expected"),
    [
        (12_500_000, 8_750_000, ("12.5", "8.75", "8.75", "0", "3.75")),
        (12_500_000, 12_500_001, ("12.5", "12.500001", "12.5", "0.000001", "0")),
        (0, 0, ("0", "0", "0", "0", "0")),
    ],
)
def test_a_hold_becomes_the_lesser_of_held_and_used(held: int, spent: int, expected: tuple[str, ...]) -> None:
    found = settled("H100Hours", held, spent, 9_400_000)
    assert (found.held, found.used, found.charged, found.overrun, found.released) == expected
    assert found.quoted == "9.4"


def test_an_attempt_is_counted_once_and_an_older_one_never_again() -> None:
    usage = with_attempt(with_attempt(None, 1, 1500), 4, 1)
    assert (usage.closed_gpu_seconds, usage.through) == ("1.501", 4)
    assert with_attempt(usage, 4, 99) == with_attempt(usage, 2, 99) == usage


def test_a_time_before_the_start_is_no_time() -> None:
    assert (gpu_ms(8, at(0), at(0.0015)), gpu_ms(8, at(1), at(0)), gpu_ms(1, at(0), at(3 * 86400))) == (
        8,
        0,
        259_200_000,
    )


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ('{"sequence":2,"remainingSeconds":60.5}', Deadline(sequence=2, remaining_seconds=60.5)),
        ('{"sequence":0}', Deadline(sequence=0)),
        ("{", None),
        (None, None),
    ],
)
def test_a_pods_deadline_is_what_its_annotation_says(annotation: str | None, expected: Deadline | None) -> None:
    pod = trainer_object()
    pod["metadata"]["annotations"] = {DEADLINE_ANNOTATION: annotation} if annotation else {}
    assert pod_view(pod, NOW).deadline == expected


RANKS = st.lists(
    st.tuples(
        st.none() | st.integers(0, 100), st.integers(101, 400), st.sampled_from([0, FIVE_MINUTES, -FIVE_MINUTES])
    ),
    min_size=2,
    max_size=2,
)
# When it looks, whether the report has a new step, whether what it found is written, how far its clock is behind.
LOOKS = st.lists(st.tuples(st.integers(0, 450), st.booleans(), st.booleans(), st.sampled_from([0, 300])), max_size=6)


# A busy machine is no failure.
@settings(deadline=None)
@given(st.lists(st.tuples(RANKS, LOOKS), min_size=1, max_size=13), st.integers(1, 16))
def test_whoever_looks_and_when_usage_only_grows_to_the_sum_of_the_true_times(
    attempts: list[tuple[list[tuple[int | None, int, float]], list[tuple[int, bool, bool, int]]]], gpus: int
) -> None:
    status, true, step = started(), 0, 0
    for number, (ranks, looks) in enumerate(attempts, start=1):
        begin = 1000 * number
        status = status.model_copy(update={"attempt": number})
        binds = [bind for bind, _, _ in ranks if bind is not None]
        start = max(binds) if len(binds) == len(ranks) else None
        end = max(finish for _, finish, _ in ranks)
        for when, new_step, written, behind in [*sorted(looks), (500, False, True, 0), (501, False, True, 0)]:
            pods = [
                trainer_object(
                    number,
                    rank,
                    bound=at(begin + bind) if bind is not None and bind <= when else None,
                    finished=at(begin + finish) if finish <= when else None,
                    ahead=ahead,
                )
                for rank, (bind, finish, ahead) in enumerate(ranks)
            ]
            step += new_step
            over = when >= end
            now = at(begin + when - behind)
            seen = look(
                status, pods, now, reason="Suspended" if over else None, nodes=2, gpus=gpus,
                step=step if new_step and not over else None, given_up=now if over else None,
            )  # fmt: skip
            so_far = true + (0 if start is None else gpus * max(0, min(when, end) - start))
            assert total_ms(status.usage) <= total_ms(seen.usage) <= so_far * 1000, (
                "usage only grows, never beyond the truth"
            )
            status = seen if written else status
        true += 0 if start is None else gpus * (end - start)
        assert gpu_seconds(status) == true
    assert status.usage
    assert Decimal(status.usage.usd or "") == Decimal(true) / 1000
