"""The chart's webhook configuration as tests install it: under a name of its own, for their namespaces, leading to their operator."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from tests.api.client import Api, Object, Refused
from tests.api.kube import OPERATOR_NAMESPACE, ROOT, Kubectl, eventually
from tests.api.operator_process import OperatorProcess, free_port, replica, training_job
from tests.api.stage import Stage

NAME = "halo-webhook-test"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
JOINED = {"halo-tests-webhook": "asked"}


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
    """A configuration, and what is asked through it from a namespace."""

    def __init__(self, stage: Stage, name: str = NAME) -> None:
        self.stage, self.name = stage, name

    def ca_bundle(self) -> str:
        return str(self._entry()["clientConfig"].get("caBundle", ""))

    def change(self, **fields: Any) -> None:
        self.stage.api.patch(f"{CONFIGURATIONS}/{self.name}", {"webhooks": [self._entry() | fields]})

    def lead_to(self, port: int) -> None:
        self.change(clientConfig=self._entry()["clientConfig"] | {"url": url_of(port)})

    def create(self, body: Object, *options: str) -> subprocess.CompletedProcess[str]:
        """What a user gets to see."""
        return self.stage.kubectl.run("create", "-f", "-", *options, stdin=body)

    def until(self, words: str, what: str) -> None:
        """Wait until a bad run is answered so: the API server learns of a configuration a moment after it is stored."""
        bad = training_job("no-such-base", "probe")

        def answered() -> bool:
            try:
                self.stage.api.post(f"{self.stage.path('trainingjobs')}?dryRun=All", bad)
            except Refused as refused:
                return words in str(refused)
            return False

        eventually(answered, what)

    def until_asked(self) -> None:
        self.until("(UnknownBaseModel)", "the webhook answers")

    def until_unanswered(self) -> None:
        self.until("failed calling webhook", "the webhook is asked in vain")

    def _entry(self) -> Object:
        (webhook,) = self.stage.api.request("GET", f"{CONFIGURATIONS}/{self.name}")["webhooks"]
        return dict(webhook)


@contextmanager
def configured(stage: Stage, port: int, name: str = NAME, **values: Any) -> Iterator[Webhook]:
    """The chart's configuration for one namespace, for as long as it is needed."""
    of_the_test = {"matchLabels": {"kubernetes.io/metadata.name": stage.namespace}}
    with installed(stage.api, stage.kubectl, port, of_the_test, name, **values):
        yield Webhook(stage, name)


@contextmanager
def installed(
    api: Api, kubectl: Kubectl, port: int, selector: Object, name: str = NAME, **values: Any
) -> Iterator[None]:
    """Install what the chart makes of it, and the operator's right to keep its CA, for as long as they are needed."""
    objects = rendered(kubectl, {"webhook.url": url_of(port), "webhook.namespaceSelector": selector, **values})
    (configuration,) = (o for o in objects if o["kind"] == "ValidatingWebhookConfiguration")
    (role,) = (o for o in objects if o["kind"] == "ClusterRole" and o["metadata"]["name"] == "halo-operator-cluster")
    (rule,) = (r for r in role["rules"] if r["apiGroups"] == ["admissionregistration.k8s.io"])
    meta = {"name": name}
    account = {"kind": "ServiceAccount", "name": "halo-operator", "namespace": OPERATOR_NAMESPACE}
    made: dict[str, Object] = {
        f"{RBAC}/clusterroles": {"metadata": meta, "rules": [rule | {"resourceNames": [name]}]},
        f"{RBAC}/clusterrolebindings": {
            "metadata": meta,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [account],
        },
        CONFIGURATIONS: configuration | {"metadata": meta},
    }
    for path in made:
        api.delete(f"{path}/{name}")
    try:
        for path, body in made.items():
            api.post(path, body)
        yield
    finally:
        for path in made:
            api.delete(f"{path}/{name}")


@dataclass
class Served:
    """An operator that leads and answers what is asked from any namespace that joins; shared by the tests of a module."""

    api: Api
    operator: OperatorProcess
    port: int

    def join(self, stage: Stage) -> Webhook:
        """Have the webhook asked about this namespace, as the chart installs it, whatever the test before did to both."""
        webhook = Webhook(stage)
        webhook.lead_to(self.port)
        webhook.change(failurePolicy="Ignore")
        if not self.operator.is_alive():
            self.operator.start()
        self.api.patch(f"/api/v1/namespaces/{stage.namespace}", {"metadata": {"labels": JOINED}})
        webhook.until_asked()
        return webhook


@contextmanager
def served(admin: Kubectl, api: Api) -> Iterator[Served]:
    port = free_port()
    with (
        installed(api, admin, port, {"matchLabels": JOINED}),
        replica(admin, **settings(port)) as operator,
    ):
        operator.wait_until_leading()
        yield Served(api, operator, port)


def rendered(kubectl: Kubectl, values: Object) -> list[Object]:
    sets = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]
    chart = ["halo", str(ROOT / "charts" / "halo"), "--namespace", OPERATOR_NAMESPACE, "--kube-version", "1.34.0"]
    helm = [str(kubectl.tools / "helm"), "template", *chart, *sets]
    done = subprocess.run(helm, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def reviews(operator: OperatorProcess) -> int:
    """How often a replica was asked about a run."""
    with urllib.request.urlopen(f"http://127.0.0.1:{operator.health_port}/metrics", timeout=10) as answer:
        found = re.findall(r"^halo_admission_reviews_total\{.*\} (\S+)", answer.read().decode(), re.M)
    return int(sum(map(float, found)))
