"""halo_rlvr on the real API server: trainers and rollout servers are made together, a server is replaced alone, all go together."""

from __future__ import annotations

import time

import pytest

from halo_api.conditions import Reason
from halo_api.report import Answer, ProgressReport, Report, RolloutProgress
from halo_operator.plan import names
from tests.api import pods
from tests.api.client import Object
from tests.api.operator_process import OperatorProcess, dataset, training_job
from tests.api.pods import run_file, trained
from tests.api.stage import GROUP, Stage, attempts

pytestmark = pytest.mark.api

ONLINE: Object = {
    "base": "halo_rlvr",
    "batch": 16,
    "rlvr": {"recipe": "sql_v4_dapo_sync", "dataset": "tasks", "rolloutGpus": 2, "rolloutReplicas": 2},
}
REMOVED_SECONDS = 60
CRASHED = pods.failed(Reason.CRASHED, "vLLM's engine died")


def begin(stage: Stage) -> tuple[Object, list[Object]]:
    """A run that samples and trains: its trainer's pod and those of its two servers."""
    stage.api.patch(f"{GROUP}/basemodels/{stage.base}", {"spec": {"offers": ["lora_trl", "halo_rlvr"]}})
    tasks = dataset(stage.base, "tasks")
    tasks["spec"]["kind"] = "tasks"
    stage.create(tasks)
    pods.finish(stage.node, stage.pod("tasks"), pods.inspected(rows=500))
    run = training_job(stage.base, **ONLINE)
    del run["spec"]["lora"]
    run["spec"]["gpu"]["count"] = 3
    stage.create(run)
    trainer = stage.pod()
    stage.until(lambda: len(stage.servers()) == 2, "both servers are made")
    for pod in (trainer, *stage.servers()):
        pods.run(stage.node, pod)
    stage.until_state("Running")
    return trainer, stage.servers()


def serving(stage: Stage) -> list[tuple[int, int]]:
    """The servers that have a pod which has not ended, and which it is of theirs."""
    labels = [pod["metadata"]["labels"] for pod in stage.servers()]
    return [(int(found[names.RANK_LABEL]), int(found[names.INCARNATION_LABEL])) for found in labels]


def lose(stage: Stage, server: int) -> None:
    """A server's pod ends by itself; wait until the operator has seen it and made, and the test runs, what it makes."""
    pod = stage.servers()[server]
    pods.finish(stage.node, pod, CRASHED)
    name = pod["metadata"]["name"]
    stage.until(lambda: [p for p in stage.servers() if p["metadata"]["name"] != name][1:], "it is replaced")
    for one in stage.servers():
        pods.run(stage.node, one)


def let_servers_go(stage: Stage) -> None:
    """Whatever was asked to go goes, as soon as it is asked."""
    asked = time.monotonic()
    stage.until(lambda: all("deletionTimestamp" in p["metadata"] for p in stage.servers()), "servers are asked to go")
    assert time.monotonic() - asked < REMOVED_SECONDS
    for pod in stage.servers():
        assert pod["metadata"]["deletionGracePeriodSeconds"] <= REMOVED_SECONDS // 2
        pods.stopped(stage.node, pod)


def said(stage: Stage, operator: OperatorProcess, pod: Object, body: Report) -> Answer:
    code, answer = stage.push(operator, pod, body)
    assert code == 200, answer
    assert isinstance(answer, Answer)
    return answer


def told(answer: Answer) -> list[tuple[int, int]]:
    assert answer.servers
    return [(one.server, one.incarnation) for one in answer.servers.servers]


def step(number: int, **facts: object) -> ProgressReport:
    found = {"reward": 0.25, "passRate": 0.2, "scored": 16, "servers": 2, "kl": 0.01, "tokensPerSecond": 500} | facts
    return ProgressReport(step=number, steps=20, loss=0.5, rollouts=RolloutProgress.model_validate(found))


