"""Renders the chart with the real helm."""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "halo"
NAMESPACE = "halo-system"
SERVER = "1.34.0"

Object = dict[str, Any]

# The definitions are long, and the loader in C reads them ten times as fast.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@functools.cache
def helm() -> str:
    """The pinned helm, built on first use."""
    done = subprocess.run([str(ROOT / "hack" / "cluster"), "build", "helm"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def run_helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm(), *arguments], capture_output=True, text=True)


def attempt(values: Object | None = None, *arguments: str, chart: Path = CHART) -> subprocess.CompletedProcess[str]:
    """Helm's answer to these values, each given as --set-json."""
    sets = [f"--set-json={key}={json.dumps(value)}" for key, value in (values or {}).items()]
    return run_helm(
        "template", "halo", str(chart), "--namespace", NAMESPACE, "--kube-version", SERVER, *sets, *arguments
    )


def render(values: Object | None = None, *arguments: str, chart: Path = CHART) -> list[Object]:
    """The objects that these values make."""
    return [item for item in yaml.load_all(rendered(json.dumps(values or {}), arguments, chart), LOADER) if item]


@functools.cache
def rendered(values: str, arguments: tuple[str, ...], chart: Path) -> str:
    """What helm prints, once for the same question."""
    done = attempt(json.loads(values), *arguments, chart=chart)
    assert done.returncode == 0, done.stderr
    return done.stdout


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """The objects of a kind by name."""
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


def the(objects: list[Object], kind: str) -> Object:
    """The one object of a kind."""
    (item,) = of_kind(objects, kind).values()
    return item
