"""The claim of the checkpoints fills up: a condition before it is a failure, said once, and gone when there is room."""

from __future__ import annotations

from dataclasses import replace

from halo_api.conditions import Condition, condition_of
from halo_api.report import DiskReport, ProgressReport, Report
from halo_operator.plan.disk import sized
from halo_operator.plan.run import plan_run
from halo_operator.plan.world import RunWorld
from tests.unit.builders import NOW, checkpoint, ended, failure, pod, running, seconds, world

MIB = 1 << 20
SIZE = 100 * MIB


def report(step: int, free: int | None, attempt: int = 1) -> Report:
    return Report(
        run_uid="uid-1",
        attempt=attempt,
        sequence=step,
        progress=ProgressReport(step=step, steps=100),
        checkpoints=(checkpoint(step, attempt),),
        disk=None if free is None else DiskReport(free_bytes=free, checkpoint_bytes=SIZE),
    )


class Run:
    """A run of one pod that trains, and the events of it."""

    def __init__(self) -> None:
        at = world()
        self.world: RunWorld = replace(at, status=plan_run(at, NOW).status or at.status, pods=(running(pod()),))
        self.told: list[str] = []

    def look(self, after: float, **changes: object) -> Condition | None:
        self.world = replace(self.world, **changes)  # type: ignore[arg-type]
        plan = plan_run(self.world, NOW + seconds(after))
        self.told += [note.reason for note in plan.notes if note.reason == "DiskAlmostFull"]
        self.world = replace(self.world, status=plan.status or self.world.status)
        return condition_of(self.world.status.conditions, "DiskPressure")


def test_room_for_fewer_than_three_more_is_told_once_with_what_was_found_and_goes_away() -> None:
    run = Run()
    assert run.look(1, report=report(10, 3 * SIZE)) is None
    found = run.look(2, report=report(20, 3 * SIZE - 1))
    assert found
    assert (found.status, found.reason) == ("True", "DiskAlmostFull")
    assert found.message == (
        "claim halo-artifacts: found 300.0 MiB free, and 3 more checkpoints need 300.0 MiB; enlarge it, or delete the "
        "folders of runs that are over: without room the run ends as DiskFull"
    )
    found = run.look(3, report=report(30, SIZE))
    assert found
    assert "found 100.0 MiB free" in found.message
    assert run.look(4, report=report(40, 9 * SIZE)) is None
    assert run.told == ["DiskAlmostFull"]


def test_it_costs_no_write_but_those_of_the_checkpoints() -> None:
    run = Run()
    run.look(1, report=report(10, SIZE))
    quiet = report(10, SIZE).model_copy(update={"sequence": 11, "progress": ProgressReport(step=14, steps=100)})
    assert plan_run(replace(run.world, report=quiet), NOW + seconds(4)).status is None


def test_it_outlives_a_restart_of_the_operator_and_an_attempt_and_ends_with_the_run() -> None:
    run = Run()
    run.look(1, report=report(10, SIZE))
    assert run.look(20, report=None)
    crashed = ended(running(pod()), failure("Crashed", step=10), NOW + seconds(21))
    assert run.look(22, pods=(crashed,), report=report(10, SIZE))
    assert run.world.status.attempt == 2
    full = ended(running(pod(attempt=2)), failure("DiskFull", attempt=2), NOW + seconds(40))
    assert run.look(41, pods=(full,), report=report(20, 0, attempt=2)) is None
    assert run.look(42) is None
    assert run.told == ["DiskAlmostFull"]


def test_sizes_are_told_as_people_read_them() -> None:
    assert [sized(n) for n in (7, 1536, 5 * MIB, 3 << 30)] == ["7 bytes", "1.5 KiB", "5.0 MiB", "3.0 GiB"]
