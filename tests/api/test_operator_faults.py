"""Operators that are killed and paused at the worst moments: nothing goes back, nothing is lost, nothing is done twice."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import urllib3

from halo_operator.plan.names import key_label
from tests.api import pods
from tests.api.audit import AuditLog
from tests.api.client import Object, Refused
from tests.api.gate import Asked, Gate, ignore
from tests.api.kube import Kubectl, eventually
from tests.api.operator_process import OperatorProcess, replica, training_job
from tests.api.pods import report, resumes_at, trained
from tests.api.stage import Stage, attempts, steps

pytestmark = pytest.mark.api

# A lease lasts 15 s, and those who wait for it look every 2 s.
TAKE_OVER_SECONDS = 60
# Four times the lease: as long as a machine may well freeze.
PAUSE_SECONDS = 60
MOST_KILLS = {"after every write": 30, "at random": 6}


@pytest.fixture
def gate(installed_chart: Kubectl) -> Iterator[Gate]:
    gate = Gate(installed_chart.kubeconfig)
    yield gate
    gate.close()


def settled(stage: Stage, name: str = "run") -> None:
    """The run is over, its only adapter there, and its last pod let go."""
    stage.until_state("Succeeded", name, TAKE_OVER_SECONDS)
    stage.until(lambda: all("finalizers" not in p["metadata"] for p in stage.all_pods(name)), "the pods are let go")
    assert (stage.adapter(name) or {})["spec"]["trainedBy"]["uid"] == stage.run(name)["metadata"]["uid"]
    again = [fact for fact, times in Counter((e["reason"], e["note"]) for e in stage.events(name)).items() if times > 1]
    assert again == []


def push_through(stage: Stage, operator: OperatorProcess, pod: Object, body: pods.Report) -> None:
    """Push until it is acknowledged, whoever dies meanwhile."""

    def acknowledged() -> bool:
        try:
            code, answer = stage.push(operator, pod, body)
        except (urllib3.exceptions.HTTPError, OSError):
            return False
        return code == 200 and answer.acknowledged

    stage.until(acknowledged, f"report {body.sequence} is acknowledged", 60)


# --- the operator killed


@pytest.mark.parametrize("when", ["after every write", "at random"])
def test_the_operator_is_killed_and_started_again(
    stage: Stage, installed_chart: Kubectl, gate: Gate, when: str
) -> None:
    log, chance, striking, kills = AuditLog(installed_chart.kubeconfig), random.Random(7), threading.Lock(), []
    # How much each one had said when the next one was started: a late answer may strike one that does not lead yet.
    before: list[int] = []

    def strike(asked: Asked) -> None:
        if not striking.acquire(blocking=False):
            return  # asked by the process that is just being killed
        try:
            hit = asked.is_stored if when == "after every write" else chance.random() < 0.2
            if hit and stage.namespace in asked.path and len(kills) < MOST_KILLS[when]:
                kills.append(asked)
                operator.kill()
                before.append(len(operator.said()))
                operator.start()
        finally:
            striking.release()

    with replica(installed_chart, gate.url) as operator:
        operator.wait_until_leading()
        gate.after = strike
        stage.inspected_dataset()
        pod = stage.start()
        pods.run(stage.node, pod)
        push_through(stage, operator, pod, report(pod, 1, step=5, saved=(5,)))
        push_through(stage, operator, pod, report(pod, 2, step=10, saved=(5, 10)))
        pods.end(stage.node, pod, 1, "Traceback: the network went away")
        second = stage.pod(attempt=2)
        assert resumes_at(second) == 10
        pods.run(stage.node, second)
        push_through(stage, operator, second, report(second, 1, step=15, saved=(15,)))
        stage.finish(second, trained(second))
        settled(stage)
        gate.after = ignore
        # So that it gives its lease back, which the next test would else wait for.
        stage.until(lambda: "leading as" in operator.said()[before[-1] :], "the last one leads")
    assert len(kills) > 5
    assert attempts(stage) == [(1, "Crashed"), (2, "Succeeded")]
    assert steps(stage) == [10, 15, 20]
    assert stage.status()["failures"] == 1
    made = [
        e
        for e in log.entries()
        if e.namespace == stage.namespace and e.resource == "pods" and e.verb == "create" and e.stored
    ]
    roles = Counter(role for e in made for role in ("inspect", "trainer", "publish") if f"-{role}-" in e.name)
    assert roles == {"inspect": 1, "trainer": 2, "publish": 1}, "one pod an inspection, one an attempt, one adapter"


# --- two leaders


class Held:
    """Requests that a gate keeps back; once each of them came, the process that asked is paused, and then they go on late."""

    def __init__(self, process: OperatorProcess, *requests: Callable[[Asked], bool]) -> None:
        self._process = process
        self._requests = list(requests)
        self._release = threading.Event()
        self.paused = threading.Event()

    def __call__(self, asked: Asked) -> None:
        found = next((request for request in self._requests if request(asked)), None)
        if found is None:
            return
        self._requests.remove(found)
        if not self._requests:
            self._process.pause()
            self.paused.set()
        self._release.wait(180)

    def let_go(self) -> None:
        self._release.set()


def gathers(stage: Stage, name: str) -> Callable[[Asked], bool]:
    """Whether it has read the pods of a run; what it decides by them comes late."""
    label = f"key%3D{key_label('TrainingJob', stage.namespace, name)}"
    return lambda asked: bool(asked.answer) and asked.method == "GET" and label in asked.path


def writes_status(stage: Stage, name: str) -> Callable[[Asked], bool]:
    """Whether it is about to say that a run is accepted."""
    return lambda asked: (
        not asked.answer and asked.method == "PUT" and f"/{stage.namespace}/trainingjobs/{name}/" in asked.path
    )


def makes_pod(stage: Stage, name: str) -> Callable[[Asked], bool]:
    """Whether it is about to make a run's pod, whose attempt the status names already."""
    return lambda asked: not asked.answer and asked.method == "POST" and f'"{name}-trainer-0-a1' in asked.body


