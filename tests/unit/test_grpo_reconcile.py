"""What lets go of a GrpoRun that is over or deleted hangs on nothing but its hold: not on a spec or a Workspace that can be read."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from halo_api.conditions import Reason
from halo_api.grpo_status import GrpoRunStatus
from halo_operator.apply import Applier
from halo_operator.cluster import Cluster, Object
from halo_operator.desk import Desk
from halo_operator.events import Recorder
from halo_operator.gather import Gatherer
from halo_operator.grpo import GrpoRuns
from halo_operator.plan.grpo.plan import refuse
from halo_operator.plan.names import HOLD_FINALIZER
from halo_operator.plan.refusal import Refusal
from halo_operator.plan.wishes import Ended
from halo_operator.queue import Key
from tests.unit.builders_grpo import CREATED, body, world

DELETED = {"deletionTimestamp": "2026-11-29T13:00:00Z"}
REFUSED = refuse(
    world().meta, GrpoRunStatus(), GrpoRunStatus(), Refusal(Reason.CRITERION_DRIFTED, "spec: drifted"), CREATED
).status
assert REFUSED
FAILED = REFUSED.to_json()
HOLD = {"run": {"kind": "GrpoRun", "name": "run", "uid": "uid-1"}, "unit": "USD", "amount": "55", "rate": {"gpuClass": "h100", "h100Equivalent": "1"}, "placedAt": "2026-11-29T12:00:00Z"}  # fmt: skip


class Objects:
    """A cluster of two objects, and what was done to them."""

    def __init__(self, run: Object, workspace: Object | None) -> None:
        self.there = {"GrpoRun": run, "Workspace": workspace}
        self.done: list[str] = []

    async def get(self, kind: str, namespace: str, name: str, **_: Any) -> Object | None:
        return self.there[kind]

    async def patch(self, kind: str, namespace: str, name: str, operations: list[Object]) -> Object:
        self.done.append(f"{operations[-1]['op']} {operations[-1]['path']}")
        return {}

    async def write_status(self, body: Object, status: Object) -> Object:
        self.done.append(f"status {status}")
        return {}


def workspace(**status: Any) -> Object:
    return {"kind": "Workspace", "metadata": {"name": "workspace"}, "spec": {}, "status": status}


def looked_at(run: Object, book: Object | None) -> tuple[list[str], list[Ended]]:
    """Reconcile the run once; return what was done, and what was asked."""
    objects, desk = Objects(run, book), Desk(lambda _: None)
    cluster = cast(Cluster, objects)
    apply = Applier(cluster, cast(Recorder, None), desk)
    runs = GrpoRuns(cluster, Gatherer(cluster, "halo"), apply, lambda *_: None, desk, lambda: CREATED)
    asyncio.run(cast(Any, runs(Key("GrpoRun", "team", "run"))))
    return objects.done, list(desk.asked("team")[1])


def run(meta: Object, status: Object, spec: Object) -> Object:
    facts = {"namespace": "team", "name": "run", "uid": "uid-1", "resourceVersion": "1", "generation": 1}
    found = facts | {"creationTimestamp": "2026-11-29T12:00:00Z", "finalizers": [HOLD_FINALIZER]} | meta
    return {"kind": "GrpoRun", "metadata": found, "spec": spec, "status": status}


@pytest.mark.parametrize("spec", [body(), {"model": 7}], ids=["readable", "unreadable"])
@pytest.mark.parametrize(
    ("meta", "status", "outcome"),
    [(DELETED, {}, "Cancelled"), ({}, FAILED, "CriterionDrifted")],
    ids=["deleted", "over"],
)
def test_it_settles_and_lets_go(spec: Object, meta: Object, status: Object, outcome: str) -> None:
    over = run(meta, status, spec)
    done, asked = looked_at(over, workspace(holds={"uid-1": HOLD}))
    assert [one.outcome for one in asked] == [outcome]
    assert not any(what.startswith("remove") for what in done)
    for gone in (workspace(), None):
        done, asked = looked_at(over, gone)
        assert (done, asked) == (["remove /metadata/finalizers/0"], [])


def test_a_workspace_that_cannot_be_read_turns_no_end_into_a_wait() -> None:
    for meta, status in ((DELETED, {}), ({}, FAILED)):
        assert looked_at(run(meta, status, body()), workspace(holds="none")) == ([], [])