def test_a_whole_life_with_a_server_that_dies(stage: Stage, operator: OperatorProcess) -> None:
    trainer, servers = begin(stage)
    file = run_file(trainer)
    hosts = [f"{p['spec']['hostname']}.{p['spec']['subdomain']}.{stage.namespace}.svc" for p in servers]
    assert [one.host for one in file.servers] == hosts
    assert file.rlvr
    assert (file.rlvr.recipe, file.rlvr.episodes, file.rlvr.settings.objective.name) == ("sql_v4_dapo_sync", 16, "DAPO")
    service = stage.api.request("GET", stage.path("services", servers[0]["spec"]["subdomain"]))
    assert service["spec"]["clusterIP"] == "None"

    first = pods.report(trainer, 1).model_copy(update={"progress": step(1, unscored=2, unscoredReasons={"server": 2})})
    assert told(said(stage, operator, trainer, first)) == [(0, 1), (1, 1)]
    stage.until(lambda: stage.condition("RolloutDegraded")["reason"] == "EpisodesUnscored", "episodes are counted")
    assert stage.status()["progress"]["rollouts"]["passRate"] == 0.2
    assert "0.25" in stage.kubectl("get", "tj", "run", "--no-headers").split(), "REWARD/LOSS"

    lose(stage, 1)
    assert serving(stage) == [(0, 1), (1, 2)]
    stage.until(lambda: told(said(stage, operator, trainer, first)) == [(0, 1), (1, 2)], "the trainer is told")
    # A server has no word about the run, whatever it says.
    claimed = first.model_copy(update={"sequence": 9, "outcome": trained(trainer)})
    assert said(stage, operator, stage.servers()[0], claimed).servers is None
    second = pods.report(trainer, 2).model_copy(update={"progress": step(2)})
    said(stage, operator, trainer, second)
    stage.until(lambda: stage.condition("RolloutDegraded")["reason"] == "", "all is well again")
    assert (stage.status()["attempt"], stage.state()) == (1, "Running")

    pods.finish(stage.node, trainer, trained(trainer))
    let_servers_go(stage)
    stage.until_state("Succeeded")
    record, usage = stage.status()["attempts"][0], stage.status()["usage"]
    assert (record["reason"], record["replaced"]) == ("Succeeded", [1])
    assert float(usage["gpuSeconds"]["rollout"]) == 2 * float(usage["gpuSeconds"]["trainer"]) > 0
    assert float(record["gpuSeconds"]) == sum(map(float, usage["gpuSeconds"].values()))
    adapter = stage.adapter()
    assert adapter
    assert (adapter["spec"]["rank"], adapter["spec"]["alpha"]) == (16, 32)
    assert [p for p in stage.all_pods("run") if names.METERED_FINALIZER in p["metadata"].get("finalizers", [])] == []


def test_the_fourth_end_relaunches_the_attempt(stage: Stage, operator: OperatorProcess) -> None:
    trainer, _ = begin(stage)
    for server in (0, 1, 0):
        lose(stage, server)
    pods.finish(stage.node, stage.servers()[1], CRASHED)
    stage.until_stopping(trainer)
    let_servers_go(stage)
    pods.stopped(stage.node, trainer, pods.checkpoint(trainer, 5))
    again = stage.pod(attempt=2)
    assert attempts(stage)[0] == (1, "RolloutLost")
    assert pods.resumes_at(again) == 5
    stage.until(lambda: serving(stage) == [(0, 1), (1, 1)], "the next attempt has servers of its own")
    assert {p["metadata"]["labels"][names.ATTEMPT_LABEL] for p in stage.servers()} == {"2"}


@pytest.mark.parametrize("end", ["budget", "suspend", "delete"])
def test_servers_go_with_the_run(end: str, stage: Stage, operator: OperatorProcess) -> None:
    trainer, _ = begin(stage)
    if end == "budget":
        pods.finish(stage.node, trainer, trained(trainer).model_copy(update={"reason": Reason.BUDGET_REACHED}))
    elif end == "suspend":
        stage.api.patch(stage.path("trainingjobs", "run"), {"spec": {"suspend": True}})
    else:
        stage.api.delete(stage.path("trainingjobs", "run"), propagationPolicy="Background")
    let_servers_go(stage)
    if end == "budget":
        stage.until_state("BudgetReached")
        return
    stage.until_stopping(trainer)
    pods.stopped(stage.node, trainer, pods.checkpoint(trainer, 5))
    if end == "suspend":
        stage.until_state("Suspended")
    else:
        stage.until(lambda: stage.all_pods("run") == [], "nothing is left")