def test_a_leader_that_was_paused_writes_nothing_back(stage: Stage, installed_chart: Kubectl, gate: Gate) -> None:
    log = AuditLog(installed_chart.kubeconfig)
    moments = {"gathered": gathers, "written": writes_status, "made": makes_pod}
    with replica(installed_chart, gate.url) as old:
        old.wait_until_leading()
        stage.inspected_dataset()
        held = Held(old, *(moment(stage, name) for name, moment in moments.items()))
        gate.before = gate.after = held
        for name in moments:
            stage.create(training_job(stage.base, name))
        assert held.paused.wait(30)
        paused_at = time.monotonic()
        with replica(installed_chart) as new:
            new.wait_until_leading()
            last = {name: second_attempt(stage, new, name) for name in moments}
            before = {name: stage.run(name) for name in moments}
            eventually(lambda: time.monotonic() - paused_at >= PAUSE_SECONDS, "the leader was paused long enough", 90)
            held.let_go()
            # It comes late and makes a pod of an attempt that is over; that one is stopped at once.
            stage.until(lambda: made_by_the_paused(log, stage), "the late request for a pod arrived")
            old.resume()
            assert old.ended() == 1
            for name in moments:
                stage.until(
                    lambda name=name: only(stage, name, last[name]), f"nothing but the last pod of {name} stays"
                )
                assert stage.run(name) == before[name]


