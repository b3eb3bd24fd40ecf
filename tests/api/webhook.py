"""The chart's webhook configuration as tests install it: under a name of its own, for one namespace, leading to an operator of theirs."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from tests.api.client import Object
from tests.api.kube import OPERATOR_NAMESPACE, ROOT, eventually
from tests.api.operator_process import OperatorProcess, training_job
from tests.api.stage import Stage

NAME = "halo-webhook-test"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def url_of(port: int) -> str:
    return f"https://127.0.0.1:{port}/validate"


def settings(port: int) -> dict[str, str]:
    """The environment of an operator that the configuration leads to."""
    return {
        "HALO_REPORT_PORT": str(port),
        "HALO_WEBHOOK_URL": url_of(port),
        "HALO_WEBHOOK_CONFIGURATION": NAME,
        "HALO_CA_NOTICE_SECONDS": "5",
    }


class Webhook:
    """The configuration, and what is asked through it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def ca_bundle(self) -> str:
        return str(self._entry()["clientConfig"].get("caBundle", ""))

    def change(self, **fields: Any) -> None:
        self.stage.api.patch(f"{CONFIGURATIONS}/{NAME}", {"webhooks": [self._entry() | fields]})

    def lead_to(self, port: int) -> None:
        self.change(clientConfig=self._entry()["clientConfig"] | {"url": url_of(port)})

    def create(self, body: Object, *options: str) -> subprocess.CompletedProcess[str]:
        """What a user gets to see."""
        return self.stage.kubectl.run("create", "-f", "-", *options, stdin=body)

    def until(self, words: str, what: str) -> None:
        """Wait until a bad run is answered so: the API server learns of a configuration a moment after it is stored."""
        bad = training_job("no-such-base", "probe")
        eventually(lambda: words in self.create(bad, "--dry-run=server").stderr, what)

    def until_asked(self) -> None:
        self.until("(UnknownBaseModel)", "the webhook answers")

    def until_unanswered(self) -> None:
        self.until("failed calling webhook", "the webhook is asked in vain")

    def _entry(self) -> Object:
        (webhook,) = self.stage.api.request("GET", f"{CONFIGURATIONS}/{NAME}")["webhooks"]
        return dict(webhook)


@contextmanager
def configured(stage: Stage, port: int, **values: Any) -> Iterator[Webhook]:
    """Install what the chart makes of it, and the operator's right to keep its CA, for as long as they are needed."""
    of_the_test = {"matchLabels": {"kubernetes.io/metadata.name": stage.namespace}}
    objects = rendered(stage, {"webhook.url": url_of(port), "webhook.namespaceSelector": of_the_test, **values})
    (configuration,) = (o for o in objects if o["kind"] == "ValidatingWebhookConfiguration")
    (role,) = (o for o in objects if o["kind"] == "ClusterRole" and o["metadata"]["name"] == "halo-operator-cluster")
    (rule,) = (r for r in role["rules"] if r["apiGroups"] == ["admissionregistration.k8s.io"])
    meta = {"name": NAME}
    account = {"kind": "ServiceAccount", "name": "halo-operator", "namespace": OPERATOR_NAMESPACE}
    made: dict[str, Object] = {
        f"{RBAC}/clusterroles": {"metadata": meta, "rules": [rule | {"resourceNames": [NAME]}]},
        f"{RBAC}/clusterrolebindings": {
            "metadata": meta,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME},
            "subjects": [account],
        },
        CONFIGURATIONS: configuration | {"metadata": meta},
    }
    for path in made:
        stage.api.delete(f"{path}/{NAME}")
    try:
        for path, body in made.items():
            stage.api.post(path, body)
        yield Webhook(stage)
    finally:
        for path in made:
            stage.api.delete(f"{path}/{NAME}")


def rendered(stage: Stage, values: Object) -> list[Object]:
    sets = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]
    chart = ["halo", str(ROOT / "charts" / "halo"), "--namespace", OPERATOR_NAMESPACE, "--kube-version", "1.34.0"]
    helm = [str(stage.kubectl.tools / "helm"), "template", *chart, *sets]
    done = subprocess.run(helm, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def reviews(operator: OperatorProcess) -> int:
    """How often a replica was asked about a run."""
    with urllib.request.urlopen(f"http://127.0.0.1:{operator.health_port}/metrics", timeout=10) as answer:
        found = re.findall(r"^halo_admission_reviews_total\{.*\} (\S+)", answer.read().decode(), re.M)
    return int(sum(map(float, found)))
