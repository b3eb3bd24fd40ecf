"""The operator's CA is replaced in the middle of a run: its pushes go on, and so does the webhook; nothing restarts."""

from __future__ import annotations

import base64

import pytest

from halo_api.run_file import CA_ANNOTATION
from tests.api import pods
from tests.api.client import Object
from tests.api.kube import OPERATOR_NAMESPACE, Kubectl
from tests.api.operator_process import free_port, replica, training_job
from tests.api.pods import report, trained
from tests.api.stage import Stage
from tests.api.webhook import configured, settings

pytestmark = pytest.mark.api

SECRET = f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/secrets/halo-operator-tls"
BEGIN = "-----BEGIN CERTIFICATE-----"


def files(stage: Stage) -> dict[str, str]:
    """What the operator's Secret holds."""
    data = stage.api.request("GET", SECRET)["data"]
    return {name: base64.b64decode(text).decode() for name, text in data.items()}


def with_ca(pod: Object, ca: str) -> Object:
    """The pod as its supervisor sees it, with this CA mounted."""
    meta = pod["metadata"]
    return pod | {"metadata": meta | {"annotations": meta["annotations"] | {CA_ANNOTATION: ca}}}


def test_the_ca_is_rotated_in_the_middle_of_a_run(stage: Stage, installed_chart: Kubectl) -> None:
    port = free_port()
    with configured(stage, port) as webhook, replica(installed_chart, **settings(port)) as operator:
        operator.wait_until_leading()
        webhook.until_asked()
        stage.inspected_dataset()
        stage.until(lambda: not stage.all_pods("chat"), "the inspection's pod is gone")
        pod = stage.start()
        pods.run(stage.node, pod)
        stage.until_state("Running")
        first = files(stage)["ca.crt"]
        pushed, mounted = 0, pod["metadata"]["annotations"][CA_ANNOTATION]
        bad = training_job("no-such-base", "bad")

        def push_and_ask() -> None:
            """As a pod whose file is one look behind what the operator wrote, and a user at any moment."""
            nonlocal pushed, mounted
            pushed += 1
            code, answer = stage.push(operator, with_ca(pod, mounted), report(pod, pushed, step=pushed))
            assert code == 200, answer
            assert "(UnknownBaseModel)" in webhook.create(bad, "--dry-run=server").stderr
            mounted = stage.api.request("GET", pods.path_of(pod))["metadata"]["annotations"][CA_ANNOTATION]

        def until_said(words: str) -> None:
            def said() -> bool:
                push_and_ask()
                return words in operator.said()

            stage.until(said, words, 60)

        push_and_ask()
        stage.kubectl(
            "-n", OPERATOR_NAMESPACE, "annotate", "secret", "halo-operator-tls", "halo.training/rotate-ca=now"
        )
        until_said("announced the next CA")
        assert files(stage)["ca.crt"] == first
        until_said("switched to the next CA")
        second = files(stage)["ca.crt"]
        assert second != first
        assert files(stage)["old-ca.crt"] == first
        for _ in range(5):
            push_and_ask()
        assert mounted.count(BEGIN) == base64.b64decode(webhook.ca_bundle()).decode().count(BEGIN) == 2
        # What serves is signed by the new CA alone.
        assert stage.push(operator, with_ca(pod, second), report(pod, pushed + 1, step=pushed))[0] == 200
        assert pushed > 8
        assert "halo.training/rotate-ca" not in stage.api.request("GET", SECRET)["metadata"].get("annotations", {})
        assert stage.status()["attempt"] == 1
        assert [p["metadata"]["uid"] for p in stage.all_pods("run")] == [pod["metadata"]["uid"]]
        stage.finish(pod, trained(pod))
        stage.until_state("Succeeded")
