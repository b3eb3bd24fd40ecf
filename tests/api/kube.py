"""kubectl and the scripts of hack/ as the tests call them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# An installation has one lease: each process of pytest-xdist has a control plane of its own.
CLUSTER = {"gw1": "api-2"}.get(os.environ.get("PYTEST_XDIST_WORKER", ""), "api")
OPERATOR_NAMESPACE = "halo-system"
OPERATOR = f"system:serviceaccount:{OPERATOR_NAMESPACE}:halo-operator"


@dataclass(frozen=True)
class Kubectl:
    """kubectl in one namespace, as the cluster's administrator or as somebody else."""

    tools: Path
    kubeconfig: Path
    namespace: str = "default"
    user: str = ""
    groups: tuple[str, ...] = ()

    def as_user(self, user: str, *groups: str) -> Kubectl:
        return Kubectl(self.tools, self.kubeconfig, self.namespace, user, groups)

    def run(self, *arguments: str, stdin: dict[str, Any] | str | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(self.tools / "kubectl"), "--kubeconfig", str(self.kubeconfig)]
        if self.namespace:
            command += ["--namespace", self.namespace]
        if self.user:
            command += ["--as", self.user, *(f"--as-group={group}" for group in self.groups)]
        text = json.dumps(stdin) if isinstance(stdin, dict) else stdin
        return subprocess.run([*command, *arguments], input=text, capture_output=True, text=True, timeout=60, cwd=ROOT)

    def __call__(self, *arguments: str, stdin: dict[str, Any] | None = None) -> str:
        """The output of a command that must succeed."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)} as {self.user or 'admin'}: {done.stderr}"
        return done.stdout.strip()

    def refused(self, *arguments: str, stdin: dict[str, Any] | None = None) -> str:
        """The error of a command that must fail."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode != 0, f"kubectl {' '.join(arguments)} as {self.user or 'admin'} succeeded: {done.stdout}"
        return done.stderr.strip()


def hack(*command: str) -> str:
    done = subprocess.run([str(ROOT / "hack" / command[0]), *command[1:]], capture_output=True, text=True)
    assert done.returncode == 0, f"hack/{' '.join(command)}: {done.stderr}"
    return done.stdout.strip()


def eventually(holds: Callable[[], bool], what: str, seconds: float = 30) -> None:
    """Wait for what the cluster's controllers do in their own time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.2)
