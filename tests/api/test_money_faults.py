"""Money while operators die, come back, or read a wrong clock: one hold a run, every second charged once, and none lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from halo_api.report import Deadline
from halo_operator.plan.names import HOLD_FINALIZER
from halo_operator.plan.pod_view import parse_time
from tests.api import pods
from tests.api.audit import AuditLog
from tests.api.gate import Asked, Gate, ignore
from tests.api.kube import Kubectl
from tests.api.operator_process import OperatorProcess, replica, training_job
from tests.api.pods import checkpoint, run_file, trained
from tests.api.stage import Stage
from tests.api.test_cli_ledger import Halo
from tests.api.test_money import BUDGET, BUDGET_SECONDS, cordon, deadline, finalizers, funded, gone, to_train
from tests.api.test_uninstall import LEASE, release

# Some four minutes on two cores; what they show of the plan, the simulation in tests/unit shows in seconds.
pytestmark = [pytest.mark.api, pytest.mark.slow]

# A lease lasts 15 s, and those who wait for it look every 2 s.
TAKE_OVER_SECONDS = 180


@pytest.fixture
def gate(installed_chart: Kubectl) -> Iterator[Gate]:
    gate = Gate(installed_chart.kubeconfig)
    yield gate
    gate.close()


# --- the leader killed

Moment = tuple[str, str]
FINALIZER, BOOK = ("PATCH", "trainingjobs/run"), ("PUT", "workspaces/workspace/status")
STATUS, POD = ("PUT", "trainingjobs/run/status"), ("POST", "pods")


class Strikes:
    """Kills whoever leads right after each of these writes is stored, in their order; another one comes in its place."""

    def __init__(self, stage: Stage, replicas: tuple[OperatorProcess, ...], *moments: Moment) -> None:
        self._stage, self._replicas = stage, replicas
        self._moments, self._striking = list(moments), threading.Lock()

    @property
    def over(self) -> bool:
        return not self._moments

    def __call__(self, asked: Asked) -> None:
        with self._striking:
            method, what = self._moments[0] if self._moments else ("", "")
            path = asked.path.partition("?")[0]
            if asked.is_stored and asked.method == method and path.endswith(f"/{self._stage.namespace}/{what}"):
                self._moments.pop(0)
                holder = self._stage.api.request("GET", LEASE)["spec"]["holderIdentity"]
                next(one for one in self._replicas if one.identity == holder).replace()


def test_the_leader_is_killed_between_finalizer_hold_status_pods_and_charge(
    stage: Stage, installed_chart: Kubectl, gate: Gate, tmp_path: Path
) -> None:
    with replica(installed_chart, gate.url) as first:
        first.wait_until_leading()
        with replica(installed_chart, gate.url) as second:
            funded(stage)
            log = AuditLog(installed_chart.kubeconfig)
            starting = Strikes(stage, (first, second), FINALIZER, BOOK, STATUS, POD)
            gate.after = starting
            stage.create(training_job(stage.base, budget=BUDGET))
            stage.until(lambda: starting.over and stage.held(), "it is held and has its pod", 4 * TAKE_OVER_SECONDS)
            placed = stage.book()["holds"]
            pod = stage.pod(seconds=TAKE_OVER_SECONDS)
            pods.run(stage.node, pod)
            stage.until_state("Running", seconds=TAKE_OVER_SECONDS)
            ending = Strikes(stage, (first, second), STATUS, BOOK, FINALIZER)
            gate.after = ending
            pods.finish(stage.node, pod, trained(pod), after=360)
            stage.until(
                lambda: ending.over and not finalizers(stage), "it is charged and let go", 3 * TAKE_OVER_SECONDS
            )
            gate.after = ignore
            assert (stage.state(), len(placed)) == ("Succeeded", 1)
            assert stage.book().get("holds", {}) == {}
            assert stage.entries() == [("run", "0.1", "Succeeded")]
            (entry,) = stage.book()["settled"]
            (hold,) = placed.values()
            assert (entry["placedAt"], entry["held"]) == (hold["placedAt"], "0.5")
            books = [e for e in log.entries() if e.namespace == stage.namespace and e.resource == "workspaces/status"]
            assert len([e for e in books if e.stored]) == 2, "one write holds, one charges"
            made = [e for e in log.entries() if e.namespace == stage.namespace and e.resource == "pods" and e.stored]
            # Those that publish and verify follow, and are not billed.
            assert [e.name for e in made if e.verb == "create" and "-trainer-" in e.name] == [pod["metadata"]["name"]]
            assert Halo(stage, tmp_path)("--check").returncode == 0


# --- clocks


def test_a_run_that_is_queued_for_longer_than_its_budget_has_all_of_its_time(
    stage: Stage, installed_chart: Kubectl, gate: Gate
) -> None:
    with replica(installed_chart, gate.url) as operator:
        operator.wait_until_leading()
        funded(stage)
        cordon(stage, True)
        try:
            pod = stage.start(budget=BUDGET)
            stage.until_state("Queued")
            # For the operator an hour goes by, twice the budget.
            gate.clock = timedelta(hours=1)
            stage.until(lambda: operators_clock(stage) > timedelta(minutes=50), "the operator's clock is ahead")
            looked_at(stage)
            assert (stage.state(), stage.all_pods("run")[0]["metadata"]["uid"]) == ("Queued", pod["metadata"]["uid"])
            gate.clock = timedelta()
            stage.until(lambda: operators_clock(stage) < timedelta(minutes=1), "the operator's clock is right")
        finally:
            cordon(stage, False)
        pods.run(stage.node, pod)
        stage.until_state("Running")
        full = Deadline(sequence=0, remaining_seconds=to_train(stage, BUDGET_SECONDS))
        assert run_file(pod).deadline == deadline(stage, pod) == full
        pods.finish(stage.node, pod, trained(pod), after=BUDGET_SECONDS)
        stage.until(lambda: stage.entries() == [("run", "0.5", "Succeeded")], "it is charged for all of its time")


def operators_clock(stage: Stage) -> timedelta:
    """By how much the operator's clock is ahead of ours: as it dates a condition that it writes now."""
    name = f"clock-{len(stage.api.items(stage.path('trainingjobs')))}"
    stage.create(training_job(stage.base, name, budget=BUDGET, lora={"dataset": "later"}))
    stage.until_state("Waiting", name)
    at = parse_time(stage.condition("Ready", name)["lastTransitionTime"])
    assert at
    return at - datetime.now(UTC)


