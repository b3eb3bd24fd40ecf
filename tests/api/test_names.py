"""Runs whose names are as long, and as alike, as names can be work side by side, each with children of its own."""

from __future__ import annotations

import re

import pytest

from tests.api import pods
from tests.api.client import Object
from tests.api.operator_process import OperatorProcess, training_job
from tests.api.pods import trained
from tests.api.stage import GROUP, Stage

pytestmark = pytest.mark.api

SHARED = "support-answers-for-customers-who-return-what-they-bought-in-"
LONGEST = ".".join(["x" * 63, "y" * 63, "z" * 63, "0" + "w" * 60])
NAMES = (f"{SHARED}spring", f"{SHARED}autumn", LONGEST)
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def test_names_that_begin_alike_and_the_longest_one_work_side_by_side(stage: Stage, operator: OperatorProcess) -> None:
    assert NAMES[0][:60] == NAMES[1][:60]
    assert len(LONGEST) == 253
    stage.inspected_dataset()
    # Nodes of two GPUs, so that each run has two pods and a Service; all of them fit on the played one.
    stage.api.patch(
        f"{GROUP}/gpuclasses/{stage.base}", {"spec": {"perNode": 2, "perGpu": {"cpu": "1", "memory": "1Gi"}}}
    )
    uids = {}
    for name in NAMES:
        run = training_job(stage.base, name)
        run["spec"]["gpu"]["count"] = 4
        uids[name] = stage.create(run)["metadata"]["uid"]
    members = {name: [stage.pod(name, rank=rank) for rank in (0, 1)] for name in NAMES}

    assert len({pod["metadata"]["name"] for of_run in members.values() for pod in of_run}) == 6
    for name, of_run in members.items():
        assert all(legal(pod) for pod in of_run)
        assert {owner(pod) for pod in of_run} == {(name, uids[name])}
        (meeting_point,) = {pod["spec"]["subdomain"] for pod in of_run}
        assert owner(stage.run(meeting_point, "services")) == (name, uids[name])
        addresses = {f"{pod['spec']['hostname']}.{meeting_point}.{stage.namespace}.svc.cluster.local" for pod in of_run}
        assert len(addresses) == 2
        assert all(len(address) < 254 for address in addresses)
        assert pods.run_file(of_run[0]).run.uid == uids[name]

    for name in NAMES:
        for pod in members[name]:
            pods.run(stage.node, pod)
        stage.push_until_acknowledged(operator, members[name][0], pods.report(members[name][0], 1, step=5, saved=(5,)))
    # All at once, so that a mistaken identity would show in the other's status.
    for name in NAMES:
        for pod in members[name]:
            stage.finish(pod, trained(pod))
    for name in NAMES:
        stage.until_state("Succeeded", name)
        adapter = stage.adapter(name)
        assert adapter is not None
        assert adapter["spec"]["trainedBy"]["uid"] == uids[name]
        # Events come after what people wait for.
        stage.until(lambda name=name: "Succeeded" in reasons(stage, name), f"{name} is told to have succeeded")
        assert reasons(stage, name).count("Succeeded") == 1
        assert {e["regarding"]["uid"] for e in stage.events(name)} == {uids[name]}
        assert stage.kubectl("get", "trainingjob", name, "-o", "jsonpath={.status.adapter.name}") == name
    shown = stage.kubectl("get", "trainingjobs,adapters", "--no-headers").splitlines()
    assert len(shown) == 6


def owner(child: Object) -> tuple[str, str]:
    (reference,) = child["metadata"]["ownerReferences"]
    return reference["name"], reference["uid"]


def legal(pod: Object) -> bool:
    """Whether what must be a DNS label, or a label's value, is one; the API server took the rest."""
    words = [pod["metadata"]["name"], pod["spec"]["hostname"], pod["spec"]["subdomain"]]
    return all(map(DNS_LABEL.fullmatch, words)) and all(len(v) <= 63 for v in pod["metadata"]["labels"].values())


def reasons(stage: Stage, name: str) -> list[str]:
    return [event["reason"] for event in stage.events(name)]
