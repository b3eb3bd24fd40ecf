"""The API server over one HTTPS connection pool: for tests that ask it hundreds of times, where kubectl would be slow."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import urllib3
import yaml

Object = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class Refused(Exception):
    """The API server's answer above 399; `answer` is its Status."""

    def __init__(self, status: int, message: str, answer: Object | None = None) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.answer = answer or {}


@dataclass(frozen=True)
class Api:
    """The API server as the cluster's administrator, or as whom it impersonates."""

    url: str
    pool: urllib3.PoolManager
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def connect(cls, kubeconfig: Path) -> Api:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        paths = {}
        for key, source in (("ca", cluster), ("client-certificate", user), ("client-key", user)):
            name = "certificate-authority" if key == "ca" else key
            paths[key] = source.get(name)
            if f"{name}-data" in source:
                paths[key] = f"{kubeconfig}.{key}.pem"
                Path(paths[key]).touch(mode=0o600)
                Path(paths[key]).write_bytes(base64.b64decode(source[f"{name}-data"]))
        pool = urllib3.PoolManager(
            maxsize=16, ca_certs=paths["ca"], cert_file=paths["client-certificate"], key_file=paths["client-key"]
        )
        return cls(cluster["server"], pool)

    def as_user(self, user: str, *groups: str) -> Api:
        return replace(self, headers=(("Impersonate-User", user), *(("Impersonate-Group", group) for group in groups)))

    def request(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Object:
        headers = urllib3.HTTPHeaderDict(self.headers)
        headers.update({"Content-Type": content, "Accept": "application/json"})
        data = json.dumps(body) if body is not None else None
        answer = self.pool.request(method, self.url + path, body=data, headers=headers, retries=False, timeout=30)
        found = json.loads(answer.data) if answer.data else {}
        if answer.status >= 400:
            raise Refused(answer.status, found.get("message", ""), found)
        return found

    def get(self, path: str) -> Object | None:
        try:
            return self.request("GET", path)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def items(self, path: str) -> list[Object]:
        return self.request("GET", path)["items"]

    def post(self, path: str, body: Object) -> Object:
        return self.request("POST", path, body)

    def patch(self, path: str, body: Any, content: str = MERGE) -> Object:
        return self.request("PATCH", path, body, content)

    def delete(self, path: str, **options: Any) -> None:
        try:
            self.request("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **options})
        except Refused as refused:
            if refused.status not in (404, 409):
                raise
