"""The cluster's processes: they outlive the shell, and are restarted when what they read has changed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .settings import Problem, write

# A component speaks to this machine only; a proxy meant for the outside would swallow that.
PROXIES = frozenset(("http_proxy", "https_proxy", "all_proxy"))


@dataclass(frozen=True)
class Process:
    """What one component is run as; `files` are those it reads at its start only."""

    name: str
    argv: tuple[str, ...]
    files: tuple[Path, ...] = ()
    uses_proxy: bool = False

    @property
    def digest(self) -> str:
        told = hashlib.sha256("\0".join(self.argv).encode())
        for file in self.files:
            told.update(b"\0" + file.read_bytes())
        return told.hexdigest()


class Processes:
    """One cluster's processes, each recorded by pid, start time and boot: a reused pid is never taken for ours."""

    def __init__(self, root: Path):
        self.root = root
        self.logs = root / "log"
        self.records = root / "pid"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def pid(self, name: str) -> int | None:
        record = self._record(name)
        if record is None or record.get("boot") != _boot() or _started(record["pid"]) != record["started"]:
            return None
        return int(str(record["pid"]))

    def alive(self) -> list[str]:
        names = sorted(path.stem for path in self.records.glob("*.json"))
        return [name for name in names if self.pid(name) is not None]

    def as_wished(self, process: Process) -> bool:
        record = self._record(process.name)
        return self.pid(process.name) is not None and record is not None and record["digest"] == process.digest

    def ensure(self, process: Process) -> bool:
        """Start it, or restart it if it runs as something else; False when nothing was to do."""
        if self.as_wished(process):
            return False
        # An API server with open watches would take its whole minute; nothing here is worth waiting for that.
        self.stop(process.name, grace=3)
        self._start(process)
        return True

    def _start(self, process: Process) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.log(process.name)
        if log.exists() and log.stat().st_size:
            log.replace(log.with_suffix(".previous.log"))
        env = {k: v for k, v in os.environ.items() if process.uses_proxy or k.lower() not in PROXIES}
        with log.open("ab") as output:
            child = subprocess.Popen(
                process.argv,
                cwd=self.root,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        record = {"pid": child.pid, "started": _started(child.pid), "boot": _boot(), "digest": process.digest}
        write(self.records / f"{process.name}.json", json.dumps(record))

    def stop(self, *names: str, grace: float = 10) -> None:
        """End them together: TERM, then after the grace KILL."""
        ending = {name: pid for name in names if (pid := self.pid(name)) is not None}
        for pid in ending.values():
            _signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while (left := [n for n in ending if self.pid(n) is not None]) and time.monotonic() < deadline:
            time.sleep(0.02)
        for name in left:
            _signal(ending[name], signal.SIGKILL)
        while any(self.pid(name) is not None for name in left):
            time.sleep(0.02)
        for name in names:
            (self.records / f"{name}.json").unlink(missing_ok=True)

    def wait(self, name: str, ready: Callable[[], bool], seconds: float = 120, what: str = "ready") -> None:
        """Until it is ready; one that ended meanwhile, or never got there, is a problem that shows its last words."""
        deadline = time.monotonic() + seconds
        while not ready():
            if self.pid(name) is None:
                raise Problem(f"{name} ended while starting; {self._last_words(name)}")
            if time.monotonic() > deadline:
                raise Problem(f"{name} was not {what} within {seconds:.0f} s; {self._last_words(name)}")
            time.sleep(0.05)

    def _last_words(self, name: str) -> str:
        log = self.log(name)
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return f"see {log}, whose last line is: {lines[-1][:400] if lines else '(none)'}"

    def _record(self, name: str) -> dict[str, object] | None:
        try:
            record: dict[str, object] = json.loads((self.records / f"{name}.json").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return record


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _started(pid: object) -> str | None:
    """The start time that with the pid names a process for good; None for one that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