def looked_at(stage: Stage) -> None:
    """Have the operator look at the run, and at one that comes after it."""
    stage.api.patch(stage.path("trainingjobs", "run"), {"metadata": {"labels": {"look": "again"}}})
    operators_clock(stage)


def test_ten_suspends_with_restarts_and_a_clock_that_steps_back_are_charged_once(
    stage: Stage, installed_chart: Kubectl, gate: Gate
) -> None:
    def restarted(operator: OperatorProcess, end: Callable[[OperatorProcess], object]) -> None:
        before = operator.said().count("leading as")
        end(operator)
        operator.start()
        stage.until(lambda: operator.said().count("leading as") > before, "it leads again", TAKE_OVER_SECONDS)

    used = 0
    with replica(installed_chart, gate.url) as operator:
        operator.wait_until_leading()
        funded(stage)
        stage.create(training_job(stage.base, budget=BUDGET))
        for attempt in range(1, 11):
            pod = stage.pod(attempt=attempt)
            pods.run(stage.node, pod)
            stage.until_state("Running")
            assert seconds(stage) == used
            if attempt % 4 == 0:
                restarted(operator, OperatorProcess.kill)
            if attempt == 5:
                gate.clock = timedelta(minutes=-5)
            stage.api.patch(stage.path("trainingjobs", "run"), {"spec": {"suspend": True}})
            stage.until_stopping(pod)
            pods.stopped(stage.node, pod, checkpoint(pod, attempt), after=10 * attempt)
            stage.until_state("Suspended")
            used += 10 * attempt
            if attempt % 4 == 2:
                restarted(operator, OperatorProcess.stop)
            assert seconds(stage) == used
            assert (stage.held(), stage.entries()) == ({"run": "0.5"}, [])
            stage.api.patch(stage.path("trainingjobs", "run"), {"spec": {"suspend": False}})
        assert operators_clock(stage) < timedelta(minutes=-4)
        pod = stage.pod(attempt=11)
        assert run_file(pod).deadline == Deadline(sequence=0, remaining_seconds=to_train(stage, BUDGET_SECONDS - used))
        pods.finish(stage.node, pod, trained(pod), after=170)
        stage.until(lambda: stage.entries() == [("run", "0.2", "Succeeded")], "all of it is charged, once")
        assert seconds(stage) == used + 170 == 720


def seconds(stage: Stage) -> float:
    """What the run used, as people see it."""
    return float(stage.status().get("usage", {}).get("gpuSeconds", {}).get("trainer", "0"))


# --- uninstalled


def test_an_uninstall_keeps_the_holds_and_the_operator_after_it_settles_them(
    stage: Stage, installed_chart: Kubectl, tmp_path: Path
) -> None:
    names = ("run", "ends", "goes")
    try:
        with replica(installed_chart) as operator:
            operator.wait_until_leading()
            funded(stage)
            made = {name: stage.start(name, budget=BUDGET) for name in names}
            for name, pod in made.items():
                pods.run(stage.node, pod)
                stage.until_state("Running", name)
            release(operator, released=3, let_go=4)
            assert operator.ended() == 1
            assert [finalizers(stage, name) for name in names] == [[], [], []]
            assert set(stage.held()) == set(names)
            # Nobody is there: one ends, one is deleted, one goes on.
            pods.finish(stage.node, made["ends"], trained(made["ends"]), after=360)
            stage.kubectl("delete", "trainingjob", "goes")
            pods.end(stage.node, made["goes"], 137)
            stage.api.delete(LEASE)
            operator.start()
            stage.until(lambda: finalizers(stage) == [HOLD_FINALIZER], "it is guarded again", TAKE_OVER_SECONDS)
            workspace = stage.run("workspace", "workspaces")["metadata"]
            assert workspace.get("finalizers") == [HOLD_FINALIZER]
            stage.until(lambda: set(stage.held()) == {"run"}, "the two others are settled")
            pods.finish(stage.node, made["run"], trained(made["run"]), after=720)
            stage.until(lambda: not stage.held() and finalizers(stage) == [], "it is settled and let go")
            charged = {name: (amount, why) for name, amount, why in stage.entries()}
            assert charged == {"run": ("0.2", "Succeeded"), "ends": ("0.1", "Succeeded"), "goes": ("0", "RunGone")}
            assert gone(stage, "goes")
            assert Halo(stage, tmp_path)("--check").returncode == 0
    finally:
        # Those who come next must not wait for it.
        stage.api.delete(LEASE)