def second_attempt(stage: Stage, operator: OperatorProcess, name: str) -> Object:
    """Play a run whose first attempt fails to its end; return its last pod."""
    pod = stage.pod(name)
    pods.run(stage.node, pod)
    stage.push_until_acknowledged(operator, pod, report(pod, 1, step=5, saved=(5,)))
    pods.end(stage.node, pod, 1, "it broke")
    second = stage.pod(name, attempt=2)
    pods.run(stage.node, second)
    stage.finish(second, trained(second))
    settled(stage, name)
    stage.until(lambda: not stage.api.get(pods.path_of(pod)), "the first attempt's pod is gone")
    return second


def made_by_the_paused(log: AuditLog, stage: Stage) -> bool:
    made = [e for e in log.entries() if e.namespace == stage.namespace and e.verb == "create" and e.resource == "pods"]
    return sum("made-trainer-0-a1" in e.name and e.stored for e in made) == 2


def only(stage: Stage, name: str, last: Object) -> bool:
    """Whether one pod that trains the run is left; its node ends those that are being deleted."""
    found = [p for p in stage.all_pods(name) if p["metadata"]["labels"]["halo.training/role"] != "publish"]
    for pod in found:
        if "deletionTimestamp" in pod["metadata"] and pod["spec"].get("nodeName"):
            with suppress(Refused):
                pods.stopped(stage.node, pod)
    return [p["metadata"]["uid"] for p in found] == [last["metadata"]["uid"]]


def test_pushes_to_the_standby_and_a_leader_killed_at_the_last_push_lose_nothing(
    stage: Stage, installed_chart: Kubectl, gate: Gate
) -> None:
    with replica(installed_chart, gate.url) as leader:
        leader.wait_until_leading()
        with replica(installed_chart) as standby:
            stage.inspected_dataset()
            pod = stage.start()
            pods.run(stage.node, pod)
            stage.until(lambda: answers(stage, standby, pod) == 503, "the standby says that it does not lead")
            for sequence, step in ((1, 5), (2, 10)):
                assert stage.push(standby, pod, report(pod, sequence, step, (step,)))[0] == 503
                stage.push_until_acknowledged(leader, pod, report(pod, sequence, step, (step,)))
            assert steps(stage) == [5, 10]
            last = report(pod, 3, step=20, saved=(10, 20), outcome=trained(pod))
            killed = threading.Event()

            def strike(asked: Asked) -> None:
                if asked.method == "PUT" and "/trainingjobs/" in asked.path and not killed.is_set():
                    leader.kill()
                    killed.set()

            gate.before = strike
            acknowledged = False
            try:
                code, answer = stage.push(leader, pod, last)
                acknowledged = code == 200 and answer.acknowledged
            except (urllib3.exceptions.HTTPError, OSError):
                pass
            assert killed.wait(10)
            assert not acknowledged
            assert steps(stage) == [5, 10]
            push_through(stage, standby, pod, last)
            assert steps(stage) == [5, 10, 20]
            assert stage.state() == "Publishing"
            stage.finish(pod, trained(pod))
            settled(stage)


def answers(stage: Stage, operator: OperatorProcess, pod: Object) -> int:
    try:
        return stage.push(operator, pod, report(pod, 0))[0]
    except (urllib3.exceptions.HTTPError, OSError):
        return 0


def test_what_a_pod_left_while_no_operator_was_there_is_kept_even_if_it_is_force_deleted(
    stage: Stage, installed_chart: Kubectl
) -> None:
    with replica(installed_chart) as operator:
        operator.wait_until_leading()
        stage.inspected_dataset()
        pod = stage.start()
        pods.run(stage.node, pod)
        stage.push_until_acknowledged(operator, pod, report(pod, 1, step=5, saved=(5,)))
        operator.kill()
        # Its last push reached nobody: the termination message alone tells of the end and of the last checkpoint.
        stage.finish(pod, trained(pod))
        stage.kubectl("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0", "--wait=false")
        operator.start()
        settled(stage)
        assert steps(stage) == [5, 20]
        assert attempts(stage) == [(1, "Succeeded")]
        stage.until(lambda: not stage.api.get(pods.path_of(pod)), "the pod is gone")
