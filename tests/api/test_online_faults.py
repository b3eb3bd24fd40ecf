"""A halo_rlvr run whose operator is killed: what ended meanwhile is replaced, or stopped, by the next one."""

from __future__ import annotations

import pytest

from tests.api import pods
from tests.api.kube import Kubectl
from tests.api.operator_process import replica
from tests.api.pods import trained
from tests.api.stage import Stage
from tests.api.test_online import CRASHED, begin, let_servers_go, serving

pytestmark = pytest.mark.api


def test_an_operator_that_dies_replaces_who_ended_meanwhile_and_stops_them_with_the_trainer(
    stage: Stage, installed_chart: Kubectl
) -> None:
    with replica(installed_chart) as operator:
        operator.wait_until_leading()
        trainer, servers = begin(stage)
        operator.kill()
        pods.finish(stage.node, servers[0], CRASHED)
        operator.replace()
        stage.until(lambda: serving(stage) == [(0, 2), (1, 1)], "it is replaced", 120)
        pods.run(stage.node, stage.servers()[0])
        operator.kill()
        pods.finish(stage.node, trainer, trained(trainer))
        operator.replace()
        let_servers_go(stage)
        stage.until_state("Succeeded")
        assert stage.status()["attempts"][0]["replaced"] == [0]
