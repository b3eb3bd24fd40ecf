"""Python environments in the cache, one for each state of the lock files, shared by all checkouts."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import time
from pathlib import Path

from . import wheelhouse
from .common import Trouble, cache, digest, free_space, locked, need, run, say

KEPT_DAYS = 7


def environment(lock: str) -> Path:
    """The environment that holds what `requirements/<lock>.lock` pins, made when missing."""
    if sys.version_info[:2] != (3, 11):
        raise Trouble(f"python3 is {sys.version.split()[0]} and the pinned wheels are for 3.11; put that first on PATH")
    pins = sorted(set(wheelhouse.pins(wheelhouse.REQUIREMENTS / f"{lock}.lock")))
    key = digest([sys.version, sys.base_prefix, *pins])
    venv = cache() / f"venv-{key}"
    complete = venv / ".complete"
    if complete.exists():
        complete.touch()
        return venv
    with locked(f"venv-{key}"):
        if not complete.exists():
            _make(venv, lock)
            complete.touch()
    _prune(keep=venv)
    return venv


def _make(venv: Path, lock: str) -> None:
    free_space(cache(), 4, "a Python environment")
    wheels = wheelhouse.fill(lock)
    say(f"make {venv}")
    if venv.exists():
        shutil.rmtree(venv)
    if importlib.util.find_spec("ensurepip") is None:
        need(**{"python3-venv-is-missing": "python3-venv"})
    run(sys.executable, "-m", "venv", venv)
    pip = (venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "-q", "--no-index", "--find-links", wheels, "-r", wheelhouse.REQUIREMENTS / f"{lock}.lock")


def _prune(keep: Path) -> None:
    """Remove environments of lock files that nobody has asked for in a week."""
    for venv in cache().glob("venv-*/"):
        mark = venv / ".complete"
        if venv != keep and mark.exists() and time.time() - mark.stat().st_mtime > KEPT_DAYS * 86400:
            shutil.rmtree(venv)
