"""The processes of the embedded cluster's pods, which are this machine's own: to stop one as a bug would, and to see all gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# What pods get of a busy machine, where everything else has 1: eight trainers on two cores start within their budget.
SHARE = 8
CGROUPS = Path("/sys/fs/cgroup")


def of_pod(uid: str) -> Iterator[tuple[int, str]]:
    """Yield the processes of a pod, each with its command line; kubelet names their cgroup after the pod's uid."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            # systemd's driver writes the uid with underscores.
            if f"pod{uid}" in (entry / "cgroup").read_text().replace("_", "-"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if command:
                    yield int(entry.name), command


def hang(uid: str) -> list[int]:
    """Stop the trainer in a pod where it is, as one that hangs: it gets no signal any more but SIGKILL. Its supervisor goes on."""
    found = [pid for pid, command in of_pod(uid) if "halo_trainer" in command]
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    return found


def kill(uid: str) -> int:
    """End all processes of a pod at once; return how many there still were."""
    found = [pid for pid, _ in of_pod(uid)]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(found)


@contextmanager
def preferred() -> Iterator[None]:
    """Put all pods together before the machine's other processes, until it is left."""
    found = [*CGROUPS.glob("cpu*/kubepods*/cpu.shares"), *CGROUPS.glob("kubepods*/cpu.weight")]
    before = {file: file.read_text() for file in found}
    try:
        for file in found:
            file.write_text(str((1024 if file.name == "cpu.shares" else 100) * SHARE))
        yield
    finally:
        for file, usual in before.items():
            file.write_text(usual)
