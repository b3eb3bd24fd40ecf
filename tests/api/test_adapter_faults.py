"""The operator is killed while it verifies: whoever comes next goes on, and no pod is made twice or left behind."""

from __future__ import annotations

import threading

import pytest

from halo_api.conditions import Reason
from tests.api import pods
from tests.api.adapter_scene import RIGHT, found, publish, until_over
from tests.api.audit import AuditLog
from tests.api.gate import Asked, Gate, ignore
from tests.api.kube import Kubectl
from tests.api.operator_process import replica
from tests.api.stage import Stage

pytestmark = pytest.mark.api


def test_the_operator_is_killed_after_every_write(stage: Stage, installed_chart: Kubectl, alone: None) -> None:
    gate, striking = Gate(installed_chart.kubeconfig), threading.Lock()
    log, kills, said = AuditLog(installed_chart.kubeconfig), [], 0

    def strike(asked: Asked) -> None:
        nonlocal said
        ours = asked.is_stored and f"/{stage.namespace}/" in asked.path and "/events" not in asked.path
        # What the process asked that is just being killed is no other kill.
        if ours and striking.acquire(blocking=False):
            try:
                operator.kill()
                said = len(operator.said())
                operator.start()
                kills.append(f"{asked.method} {asked.path}")
            finally:
                striking.release()

    def struck(method: str) -> int:
        return sum(kill.startswith(method) for kill in kills)

    try:
        with replica(installed_chart, gate.url) as operator:
            operator.wait_until_leading()
            gate.after = strike
            publish(stage)
            first = stage.verify_pod()
            stage.finish(first, pods.failed(Reason.CRASHED, "Input/output error"))
            before = [first["metadata"]["uid"]]
            stage.until(lambda: [p["metadata"]["uid"] for p in stage.verify_pods()] not in ([], before), "another")
            found(stage)
            until_over(stage, RIGHT)
            # The API server shows a deletion before the gate has told of it.
            stage.until(lambda: struck("DELETE") >= 2, "the last write is struck too")
            gate.after = ignore
            # So that it gives its lease back, which the next test would else wait for.
            stage.until(lambda: "leading as" in operator.said()[said:], "the last one leads")
    finally:
        gate.close()
    # Said and made; deleted and made; said and deleted; and a word in between of a pod that was slow to be played.
    assert 6 <= len(kills) <= 9, kills
    assert struck("POST") == 2
    made = [e for e in log.entries() if e.namespace == stage.namespace and e.resource == "pods" and e.verb == "create"]
    assert len([e for e in made if e.stored]) == 2
