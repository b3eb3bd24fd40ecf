"""Asks the cluster what it would say of a run, without making it: the schema, then the webhook with its checks and quote."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from halo_api.conditions import Reason
from halo_cli.kubectl import MISSING, CliError, Kubectl, Object, failure_of

RUNS = ("TrainingJob", "GrpoRun")
DENIED = re.compile(r'admission webhook "[^"]+" denied the request: ')
REASON = re.compile(r" \((\w+)\)$")
TOO_LATE = "(AlreadyExists)"


@dataclass(frozen=True)
class Said:
    """The answer: what was refused, if anything, the webhook's reason for it, and every warning."""

    warnings: tuple[str, ...] = ()
    refusal: str | None = None
    reason: str | None = None
    exists: bool = False

    @property
    def quote(self) -> list[str]:
        """The quote's lines."""
        return [w.removeprefix("quote: ") for w in self.warnings if w.startswith("quote: ")]

    @property
    def others(self) -> list[str]:
        """What else was warned of: what the run would wait for, and what would be clamped."""
        return [w for w in self.warnings if not w.startswith("quote: ")]


def runs_in(kubectl: Kubectl, file: str) -> list[Object]:
    """Return the runs of a file, a folder, a URL or `-`, as kubectl reads it; other kinds are left out."""
    # Not validated here: the server's answer to the run alone says it better.
    done = call(kubectl, ["create", "--dry-run=client", "--validate=false", "-o", "json", "-f", file])
    if done.returncode != 0:
        raise failure_of(done.stderr)
    found = [item for body in documents(done.stdout) for item in body.get("items", [body])]
    runs = [body for body in found if body.get("kind") in RUNS]
    if not runs:
        kinds = ", ".join(sorted({str(body.get("kind")) for body in found})) or "nothing"
        raise CliError(f"-f {file}: found {kinds}; name a file with a {' or a '.join(RUNS)}")
    return runs


def documents(text: str) -> list[Object]:
    """Read JSON objects that follow one another."""
    found, decoder, text = [], json.JSONDecoder(), text.strip()
    while text:
        body, end = decoder.raw_decode(text)
        found.append(body)
        text = text[end:].strip()
    return found


def ask(kubectl: Kubectl, body: Object) -> Said:
    """Return what the cluster says of one run that it would be asked to create."""
    done = call(kubectl, ["create", "--dry-run=server", "-o", "name", "-f", "-"], json.dumps(body))
    warnings, errors = split(done.stderr.splitlines())
    if done.returncode == 0:
        return Said(warnings)
    # What runs already passed these checks once: a create is asked about before its name is.
    if any(TOO_LATE in line for line in errors):
        return Said(warnings, exists=True)
    if not any("admission webhook" in line or "is invalid" in line or "strict decoding" in line for line in errors):
        raise failure_of("\n".join(errors))
    said = refused(warnings, " ".join(line.strip() for line in errors))
    # A run that is over has taken its own adapter's name; that is no refusal of it.
    if said.reason == Reason.ADAPTER_NAME_TAKEN and is_there(kubectl, body):
        return Said(warnings, exists=True)
    return said


def is_there(kubectl: Kubectl, body: Object) -> bool:
    """Whether there is a run of that kind and name."""
    done = call(kubectl, ["get", "--ignore-not-found", "-o", "name", "-f", "-"], json.dumps(body))
    return bool(done.returncode == 0 and done.stdout.strip())


def refused(warnings: tuple[str, ...], error: str) -> Said:
    """Return a refusal without kubectl's words around it."""
    denied = DENIED.search(error)
    if denied is None:
        return Said(warnings, error.removeprefix("error: "))
    words = error[denied.end() :]
    reason = REASON.search(words)
    return Said(warnings, REASON.sub("", words), reason[1] if reason else None)


def split(lines: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return the warnings, and the other lines."""
    warned = tuple(line.removeprefix("Warning: ") for line in lines if line.startswith("Warning: "))
    return warned, [line for line in lines if line.strip() and not line.startswith("Warning: ")]


def call(kubectl: Kubectl, arguments: list[str], stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(kubectl.command(*arguments), input=stdin, capture_output=True, text=True)
    except FileNotFoundError:
        raise CliError(MISSING) from None
