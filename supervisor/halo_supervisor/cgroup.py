"""Whether the kernel killed for want of memory: the counters of this container's memory cgroup, version 1 or 2."""

from __future__ import annotations

from pathlib import Path


def oom_kills(cgroups: Path, membership: Path = Path("/proc/self/cgroup")) -> int:
    """Return how many processes of this cgroup the kernel has killed for memory; 0 where nothing counts them."""
    return max((_counter(file, "oom_kill") for file in _counter_files(cgroups, membership)), default=0)


def _counter_files(cgroups: Path, membership: Path) -> list[Path]:
    """Return the counter files, most specific first.

    A container usually sees its own cgroup as the root of the mount; outside one (or with the host's namespace) the
    path in /proc/self/cgroup leads to it.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    files = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files += [cgroups / path.lstrip("/") / "memory.events", cgroups / "memory.events"]
        elif "memory" in controllers.split(","):
            files += [
                cgroups / "memory" / path.lstrip("/") / "memory.oom_control",
                cgroups / "memory" / "memory.oom_control",
            ]
    return files


def _counter(file: Path, name: str) -> int:
    try:
        words = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return 0
    return next((int(word[1]) for word in words if len(word) == 2 and word[0] == name), 0)
