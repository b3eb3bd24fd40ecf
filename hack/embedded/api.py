"""The few calls that the tool makes to the API server, each in milliseconds where kubectl takes a tenth of a second."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any

from .settings import Home

FIELD_MANAGER = "hack-cluster"


class ApiError(Exception):
    """An answer other than 2xx."""

    def __init__(self, status: int, body: str):
        super().__init__(f"{status}: {body[:300]}")
        self.status = status


class Api:
    """The API server of a local cluster, as its administrator."""

    def __init__(self, home: Home):
        self.port = home.port("kube-apiserver")
        self.pki = home.root / "pki"

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> str:
        context = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        context.load_cert_chain(self.pki / "admin.crt", self.pki / "admin.key")
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=10, context=context)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": content_type, "Accept": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= 300:
            raise ApiError(answer.status, text)
        return text

    def get(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.request("GET", path))
        return found

    def apply(self, path: str, manifest: dict[str, Any]) -> None:
        """Server-side apply: creates or corrects, and changes nothing that is right already."""
        query = f"?fieldManager={FIELD_MANAGER}&force=true"
        self.request("PATCH", path + query, manifest, "application/apply-patch+yaml")

    def merge(self, path: str, patch: dict[str, Any]) -> None:
        self.request("PATCH", path, patch, "application/merge-patch+json")

    def ready(self, path: str = "/readyz") -> bool:
        """Whether the path answers 2xx, for waiting on a server that is still starting."""
        try:
            self.request("GET", path)
        except (OSError, http.client.HTTPException, ApiError):
            return False
        return True
