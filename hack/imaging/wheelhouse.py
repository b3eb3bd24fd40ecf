"""The wheelhouse: every wheel that the lock files pin, fetched once by this machine's own pip with its own settings.

Image builds and virtual environments install from it, so that they need no network, certificates or pip settings of their own.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import cputorch
from .common import REPO, cache, free_space, locked, need, run, say

REQUIREMENTS = REPO / "requirements"


def folder() -> Path:
    return cache("wheels")


def fill(*locks: str) -> Path:
    """Make sure that the wheelhouse holds all pins of the named lock files; return its folder."""
    wanted = {pin for lock in locks for pin in pins(REQUIREMENTS / f"{lock}.lock")}
    return fetch(wanted)


def fetch(wanted: set[str]) -> Path:
    """Make sure that the wheelhouse holds the given pins (`name==version`); return its folder."""
    wheels = folder()
    if not _missing(wanted):
        return wheels
    if importlib.util.find_spec("pip") is None:
        need(pip3="python3-pip")
    with locked("wheelhouse"):
        for unfinished in wheels.glob(".fetch-*"):
            shutil.rmtree(unfinished)
        missing = _missing(wanted)
        torch = next((pin for pin in missing if pin.startswith("torch==")), None)
        if torch:
            free_space(wheels, 6, "the wheelhouse")
            say(f"fetch {torch}")
            cputorch.fetch(torch, wheels)
        rest = sorted(missing - {torch})
        if rest:
            say(f"fetch {len(rest)} wheels" if len(rest) > 1 else f"fetch {rest[0]}")
            with tempfile.TemporaryDirectory(dir=wheels, prefix=".fetch-") as scratch:
                run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", scratch, *rest)
                for wheel in Path(scratch).glob("*.whl"):
                    wheel.chmod(0o644)
                    wheel.rename(wheels / wheel.name)
    return wheels


def pins(lock: Path) -> Iterator[str]:
    """The pins of a lock file and of those it names with -r, as `normalised-name==version`."""
    for line in lock.read_text().splitlines():
        line = line.split("#")[0].strip()
        if line.startswith("-r "):
            yield from pins(lock.parent / line[3:].strip())
        elif line:
            name, version = line.split("==")
            yield f"{_normal(name)}=={version}"


def _missing(wanted: set[str]) -> set[str]:
    return wanted - set(_present())


def _present() -> Iterator[str]:
    for wheel in folder().glob("*.whl"):
        name, version = wheel.name.split("-")[:2]
        yield f"{_normal(name)}=={version}"
        yield f"{_normal(name)}=={version.split('+')[0]}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
