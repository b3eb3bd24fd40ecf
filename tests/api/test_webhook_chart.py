"""Helm and the webhook's configuration: an upgrade leaves the CA that the operator wrote, an uninstall leaves nothing."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.client import Object
from tests.api.kube import ROOT, Kubectl

pytestmark = pytest.mark.api

NAME = "halo-webhook-upgrade"
NOWHERE = {"matchLabels": {"halo-test": "nowhere"}}
CA = base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()


class Release:
    """The chart's webhook alone, under a name of its own, beside the installation of the other tests."""

    def __init__(self, admin: Kubectl, chart: Path) -> None:
        self.admin, self.chart = admin, chart

    def helm(self, *arguments: str) -> None:
        command = [str(self.admin.tools / "helm"), *arguments, "--namespace", self.admin.namespace]
        environment = os.environ | {"KUBECONFIG": str(self.admin.kubeconfig)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def upgrade(self, **values: object) -> None:
        sets = [f"--set-json=webhook.{key}={json.dumps(value)}" for key, value in values.items()]
        self.helm(
            "upgrade",
            "--install",
            NAME,
            str(self.chart),
            f"--set-json=webhook.namespaceSelector={json.dumps(NOWHERE)}",
            *sets,
        )

    def webhook(self) -> Object:
        found: Object = json.loads(self.admin("get", "validatingwebhookconfiguration", NAME, "-o", "json"))
        (webhook,) = found["webhooks"]
        return dict(webhook)


@pytest.fixture
def release(admin: Kubectl, tmp_path: Path) -> Iterator[Release]:
    chart = shutil.copytree(ROOT / "charts" / "halo", tmp_path / "halo", ignore=shutil.ignore_patterns("crds"))
    for template in (chart / "templates").iterdir():
        if template.name not in ("webhook.yaml", "_helpers.tpl"):
            template.unlink()
    helpers = chart / "templates" / "_helpers.tpl"
    helpers.write_text(helpers.read_text().replace('"halo.name" -}}halo-operator{{', f'"halo.name" -}}}}{NAME}{{{{'))
    yield Release(admin, chart)
    admin("delete", "validatingwebhookconfiguration", NAME, "--ignore-not-found")


def test_an_upgrade_keeps_the_ca_and_an_uninstall_keeps_nothing(release: Release) -> None:
    release.upgrade()
    assert "caBundle" not in release.webhook()["clientConfig"]
    patch = json.dumps([{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": CA}])
    release.admin("patch", "validatingwebhookconfiguration", NAME, "--type=json", "-p", patch)
    release.upgrade(timeoutSeconds=7, failurePolicy="Fail")
    webhook = release.webhook()
    assert (webhook["timeoutSeconds"], webhook["failurePolicy"]) == (7, "Fail")
    assert webhook["clientConfig"]["caBundle"] == CA
    release.helm("uninstall", NAME)
    assert "NotFound" in release.admin.refused("get", "validatingwebhookconfiguration", NAME)
