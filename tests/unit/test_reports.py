"""Reports between their arrival and the status that takes them in."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from halo_api.report import Answer, Deadline, Report
from halo_api.rollouts import ServerAddress, Servers
from halo_api.training_job import TrainingJobStatus
from halo_operator.cluster import Cluster
from halo_operator.plan import names
from halo_operator.plan.stopping import Deadlines
from halo_operator.plan.world import Object
from halo_operator.reports import Reports
from halo_operator.server import LARGEST_REPORT, ReportServer, application
from tests.unit import builders

SERVERS = Servers(attempt=1, servers=(ServerAddress(server=0, incarnation=2, host="a1-s0-i2.run.team.svc"),))


def report(attempt: int = 1, sequence: int = 1, step: int | None = None) -> Report:
    saved = (builders.checkpoint(step, attempt),) if step else ()
    return Report(run_uid="uid-1", attempt=attempt, sequence=sequence, checkpoints=saved)


def stored(attempt: int = 1, step: int | None = None) -> TrainingJobStatus:
    saved = [{**builders.checkpoint(step).to_json(), "attempt": attempt}] if step else []
    return TrainingJobStatus.model_validate({"attempt": attempt, "checkpoints": saved})


def test_what_is_too_long_for_a_report_is_not_read_and_a_standby_takes_none() -> None:
    async def push(leading: bool, size: int) -> int:
        server = ReportServer(cast(Cluster, None), Reports(), lambda _: None, lambda: leading)
        async with TestClient(TestServer(application(web.post("/v1/reports", server.take)))) as client:
            return (await client.post("/v1/reports", data=b"x" * size)).status

    answers = [asyncio.run(push(*asked)) for asked in ((True, LARGEST_REPORT), (True, LARGEST_REPORT + 1), (False, 1))]
    assert answers == [400, 413, 503]


class OnePod:
    """A cluster of one pod of a run, whose token anybody may have."""

    def __init__(self, role: str) -> None:
        labels = {names.RUN_LABEL: "uid-1", names.ATTEMPT_LABEL: "1", names.RANK_LABEL: "0", names.ROLE_LABEL: role}
        self.pod = {
            "metadata": {"uid": "pod-1", "labels": labels, "annotations": {names.OWNER_ANNOTATION: "TrainingJob/run"}}
        }

    async def ask(self, review: Object) -> Object:
        extra = {
            f"authentication.kubernetes.io/pod-{key}": [f"pod-{key}" if key == "name" else "pod-1"]
            for key in ("name", "uid")
        }
        user = {"username": "system:serviceaccount:team-a:default", "extra": extra}
        return {"status": {"authenticated": True, "audiences": review["spec"]["audiences"], "user": user}}

    async def get(self, *_: str) -> Object:
        return self.pod


@pytest.mark.parametrize(("role", "code"), [("trainer", 200), ("publish", 403), ("verify", 403), ("inspect", 403)])
def test_only_a_pod_that_trains_says_how_a_run_goes(role: str, code: int) -> None:
    """A checkpoint that another one told of would be published, with a receipt."""

    async def pushed() -> tuple[int, Report | None]:
        reports = Reports()
        server = ReportServer(cast(Cluster, OnePod(role)), reports, lambda _: None, lambda: True)
        async with TestClient(TestServer(application(web.post("/v1/reports", server.take)))) as client:
            body = report(step=100).model_dump_json(by_alias=True)
            answer = await client.post("/v1/reports", data=body, headers={"Authorization": "Bearer t"})
            return answer.status, reports.latest("uid-1")

    assert asyncio.run(pushed()) == (code, report(step=100) if code == 200 else None)


def test_a_rollout_server_s_report_is_a_sign_of_life_and_no_word_about_the_run() -> None:
    """What it says of steps and checkpoints, or that it has ended, must not stand for the trainer's."""

    async def pushed(role: str) -> tuple[Answer, Reports]:
        reports = Reports()
        reports.put(report(sequence=1, step=5))
        reports.serve("uid-1", SERVERS)
        reports.limit("uid-1", Deadlines(1, {"pod-name": Deadline(sequence=3)}))
        server = ReportServer(cast(Cluster, OnePod(role)), reports, lambda _: None, lambda: True)
        async with TestClient(TestServer(application(web.post("/v1/reports", server.take)))) as client:
            body = report(sequence=9, step=100).model_copy(update={"outcome": builders.success()})
            headers = {"Authorization": "Bearer t"}
            answer = await client.post("/v1/reports", data=body.model_dump_json(by_alias=True), headers=headers)
            return Answer.model_validate_json(await answer.text()), reports

    answer, reports = asyncio.run(pushed("rollout"))
    assert (answer.acknowledged, answer.servers, answer.deadline) == (True, None, Deadline(sequence=3))
    assert reports.latest("uid-1") == report(sequence=1, step=5)
    assert reports.heard("uid-1", 1, "pod-name")
    answer, reports = asyncio.run(pushed("trainer"))
    assert (answer.acknowledged, answer.servers, answer.deadline) == (False, SERVERS, Deadline(sequence=3))
    assert reports.heard("uid-1", 1, "pod-name") is None


