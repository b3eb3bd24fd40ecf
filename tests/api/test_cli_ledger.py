"""kubectl halo ledger as a process against a real API server, with a book as the operator writes it."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.kube import ROOT
from tests.api.stage import Stage
from tests.unit import builders_ledger as made
from tests.unit.builders_ledger import Body

pytestmark = pytest.mark.api

PAGES = made.pages([made.usd(1), made.judged(2)], [made.usd(3)])
SHARE = {"granted": "1200", "held": "0", "spent": "0.111112", "balance": "1199.888888"}


class Halo:
    """The command as somebody types it who is the administrator, or whom the administrator impersonates."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self._stage, self._folder = stage, folder

    def __call__(self, *arguments: str, user: str = "") -> subprocess.CompletedProcess[str]:
        kubectl = self._stage.kubectl
        config: dict[str, Any] = yaml.safe_load(kubectl.kubeconfig.read_text())
        if user:
            config["users"][0]["user"]["as"] = user
        # Beside the administrator's own: its paths may be relative.
        file = kubectl.kubeconfig.with_name(f"{self._stage.namespace}{user}.kubeconfig")
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump(config))
        environment = os.environ | {
            "PATH": f"{kubectl.tools}:{os.environ['PATH']}", "KUBECONFIG": str(file), "PYTHONPATH": str(ROOT / "operator"), "LC_ALL": "C",
        }  # fmt: skip
        command = [sys.executable, "-m", "halo_cli", "ledger", *arguments, "-n", self._stage.namespace]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, timeout=60)
        finally:
            file.unlink()
        return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def halo(stage: Stage, tmp_path: Path) -> Halo:
    return Halo(stage, tmp_path)


def write(stage: Stage, pages: list[Body], **status: Any) -> None:
    """Make the pages and the Workspace, whose status is a subresource."""
    for page in pages:
        stage.api.post(stage.path("ledgerpages"), page)
    body = made.workspace(pages, [made.hours(4)], {"uid-9": made.hold("uid-9")}, allocation=SHARE, **status)
    stage.api.post(
        stage.path("workspaces"),
        {key: body[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "workspace"}},
    )
    stage.api.patch(stage.path("workspaces", "workspace") + "/status", {"status": body["status"]})


def test_a_book_is_listed_and_adds_up_as_it_is_stored(stage: Stage, halo: Halo) -> None:
    write(stage, PAGES, held="12.5", balance="469.499166")
    check = halo("--check")
    assert (check.returncode, check.stdout, check.stderr) == (0, "adds up: 4 entries, 2 pages and 1 open hold\n", "")
    listed = halo()
    assert listed.returncode == 0
    assert listed.stdout.splitlines()[-2:] == [
        "USD: 3 entries, charged 18.000834 of 18.250834 used, overrun 0.25 not charged; 1 open hold of 12.5",
        "H100Hours: 1 entry, charged 0.111112 of 0.111112 used",
    ]
    november = halo("--csv", "--since", "2026-11-01", "--until", "2026-12-01").stdout
    assert november.count("\r\n") == november.count("\n") == 4
    rows = list(csv.DictReader(io.StringIO(november, newline="")))
    assert [(row["sequence"], row["namespace"], row["charged"]) for row in rows] == [
        ("1", stage.namespace, "7.000417"), ("2", stage.namespace, "4"), ("3", stage.namespace, "7.000417"),
    ]  # fmt: skip
    found = json.loads(halo("--json").stdout)
    assert found["workspaceUid"] == stage.run("workspace", "workspaces")["metadata"]["uid"]
    stored = stage.run("page-000000002", "ledgerpages")["spec"]["entries"]
    assert [{k: v for k, v in e.items() if k != "page"} for e in found["entries"] if e["page"] == 2] == stored


def test_what_is_wrong_is_named_and_a_deleted_workspace_leaves_its_pages(stage: Stage, halo: Halo) -> None:
    wrong = made.pages([made.usd(1, gpuSeconds="8400.6")])
    write(stage, wrong, held="12", balance="480.499583")
    said = halo("--check")
    assert said.returncode == 1
    assert said.stdout.splitlines() == [
        "status.settled, entry 4: found sequence 4, expected 2: an entry is missing or there twice",
        "page 1, entry 1 (run-1): found used 7.000417, computed 7.0005 USD",
        "Workspace status: found held 12, computed 12.5",
    ]
    warned = halo("--csv")
    assert (warned.returncode, len(warned.stderr.splitlines())) == (1, 3)
    assert all(line.startswith("does not add up: ") for line in warned.stderr.splitlines())
    stage.api.delete(stage.path("workspaces", "workspace"))
    stage.until(lambda: stage.api.get(stage.path("workspaces", "workspace")) is None, "the Workspace is gone")
    left = halo("--check")
    assert left.stdout.splitlines() == ["page 1, entry 1 (run-1): found used 7.000417, computed 7.0005 USD"]


def test_nothing_and_no_right_are_one_sentence_each(stage: Stage, halo: Halo) -> None:
    none = halo()
    assert (none.returncode, none.stdout) == (0, "")
    assert (
        none.stderr == f"namespace {stage.namespace} has no Workspace and no ledger: nothing is held or charged here\n"
    )
    stage.kubectl("create", "rolebinding", "reader", "--clusterrole=view", "--user=vera")
    assert halo(user="vera").stderr == none.stderr
    refused = halo(user="eve")
    assert refused.returncode == 1
    assert refused.stderr.startswith(
        'kubectl halo: Error from server (Forbidden): workspaces.halo.training "workspace" is forbidden: User "eve"'
    )
    assert len(refused.stderr.splitlines()) == 1
