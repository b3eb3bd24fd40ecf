"""What the API server was asked, read from its audit log."""

from __future__ import annotations

import json
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
        size = self._path.stat().st_size
        # The size may have been taken in the middle of a line, which then is one from before.
        self._read, self._begun = max(size - 1, 0), size == 0
        self._found: list[Entry] = []

    def entries(self) -> list[Entry]:
        """All of them; each line is read once, however often one asks."""
        with self._path.open("rb") as log:
            log.seek(self._read)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                if self._begun:
                    self._found.append(entry_of(json.loads(line)))
                self._begun = True
        return list(self._found)


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