def test_where_the_servers_of_another_attempt_are_is_told_to_nobody() -> None:
    reports = Reports()
    reports.serve("uid-1", SERVERS)
    assert reports.servers(report(attempt=1)) == SERVERS
    assert reports.servers(report(attempt=2)) is None
    reports.forget("uid-1")
    assert reports.servers(report(attempt=1)) is None


def test_an_older_report_never_replaces_a_newer() -> None:
    reports = Reports()
    assert reports.put(report(sequence=2))
    for older in (report(sequence=1), report(sequence=2), report(attempt=0, sequence=9)):
        assert not reports.put(older)
    assert reports.put(report(attempt=2, sequence=1))


def test_a_checkpoint_is_acknowledged_only_once_the_status_holds_it() -> None:
    reports = Reports()
    said = report(step=5)
    reports.put(said)
    assert not reports.acknowledged(said)
    reports.written("uid-1", stored())
    assert not reports.acknowledged(said)
    reports.written("uid-1", stored(step=5))
    assert reports.acknowledged(said)


def test_a_report_of_an_attempt_that_is_over_is_stale() -> None:
    reports = Reports()
    assert not reports.is_stale(report())
    reports.written("uid-1", stored(attempt=2))
    assert reports.is_stale(report(attempt=1))
    assert not reports.is_stale(report(attempt=2))
    reports.forget("uid-1")
    assert not reports.is_stale(report(attempt=1))


def test_the_answer_says_which_checkpoint_a_resume_would_start_from() -> None:
    reports = Reports()
    assert reports.saved_step("uid-1") is None
    reports.put(report(step=5))
    assert reports.saved_step("uid-1") is None
    reports.written("uid-1", stored(step=5))
    reports.put(report(sequence=2, step=9))
    assert reports.saved_step("uid-1") == 5


def test_the_answer_names_the_checkpoints_of_the_attempt_that_the_stored_status_names() -> None:
    """Nothing before the status was looked at: that it names none would say that others can go."""
    reports = Reports()
    said = report(step=9)
    reports.put(said)
    assert reports.named_steps(said) is None
    both = [{**builders.checkpoint(step, attempt).to_json(), "attempt": attempt} for step, attempt in ((5, 1), (9, 2))]
    status = TrainingJobStatus.model_validate({"attempt": 2, "checkpoints": both})
    reports.written("uid-1", status)
    assert reports.named_steps(said) == (5,)
    reports.put(report(attempt=2))
    assert reports.named_steps(report(attempt=2)) is None
    reports.written("uid-1", status)
    reports.put(report(attempt=2, sequence=2))
    assert reports.named_steps(report(attempt=2)) == (9,)
    assert reports.named_steps(said) is None


def test_nothing_is_kept_of_a_run_that_is_being_deleted_but_that_it_is() -> None:
    reports = Reports()
    reports.put(report())
    reports.close("uid-1")
    assert reports.latest("uid-1") is None
    assert reports.is_stale(report(attempt=99))
