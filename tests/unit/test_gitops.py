"""How Flux reads every moment of a run, of an Adapter and of a Workspace: judged by kstatus itself, the library that Flux judges with."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from halo_api import API_VERSION
from halo_api.adapter import AdapterStatus
from halo_api.training_job import TrainingJobStatus
from halo_api.workspace import WorkspaceStatus
from halo_operator.plan.book.plan import plan_book
from halo_operator.plan.run import plan_run
from halo_operator.plan.world import RunWorld
from tests.unit.adapter_scene import Scene, found, published
from tests.unit.builders import NOW, catalog, ended, failure, pod, running, seconds, spec, success, world
from tests.unit.builders_book import book_world, granted, wish
from tests.unit.test_run_plan import published_run

KSTATUS = Path(__file__).resolve().parents[2] / "hack" / "kstatus"


def judged(
    statuses: Sequence[TrainingJobStatus | AdapterStatus | WorkspaceStatus],
    generation: int = 1,
    kind: str = "TrainingJob",
) -> list[str]:
    lines = [
        json.dumps(
            {
                "apiVersion": API_VERSION,
                "kind": kind,
                "metadata": {"name": "run", "namespace": "team", "generation": generation},
                "status": status.to_json(),
            }
        )
        for status in statuses
    ]
    done = subprocess.run(
        ["go", "run", "-trimpath", "."],
        cwd=KSTATUS,
        input="\n".join(lines),
        capture_output=True,
        text=True,
        env=os.environ | {"CGO_ENABLED": "0"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def moments() -> dict[str, TrainingJobStatus]:
    """The status at each moment of a run's life, as the operator writes it."""
    fresh = world()

    def after(at: RunWorld, later: float = 0) -> TrainingJobStatus:
        status = plan_run(at, NOW + seconds(later)).status
        assert status
        return status

    started = replace(fresh, status=after(fresh))
    training = replace(started, pods=(running(pod()),))
    trained = replace(training, pods=(ended(running(pod()), success()),))
    return {
        "nobody has looked yet": TrainingJobStatus(observed_generation=-1),
        "waiting for its data set": after(world(catalog=catalog(dataset=None))),
        "refused": after(world(catalog=catalog(base=None))),
        "starting": started.status,
        "queued": after(replace(started, pods=(pod(blocked="no GPU", blocked_reason="Unschedulable"),)), 2),
        "running": after(training),
        "relaunching": after(replace(training, pods=(ended(running(pod()), failure("Crashed")),))),
        "suspended": after(replace(started, spec=spec(suspend=True))),
        "failed": after(replace(training, pods=(ended(running(pod()), failure("BadRow")),))),
        "publishing": after(trained),
        "complete": after(published_run(trained)),
    }


def test_flux_waits_while_a_run_goes_on_and_tells_success_from_failure() -> None:
    found = moments()
    verdicts = dict(zip(found, judged(list(found.values())), strict=True))
    expected = dict.fromkeys(found, "InProgress") | {"refused": "Failed", "failed": "Failed", "complete": "Current"}
    assert verdicts == expected


def test_a_status_about_an_older_generation_is_never_current() -> None:
    assert judged([moments()["complete"]], generation=2) == ["InProgress"]


def test_flux_waits_for_a_verification_and_tells_an_imported_adapter_from_one_that_is_wrong() -> None:
    statuses = [AdapterStatus(observed_generation=-1)]
    for imported, outcome in ((False, found()), (True, found()), (False, found(("Missing", "x: not found")))):
        scene = Scene(published(trained_by=None) if imported else published())
        scene.look()
        statuses.append(scene.status)
        scene.verify(outcome)
        statuses.append(scene.status)
    going = "InProgress"
    assert judged(statuses, kind="Adapter") == [going, going, "Current", going, "Current", going, "Failed"]


def test_flux_waits_until_a_workspace_was_looked_at_and_stops_at_one_that_is_overdrawn() -> None:
    fresh = book_world(usd=100)
    funded = plan_book(replace(fresh, wanted=(wish("a", 60),)), NOW).status
    assert funded
    overdrawn = plan_book(replace(fresh, spec=granted(usd=50), status=funded), NOW).status
    assert overdrawn
    statuses = [WorkspaceStatus(observed_generation=-1), funded, overdrawn]
    assert judged(statuses, kind="Workspace") == ["InProgress", "Current", "Failed"]
