"""The edge to the cluster: kubectl as a subprocess, so that kubeconfig, context and login are those of the user's shell."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

Object = dict[str, Any]

MISSING = "kubectl is not on PATH; install it, or add its folder to PATH"


class CliError(Exception):
    """What was asked can't be done; the message is the one sentence that the user sees."""


class NotThere(CliError):
    """The API server has no such object."""


class Kubectl:
    """Runs kubectl in one namespace of one context; None leaves the choice to kubectl."""

    def __init__(self, namespace: str | None = None, context: str | None = None) -> None:
        self._namespace = namespace
        self._options = [
            *(["--namespace", namespace] if namespace else []),
            *(["--context", context] if context else []),
        ]

    def command(self, *arguments: str) -> list[str]:
        """Return the whole command line."""
        return ["kubectl", *self._options, *arguments]

    def get(self, *arguments: str) -> Object:
        """Return what `kubectl get … -o json` prints."""
        try:
            done = subprocess.run(self.command("get", *arguments, "-o", "json"), capture_output=True, text=True)
        except FileNotFoundError:
            raise CliError(MISSING) from None
        if done.returncode != 0:
            raise failure_of(done.stderr)
        found: Object = json.loads(done.stdout)
        return found

    def absent(self, kind: str, name: str, plural: str) -> CliError:
        """Return what to say of an object that is not there: where it was looked for, and how to see what is."""
        return CliError(f"there is no {kind} {name} in namespace {self.namespace()}; see kubectl get {plural}")

    def namespace(self) -> str:
        """Return the namespace that is meant: the one given, or else the context's."""
        if self._namespace:
            return self._namespace
        try:
            view = self.command("config", "view", "--minify", "--output=jsonpath={..namespace}")
            found = subprocess.run(view, capture_output=True, text=True)
        except FileNotFoundError:
            raise CliError(MISSING) from None
        return found.stdout.strip() or "default"

    def watch(self, *arguments: str) -> Iterator[Object]:
        """Yield the watch events of one watch; the API server ends each after a while, the caller starts the next."""
        command = self.command("get", *arguments, "--watch", "--output-watch-events", "-o", "json")
        with tempfile.TemporaryFile("w+") as errors:
            try:
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            except FileNotFoundError:
                raise CliError(MISSING) from None
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    yield json.loads(line)
                if process.wait() != 0:
                    errors.seek(0)
                    raise failure_of(errors.read())
            finally:
                process.kill()
                process.wait()
                process.stdout.close()

    def show(self, *arguments: str) -> int:
        """Run kubectl on this terminal; return its exit code."""
        try:
            return subprocess.call(self.command(*arguments))
        except FileNotFoundError:
            raise CliError(MISSING) from None


def failure_of(stderr: str) -> CliError:
    """Return what kubectl's complaint means: its last line, which names the cause."""
    lines: Sequence[str] = [line for line in stderr.strip().splitlines() if line.strip()] or ["kubectl failed"]
    kind = NotThere if "(NotFound)" in stderr else CliError
    return kind(lines[-1].strip())
