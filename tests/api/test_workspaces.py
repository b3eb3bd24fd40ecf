"""The Workspace's own reconcile on a real API server: few writes, no hold lost or leaked, and a book that outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from halo_api.ledger import RunRef
from halo_operator.clock import ServerClock, wall
from halo_operator.cluster import Cluster, Object, Rejected
from tests.api.audit import AuditLog
from tests.api.book_scene import HOLD_FINALIZER, scene
from tests.api.kube import OPERATOR, Kubectl

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("alone")]

# Far more than a batch: what counts is that it does not grow with the runs.
MOST_WRITES = 8


class Meddled(Cluster):
    """Something happens once, right before a write of a status or right after a list; the server is the real one."""

    before_status: Callable[[], Awaitable[None]] | None = None
    after_list: Callable[[], None] | None = None
    newer: bool = False

    async def write_status(self, body: Object, status: Object) -> Object:
        if meddle := self.before_status:
            self.before_status = None
            await meddle()
        return await super().write_status(body, status)

    async def list_meta(self, kind: str, namespace: str | None = None) -> list[Object]:
        found = await super().list_meta(kind, namespace)
        if kind == "TrainingJob" and (meddle := self.after_list):
            self.after_list = None
            meddle()
        return found

    async def get(self, kind: str, namespace: str | None, name: str, *, fresh: bool = True) -> Object | None:
        found = await super().get(kind, namespace, name, fresh=fresh)
        return found | {"spec": found["spec"] | {"plan": "gold"}} if found and self.newer else found


async def test_sixty_runs_are_held_in_a_few_writes_the_oldest_first(installed_chart: Kubectl, tmp_path: Path) -> None:
    async with scene(installed_chart, tmp_path) as at:
        at.grant(wallet={"creditUsd": 400})
        runs = [at.run(f"run-{number:02d}") for number in range(60)]
        await at.until(lambda: at.status().get("observedGeneration") == 1, "the Workspace was looked at")
        log, now = AuditLog(installed_chart.kubeconfig), at.cluster.clock.now()

        async def start(number: int, run: RunRef) -> None:
            # Each comes when its own look is done, the youngest first.
            await at.cluster.get("TrainingJob", at.namespace, run.name)
            at.wants(run, 10, now + timedelta(seconds=number))

        # In one batch the oldest win; later ones find what is left.
        for batch in (range(20), range(20, 40), range(40, 60)):
            await asyncio.gather(*(start(number, runs[number]) for number in reversed(batch)))
            await at.until_answered(*(runs[number] for number in batch))
        assert at.held() == [f"run-{number:02d}" for number in range(40)]
        status = at.status()
        assert (status["held"], status["spent"], status["balance"]) == ("400", "0", "0")
        assert (at.workspace() or {})["metadata"]["finalizers"] == [HOLD_FINALIZER]
        assert at.desk.asked(at.namespace) == ((), ())
        for run in runs:
            at.ends(run, 2.5)
        await at.until_answered(*runs)
        status = at.status()
        assert (status["held"], status["spent"], status["balance"]) == ("0", "100", "300")
        writes = [e for e in log.entries() if e.namespace == at.namespace and e.user == OPERATOR and e.stored]
        assert {f"{e.verb} {e.resource}" for e in writes} == {"update workspaces/status", "patch workspaces"}
        assert len(writes) <= MOST_WRITES, [str(e) for e in writes]


async def test_a_wallet_that_shrinks_under_the_write_holds_nothing_that_is_not_there(
    installed_chart: Kubectl, tmp_path: Path
) -> None:
    async with scene(installed_chart, tmp_path, Meddled) as at:
        at.grant(wallet={"creditUsd": 100})
        await at.until(lambda: at.status().get("balance") == "100", "the Workspace was looked at")

        async def shrink() -> None:
            at.api.patch(at.path("workspaces", "workspace"), {"spec": {"wallet": {"creditUsd": 15}}})

        assert isinstance(at.cluster, Meddled)
        at.cluster.before_status = shrink
        old, young = at.run("old"), at.run("young")
        now = at.cluster.clock.now()
        at.wants(young, 10, now + timedelta(seconds=1))
        at.wants(old, 10, now)
        await at.until_answered(old, young)
        assert at.held() == ["old"]
        assert at.status()["balance"] == "5"


async def test_a_run_that_is_gone_is_settled_without_a_charge_and_a_live_one_is_not(
    installed_chart: Kubectl, tmp_path: Path
) -> None:
    async with scene(installed_chart, tmp_path, Meddled) as at:
        at.grant(wallet={"creditUsd": 100})
        first, second, third = (at.run(name) for name in ("first", "second", "third"))
        for run in (first, second, third):
            at.wants(run, 10)
        await at.until_answered(first, second, third)
        # By its event, as the watch tells it.
        at.delete_run("first")
        at.workspaces.gone(at.namespace, first.uid)
        await at.until(lambda: at.entries() == [("first", "0", "RunGone")], "the first is settled")
        # A wish that was on its way when its run went.
        at.wants(first, 10)
        await at.until_answered(first)
        assert at.held() == ["second", "third"]
        # While nobody watched; and a run that begins right after the list is not on it.
        await at.end()
        at.delete_run("second")
        late: list[RunRef] = []

        def begin() -> None:
            late.append(at.run("late"))
            at.wants(late[0], 10)

        assert isinstance(at.cluster, Meddled)
        at.cluster.after_list = begin
        await at.restarted()
        at.queue.add(at.key)
        await at.until(lambda: len(at.entries()) == 2, "the second is settled")
        await at.until_answered(*late)
        assert at.held() == ["late", "third"]
        # Looked for again, it is there.
        at.workspaces.look_for_gone(at.namespace)
        at.ends(third, 1)
        await at.until_answered(third)
        assert at.held() == ["late"]
        assert [name for name, _, _ in at.entries()] == ["first", "second", "third"]


async def test_a_workspace_waits_for_its_holds_and_another_one_goes_on_with_its_book(
    installed_chart: Kubectl, tmp_path: Path
) -> None:
    async with scene(installed_chart, tmp_path) as at:
        at.grant(wallet={"creditUsd": 100})
        done, open_ = at.run("done"), at.run("open")
        for run in (done, open_):
            at.wants(run, 10)
        await at.until_answered(done, open_)
        at.ends(done, 12)
        await at.until_answered(done)
        at.kubectl("delete", "workspace", "workspace", "--wait=false")
        at.queue.add(at.key)
        await at.until(lambda: "is being deleted" in str(at.status().get("waiting")), "it says what it waits for")
        assert at.held() == ["open"]
        assert at.pages() == []
        at.ends(open_, 4.25)
        await at.until(lambda: at.workspace() is None, "the Workspace is gone")
        (page,) = at.pages()
        assert [(e["run"]["name"], e["charged"], e["overrun"]) for e in page["entries"]] == [
            ("done", "10", "2"),
            ("open", "4.25", "0"),
        ]
        # Whoever asks a Workspace that is gone is told to look for themselves.
        at.woken.clear()
        at.wants(done, 10)
        await at.until_answered(done)
        at.grant(wallet={"creditUsd": 100})
        await at.until(lambda: at.status().get("spent") == "14.25", "the new one knows what was spent")
        another = at.run("another")
        at.wants(another, 85.75)
        await at.until_answered(another)
        at.ends(another, 1)
        await at.until_answered(another)
        status = at.status()
        assert (status["entries"], status["pages"], status["balance"]) == (3, 1, "84.75")


async def test_a_namespace_that_goes_keeps_neither_its_workspace_nor_a_page(
    installed_chart: Kubectl, tmp_path: Path
) -> None:
    async with scene(installed_chart, tmp_path) as at:
        at.grant(wallet={"creditUsd": 100})
        run = at.run("run")
        at.wants(run, 10)
        await at.until_answered(run)
        at.kubectl("delete", "namespace", at.namespace, "--wait=false")
        await at.until(lambda: at.api.get(at.path("trainingjobs", "run")) is None, "the run is gone")
        deleted = lambda: "deletionTimestamp" in (at.workspace() or {"metadata": "deletionTimestamp"})["metadata"]  # noqa: E731
        await at.until(deleted, "the Workspace is being deleted")
        # As the watch tells of the one and of the other.
        at.workspaces.gone(at.namespace, run.uid)
        await at.until(lambda: at.workspace() is None, "the Workspace is gone")
        await at.until(lambda: at.api.get(f"/api/v1/namespaces/{at.namespace}") is None, "the namespace is gone")


async def test_money_is_dated_by_the_api_server_though_the_machine_s_clock_is_minutes_ahead(
    installed_chart: Kubectl, tmp_path: Path
) -> None:
    ahead = ServerClock(local=lambda: wall() + timedelta(minutes=5))
    async with scene(installed_chart, tmp_path, clock=ahead) as at:
        at.grant(wallet={"creditUsd": 100})
        run = at.run("run")
        at.wants(run, 10)
        await at.until_answered(run)
        assert at.cluster.clock_error == pytest.approx(-300, abs=1.5)
        (hold,) = at.status()["holds"].values()
        made = at.api.request("GET", at.path("trainingjobs", "run"))["metadata"]["creationTimestamp"]
        later = datetime.fromisoformat(hold["placedAt"]) - datetime.fromisoformat(made)
        assert -2 <= later.total_seconds() <= 60


async def test_a_page_that_says_something_else_is_told_of_and_never_written_over(
    installed_chart: Kubectl, tmp_path: Path
) -> None:
    async with scene(installed_chart, tmp_path) as at:
        at.grant(wallet={"creditUsd": 100})
        run = at.run("run")
        at.wants(run, 10)
        await at.until_answered(run)
        at.ends(run, 5)
        await at.until_answered(run)
        page = forged(at.status()["settled"])
        at.api.post(at.path("ledgerpages"), page)
        await at.end()
        at.kubectl("delete", "workspace", "workspace", "--wait=false")
        at.begin()
        await at.end()
        with pytest.raises(Rejected, match="page-000000001: found other entries"):
            await at.workspaces(at.key)
        await at.recorder.flush()
        events = at.api.items(f"/apis/events.k8s.io/v1/namespaces/{at.namespace}/events")
        assert [e["reason"] for e in events] == ["LedgerDiffers"]
        assert at.pages() == [page["spec"]]
        assert at.entries() == [("run", "5", "Succeeded")]


def forged(settled: list[Object]) -> Object:
    entries = [entry | {"charged": "1"} for entry in settled]
    spec: dict[str, Any] = {"page": 1, "workspaceUid": "somebody's", "entries": entries}
    spec["totals"] = {"entries": 1, "spentUsd": "1", "spentH100Hours": "0"}
    return {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "LedgerPage",
        "metadata": {"name": "page-000000001"},
        "spec": spec,
    }


async def test_one_that_can_t_be_read_is_said_so_and_what_was_asked_waits(
    installed_chart: Kubectl, tmp_path: Path
) -> None:
    async with scene(installed_chart, tmp_path, Meddled) as at:
        assert isinstance(at.cluster, Meddled)
        await at.end()
        at.grant(wallet={"creditUsd": 100})
        at.cluster.newer = True
        run = at.run("run")
        at.wants(run, 10)
        assert await at.workspaces(at.key) == 300
        await at.recorder.flush()
        (event,) = at.api.items(f"/apis/events.k8s.io/v1/namespaces/{at.namespace}/events")
        assert (event["type"], event["reason"]) == ("Warning", "ObjectUnreadable")
        assert "Workspace workspace: spec.plan: found 'gold'" in event["note"]
        at.cluster.newer = False
        await at.workspaces(at.key)
        assert at.held() == ["run"]
