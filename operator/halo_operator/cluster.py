"""The edge to the API server: a few verbs on plain dicts; the only file that imports the Kubernetes client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio import client, config

from halo_api import API_VERSION
from halo_operator.clock import ServerClock

Object = dict[str, Any]

FIELD_MANAGER = "halo-operator"
TIMEOUT_SECONDS = 20.0
# What we write we know: an answer with the metadata alone spares the API server, and us, the rest of it.
BRIEFLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
LISTED_BRIEFLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

# kind → (apiVersion, plural)
RESOURCES = {
    "TrainingJob": (API_VERSION, "trainingjobs"),
    "GrpoRun": (API_VERSION, "grporuns"),
    "Dataset": (API_VERSION, "datasets"),
    "Adapter": (API_VERSION, "adapters"),
    "Environment": (API_VERSION, "environments"),
    "Criterion": (API_VERSION, "criteria"),
    "ModelAlias": (API_VERSION, "modelaliases"),
    "Workspace": (API_VERSION, "workspaces"),
    "LedgerPage": (API_VERSION, "ledgerpages"),
    "Recipe": (API_VERSION, "recipes"),
    "BaseModel": (API_VERSION, "basemodels"),
    "GpuClass": (API_VERSION, "gpuclasses"),
    "Pod": ("v1", "pods"),
    "Service": ("v1", "services"),
    "Secret": ("v1", "secrets"),
    "ConfigMap": ("v1", "configmaps"),
    "Event": ("events.k8s.io/v1", "events"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    "ValidatingWebhookConfiguration": ("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations"),
    "TokenReview": ("authentication.k8s.io/v1", "tokenreviews"),
}


class ClusterError(Exception):
    """The API server did not do what was asked; try later."""

    def __init__(self, status: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NotFound(ClusterError):
    """404: the object, or its namespace, is not there."""


class Conflict(ClusterError):
    """409: somebody else wrote first; gather again."""


class AlreadyExists(Conflict):
    """409 on a create: the name is taken."""


class Rejected(ClusterError):
    """400, 403 or 422: the server will say the same again until something changes."""


class Unreachable(ClusterError):
    """No answer, or 429 and 5xx: try later."""


ERRORS: dict[int, type[ClusterError]] = {404: NotFound, 409: Conflict, 400: Rejected, 403: Rejected, 422: Rejected}


def error_of(status: int, body: bytes) -> ClusterError:
    """Return the exception for an answer of the API server: the one table of what its codes mean to us."""
    try:
        answer = json.loads(body)
        message, reason = str(answer.get("message", "")), str(answer.get("reason", ""))
    except (ValueError, AttributeError):
        message, reason = body.decode(errors="replace")[:500], ""
    if status == 409 and reason == "AlreadyExists":
        return AlreadyExists(status, message, reason)
    return ERRORS.get(status, Unreachable)(status, message or f"HTTP {status}", reason)


def expected(error: Exception) -> str | None:
    """Return a line for errors that are part of life with an API server, so that they are logged without a traceback."""
    return f"{type(error).__name__}: {error}" if isinstance(error, ClusterError) else None


class Cluster:
    """One connection pool to one API server. Every call raises ClusterError, never the client's own exceptions."""

    def __init__(self, api: client.ApiClient, clock: ServerClock | None = None) -> None:
        self._api = api
        self.clock = clock or ServerClock()
        self.fence: Callable[[], bool] = lambda: True

    @property
    def clock_error(self) -> float:
        """By how many seconds this machine's clock is behind the API server's."""
        return self.clock.error

    @classmethod
    async def connect(cls, pool: int = 64) -> Cluster:
        """Log in as the pod's ServiceAccount, else by the kubeconfig in force."""
        settings = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=settings)
        except config.ConfigException:
            await config.load_kube_config(client_configuration=settings)
        settings.connection_pool_maxsize = pool
        # Retrying is the work queue's business: a hidden retry would repeat a POST or hide a slow server.
        settings.retries = False
        # Else every request asks a thread for the environment's proxy, and another one for ~/.netrc.
        settings.client_session_kwargs = {"trust_env": False}
        return cls(client.ApiClient(settings))

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def get(self, kind: str, namespace: str | None, name: str, *, fresh: bool = True) -> Object | None:
        """Return the object, or None when it is not there; not `fresh`: as the API server's cache has it, moments old."""
        query = {} if fresh else {"resourceVersion": "0"}
        try:
            return await self._request("GET", path_of(kind, namespace, name), query)
        except NotFound:
            return None

    async def list_all(self, kind: str, namespace: str | None = None, *, labels: str = "") -> list[Object]:
        """Return the objects, fresh from etcd, with kind and apiVersion filled in."""
        query = {"labelSelector": labels} if labels else {}
        answer = await self._request("GET", path_of(kind, namespace), query)
        version = RESOURCES[kind][0]
        return [{"apiVersion": version, "kind": kind} | item for item in answer.get("items", [])]

    async def list_meta(self, kind: str, namespace: str | None = None) -> list[Object]:
        """Return the objects, fresh from etcd, with nothing but apiVersion, kind and metadata."""
        answer = await self._request("GET", path_of(kind, namespace), accept=LISTED_BRIEFLY)
        # Where there are none, the API server answers with null for the list.
        return [
            {"apiVersion": RESOURCES[kind][0], "kind": kind, "metadata": item["metadata"]}
            for item in answer.get("items") or []
        ]

    async def create(self, body: Object) -> None:
        """Make an object; raises AlreadyExists when the name is taken."""
        await self._write("POST", path_of(body["kind"], body["metadata"].get("namespace")), body)

    async def ask(self, review: Object) -> Object:
        """POST a review, which is answered and never stored."""
        return await self._request("POST", path_of(review["kind"]), {}, review)

    async def write_status(self, body: Object, status: Object) -> Object:
        """Replace the whole status of the object as it was read and return its metadata; raises Conflict if somebody wrote it since.

        A PUT, since nobody else writes a status of ours: server-side apply would merge fields for nobody.
        """
        meta = body["metadata"]
        path = path_of(body["kind"], meta["namespace"], meta["name"], "status")
        return await self._write("PUT", path, body | {"status": status})

    async def patch(self, kind: str, namespace: str, name: str, operations: list[Object]) -> Object:
        """JSON patch, and return the new metadata; `test` operations make it conditional."""
        return await self._write("PATCH", path_of(kind, namespace, name), operations, "application/json-patch+json")

    async def replace(self, body: Object) -> None:
        """PUT an object; its resourceVersion makes it conditional."""
        meta = body["metadata"]
        await self._write("PUT", path_of(body["kind"], meta.get("namespace"), meta["name"]), body)

    async def delete(self, kind: str, namespace: str, name: str, uid: str, grace: int | None = None) -> None:
        """Delete exactly the object of that uid; one that is gone, or was replaced, is left alone."""
        body: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            await self._request("DELETE", path_of(kind, namespace, name), {}, body)
        except (NotFound, Conflict):
            return

    async def raw(self, path: str) -> Object:
        """GET a path of the API server, for discovery."""
        return await self._request("GET", path)

    async def _write(self, method: str, path: str, body: Any, content: str = "application/json") -> Object:
        answer = await self._request(method, path, {"fieldManager": FIELD_MANAGER}, body, content, BRIEFLY)
        return dict(answer.get("metadata", {}))

    async def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Any = None,
        content: str = "application/json",
        accept: str = "application/json",
    ) -> Object:
        if method != "GET" and not self.fence() and "/leases" not in path:
            raise Unreachable(0, f"{method} {path}: this replica does not lead any more")
        settings = self._api.configuration
        headers = {"Accept": accept, "Content-Type": content, "User-Agent": FIELD_MANAGER}
        if token := await settings.get_api_key_with_prefix("BearerToken", alias="authorization"):
            headers["Authorization"] = token
        url = settings.host + path + (f"?{urlencode(query)}" if query else "")
        asked = self.clock.asking()
        try:
            response = await self._api.call_api(method, url, headers, body, _request_timeout=TIMEOUT_SECONDS)
            self.clock.answered(asked, response.headers.get("Date"))
            data = await response.read()
        except client.ApiException as error:
            raise error_of(
                error.status or 0, (error.body or "").encode() if isinstance(error.body, str) else error.body or b""
            ) from None
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unreachable(0, f"{method} {path}: {type(error).__name__} {error}") from None
        if response.status >= 400:
            raise error_of(response.status, data)
        return json.loads(data) if data else {}


def path_of(kind: str, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
    """Return the API path of a kind, a namespace of it, or one object."""
    version, plural = RESOURCES[kind]
    parts = ["api" if "/" not in version else "apis", version]
    if namespace:
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(plural)
    parts += [quote(part, safe="") for part in (name, subresource) if part]
    return "/" + "/".join(parts)
