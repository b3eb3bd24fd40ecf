"""What a run costs: CPU and memory of each process, requests by the audit log, bytes that etcd holds."""

from __future__ import annotations

import base64
import json
import os
import ssl
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedded.settings import Home

TICKS = os.sysconf("SC_CLK_TCK")
# Renewals go on whether there are runs or not.
BACKGROUND = frozenset({"leases", "nodes"})
PRIORITY = -15
READS = frozenset({"get", "list"})


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def busy_seconds() -> float:
    """Seconds that all cores together were not idle."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS


def prefer(pid: int) -> None:
    """Put a process and its session before the machine's others; without the right to, all stay equal."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, PRIORITY)
        # Where the kernel groups processes by session, only the session's own priority counts between them.
        Path(f"/proc/{pid}/autogroup").write_text(str(PRIORITY))


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_mib(pid: int) -> float:
    """The most resident memory that the process has had."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) / 1024


@dataclass(frozen=True)
class Requests:
    """What the audit log says was asked for in the bench's namespace."""

    writes: Counter[tuple[str, str]]
    reads: Counter[tuple[str, str]]
    refused: int

    def by_client(self, runs: int) -> dict[str, float]:
        """Writes a run, by who made them."""
        totals: Counter[str] = Counter()
        for (client, _), count in self.writes.items():
            totals[client] += count
        return {client: round(count / runs, 2) for client, count in totals.most_common()}


def per_run(requests: Counter[tuple[str, str]], runs: int) -> dict[str, float]:
    """Requests a run, by client and what it asked for."""
    return {" ".join(key): round(count / runs, 2) for key, count in requests.most_common()}


class AuditLog:
    """The API server's log of every request, read from where it ended when a run began."""

    def __init__(self, path: Path, namespace: str) -> None:
        self._path = path
        self._namespace = namespace

    def end(self) -> int:
        return self._path.stat().st_size

    def since(self, start: int) -> Requests:
        writes: Counter[tuple[str, str]] = Counter()
        reads: Counter[tuple[str, str]] = Counter()
        refused = 0
        for entry in self._entries(start):
            about = entry.get("objectRef", {})
            if entry["stage"] != "ResponseComplete" or about.get("namespace") != self._namespace:
                continue
            if about["resource"] in BACKGROUND or entry["verb"] == "watch":
                continue
            what = "/".join(filter(None, (about["resource"], about.get("subresource"))))
            key = (client_of(entry), f"{entry['verb']} {what}")
            if entry["verb"] in READS:
                reads[key] += 1
            elif 200 <= entry["responseStatus"]["code"] < 300:
                writes[key] += 1
            else:
                refused += 1
        return Requests(writes, reads, refused)

    def _entries(self, start: int) -> Iterator[dict[str, Any]]:
        with self._path.open("rb") as log:
            # The size may have been taken in the middle of a line, which then is one from before.
            log.seek(max(start - 1, 0))
            if start:
                log.readline()
            for line in log:
                yield json.loads(line)


def client_of(entry: Mapping[str, Any]) -> str:
    """The last word of the user's name; the bench and kwok, both administrators, by their program."""
    user = str(entry["user"]["username"])
    if user.endswith("admin"):
        return str(entry.get("userAgent", user)).split("/")[0]
    return user.rpartition(":")[2]


def stored_bytes(home: Home, namespace: str) -> int:
    """The bytes of the values that etcd holds of the namespace: the current ones, not their history."""
    pki = home.root / "pki"
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    context.load_cert_chain(pki / "kube-apiserver.crt", pki / "kube-apiserver.key")
    first, total = b"/registry/", 0
    while True:
        query = {"key": _base64(first), "range_end": _base64(b"/registry0"), "limit": 500}
        request = urllib.request.Request(
            f"https://127.0.0.1:{home.port('etcd')}/v3/kv/range", json.dumps(query).encode()
        )
        with urllib.request.urlopen(request, context=context) as response:
            answer = json.load(response)
        pairs = answer.get("kvs", [])
        for pair in pairs:
            first = base64.b64decode(pair["key"]) + b"\0"
            if f"/{namespace}/".encode() in first:
                total += len(base64.b64decode(pair["value"]))
        if not answer.get("more"):
            return total


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
