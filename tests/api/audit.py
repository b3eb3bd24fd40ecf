"""What the API server was asked, read from its audit log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READS = ("get", "list", "watch")


@dataclass(frozen=True)
class Entry:
    """One request that was answered."""

    at: str
    user: str
    verb: str
    resource: str
    namespace: str
    name: str
    code: int
    uri: str
    allowed: bool

    @property
    def is_write(self) -> bool:
        return self.verb not in READS

    @property
    def stored(self) -> bool:
        """Whether it changed something: reviews of tokens are answered and forgotten."""
        return self.is_write and self.code < 300 and self.resource != "tokenreviews"

    def __str__(self) -> str:
        return f"{self.at} {self.user.rsplit(':', 1)[-1]} {self.verb} {self.resource} {self.namespace}/{self.name} {self.code}"


class AuditLog:
    """The log from the moment this was made."""

    def __init__(self, kubeconfig: Path) -> None:
        self._path = kubeconfig.parent / "log" / "audit.log"
        self._start = self._path.stat().st_size

    def entries(self) -> Iterator[Entry]:
        with self._path.open("rb") as log:
            # The size may have been taken in the middle of a line, which then is one from before.
            log.seek(max(self._start - 1, 0))
            if self._start:
                log.readline()
            for line in log:
                if line.endswith(b"\n"):
                    yield entry_of(json.loads(line))


def entry_of(line: dict[str, Any]) -> Entry:
    what = line.get("objectRef", {})
    resource = "/".join(filter(None, (what.get("resource"), what.get("subresource"))))
    user = (line.get("impersonatedUser") or line["user"]).get("username", "")
    return Entry(
        line["requestReceivedTimestamp"],
        user,
        line["verb"],
        resource,
        what.get("namespace", ""),
        what.get("name", ""),
        line.get("responseStatus", {}).get("code", 0),
        line["requestURI"],
        line.get("annotations", {}).get("authorization.k8s.io/decision") != "forbid",
    )
