"""Places, messages, hashes, locks and commands, as every module here needs them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
STARTED = time.monotonic()


class Trouble(Exception):
    """A missing prerequisite or a failed step, as one sentence with its cure."""


def cache(*parts: str) -> Path:
    """A folder of the cache that all checkouts on this machine share, made when missing."""
    base = os.environ.get("HALO_CACHE")
    root = Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halo"
    folder = root.joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def say(message: str) -> None:
    print(f"[{time.monotonic() - STARTED:5.1f}s] {message}", file=sys.stderr, flush=True)


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """Run a command, return what it printed; when it fails, show the end of its output as the reason."""
    words = [str(word) for word in command]
    environment = {**os.environ, **(env or {})}
    done = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
        raise Trouble(f"`{' '.join(words)[:200]}` failed with exit status {done.returncode}:\n{tail}")
    return done.stdout


def answers(*command: str | Path) -> bool:
    """Whether a command exists and succeeds."""
    words = [str(word) for word in command]
    try:
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def need(**program_packages: str) -> None:
    """Install the Debian packages of the programs that are missing."""
    missing = [package for program, package in program_packages.items() if shutil.which(program) is None]
    if not missing:
        return
    wish = " ".join(missing)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Trouble(f"{wish} is missing; `sudo apt-get install {wish}` brings it, then run this again")
    say(f"install {wish}")
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", "-qq", env=env)
    run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing, env=env)


def free_space(folder: Path, gigabytes: float, purpose: str) -> None:
    """Refuse before a disk fills: a full disk breaks the cluster as well."""
    free = shutil.disk_usage(folder).free / 1e9
    if free < gigabytes:
        raise Trouble(
            f"{purpose} needs {gigabytes:g} GB in {folder} and {free:.1f} GB are free; make room, run this again"
        )


def remove(folder: Path) -> None:
    """Remove a folder, having unmounted what a killed image build left mounted in it."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in sorted((m for m in mounts if Path(m).is_relative_to(folder)), reverse=True):
        run("umount", mount)
    shutil.rmtree(folder)


def digest(parts: Iterable[str | bytes | Path]) -> str:
    """A short hash of texts and of files or folders (names, modes and contents, not times)."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            for file in _files(part):
                total.update(f"{file.relative_to(part)} {file.stat().st_mode & 0o111:o}\0".encode())
                total.update(hashlib.sha256(file.read_bytes()).digest())
        else:
            data = part.encode() if isinstance(part, str) else part
            total.update(hashlib.sha256(data).digest())
    return total.hexdigest()[:16]


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (f for f in sorted(path.rglob("*")) if f.is_file() and "__pycache__" not in f.parts)
    else:
        yield path


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time does the named thing; the others wait and find it done."""
    with (cache() / f".{name}.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is at the {name}, waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def guarded(main: Callable[[], int]) -> None:
    """Run a tool's main function; trouble is a sentence, not a traceback."""
    try:
        sys.exit(main())
    except Trouble as trouble:
        sys.exit(f"{Path(sys.argv[0]).name}: {trouble}")
    except KeyboardInterrupt:
        sys.exit(130)
