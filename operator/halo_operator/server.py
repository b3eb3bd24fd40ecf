"""The HTTPS server that takes the pods' reports, and the plain one for health and metrics."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
import tempfile
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client import generate_latest
from pydantic import ValidationError

from halo_api.report import Answer, Report
from halo_api.run_file import REPORT_AUDIENCE
from halo_operator.certificates import Certificates, issue
from halo_operator.cluster import AlreadyExists, Cluster, ClusterError, Object
from halo_operator.plan.names import ATTEMPT_LABEL, OWNER_ANNOTATION, RANK_LABEL, RUN_LABEL
from halo_operator.queue import Key
from halo_operator.reports import Reports
from halo_operator.settings import Settings

log = logging.getLogger(__name__)

SECRET = "halo-operator-tls"  # noqa: S105
LARGEST_REPORT = 256 * 1024
TOKEN_SECONDS = 300.0
RENEW_SECONDS = 86400.0
REMEMBERED_TOKENS = 10_000


class ReportServer:
    """Knows who pushes by the pod's own token, and believes the body only about that pod's run."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        reports: Reports,
        add: Callable[[Key], None],
        leading: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._reports = reports
        self._add = add
        self._leading = leading
        self._tokens: dict[str, tuple[float, Object]] = {}
        self._certificates: Certificates | None = None

    @property
    def ca_bundle(self) -> str:
        """The CA that pods must trust."""
        return self._certificates.ca if self._certificates else ""

    async def prepare(self) -> ssl.SSLContext:
        """Return the server's TLS context with the installation's certificates."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        load_into(context, await self._read_or_make())
        return context

    async def renew(self, context: ssl.SSLContext) -> None:
        """Keep the certificates of a serving context young, for ever: an operator may run for longer than one lasts."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                load_into(context, await self._read_or_make())
            except (ClusterError, ValueError, OSError) as error:
                log.warning("certificates not renewed, trying again tomorrow: %s", error)

    async def _read_or_make(self) -> Certificates:
        """Read the installation's certificates, or make them; of two replicas that try, one wins and the other reads."""
        namespace = self._settings.namespace
        for _ in range(5):
            secret = await self._cluster.get("Secret", namespace, SECRET)
            old = certificates_of(secret) if secret else None
            new = issue(self._settings.report_host, datetime.now(UTC), old)
            try:
                if secret is None:
                    await self._cluster.create(secret_of(new, namespace))
                elif new != old:
                    await self._cluster.replace(secret_of(new, namespace, secret["metadata"]["resourceVersion"]))
            except (AlreadyExists, ClusterError) as error:
                log.info("certificates: %s; reading again", error)
                continue
            self._certificates = new
            return new
        raise ClusterError(0, f"Secret {namespace}/{SECRET} could neither be read nor written")

    def application(self) -> web.Application:
        """Return the HTTPS application."""
        app = web.Application(client_max_size=LARGEST_REPORT)
        app.router.add_post("/v1/reports", self.take)
        return app

    async def take(self, request: web.Request) -> web.Response:
        """Take one report: 503 from a standby, 401 for no pod's token, 403 for no run's pod, 410 for a run that has gone on."""
        if not self._leading():
            return web.Response(status=503, text="not the leader; try again", headers={"Retry-After": "1"})
        try:
            report = Report.model_validate_json(await request.read())
        except ValidationError as error:
            return web.Response(status=400, text=f"not a report: {error.errors()[0]['msg']}")
        try:
            pod = await self._pod_of(request.headers.get("Authorization", ""))
        except ClusterError as error:
            return web.Response(status=503, text=str(error))
        if pod is None:
            return web.Response(status=401, text="the token is not a pod's report token")
        labels = pod["labels"]
        if (
            labels.get(RUN_LABEL) != report.run_uid
            or labels.get(ATTEMPT_LABEL) != str(report.attempt)
            or not pod["owner"]
        ):
            return web.Response(status=403, text="the report is about another run or attempt than the pod's")
        if self._reports.is_stale(report):
            return web.Response(status=410, text="the report is about an attempt that is over")
        if labels.get(RANK_LABEL) != "0":
            # The first pod speaks for the run; the others' outcomes are in their termination messages.
            return answered(Answer(acknowledged=True))
        if self._reports.put(report) or not self._reports.acknowledged(report):
            self._add(pod["owner"])
        return answered(
            Answer(acknowledged=self._reports.acknowledged(report), saved_step=self._reports.saved_step(report.run_uid))
        )

    async def _pod_of(self, authorization: str) -> Object | None:
        token = authorization.removeprefix("Bearer ").strip()
        if not token:
            return None
        digest = hashlib.sha256(token.encode()).hexdigest()
        known = self._tokens.get(digest)
        if known and time.monotonic() - known[0] < TOKEN_SECONDS:
            return known[1]
        pod = await self._review(token)
        if pod is not None:
            if len(self._tokens) >= REMEMBERED_TOKENS:
                self._tokens.clear()
            self._tokens[digest] = (time.monotonic(), pod)
        return pod

    async def _review(self, token: str) -> Object | None:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "metadata": {},
            "spec": {"token": token, "audiences": [REPORT_AUDIENCE]},
        }
        status = (await self._cluster.ask(body)).get("status", {})
        if not status.get("authenticated") or REPORT_AUDIENCE not in status.get("audiences", []):
            return None
        user = status.get("user", {})
        extra = user.get("extra", {})
        name = next(iter(extra.get("authentication.kubernetes.io/pod-name", [])), None)
        uid = next(iter(extra.get("authentication.kubernetes.io/pod-uid", [])), None)
        parts = user.get("username", "").split(":")
        if name is None or len(parts) != 4:
            return None
        pod = await self._cluster.get("Pod", parts[2], name)
        if pod is None or pod["metadata"]["uid"] != uid:
            return None
        meta = pod["metadata"]
        kind, _, owner = meta.get("annotations", {}).get(OWNER_ANNOTATION, "").partition("/")
        return {"labels": meta.get("labels", {}), "owner": Key(kind, parts[2], owner) if owner else None}


def answered(answer: Answer) -> web.Response:
    """Return the answer to a push that was taken."""
    return web.Response(text=answer.model_dump_json(by_alias=True, exclude_none=True), content_type="application/json")


def health_application(alive: Callable[[], str | None]) -> web.Application:
    """Return the plain application: /healthz and /readyz answer 503 with why when `alive` returns a reason."""

    async def health(_: web.Request) -> web.Response:
        problem = alive()
        return web.Response(status=503 if problem else 200, text=problem or "ok")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), content_type="text/plain")

    app = web.Application()
    app.router.add_get("/healthz", health)
    app.router.add_get("/readyz", health)
    app.router.add_get("/metrics", metrics)
    return app


def certificates_of(secret: Object) -> Certificates | None:
    """Return the certificates in the Secret, or None when it does not hold them."""
    data: dict[str, Any] = secret.get("data") or {}
    try:
        found = [b64decode(data[key]).decode() for key in ("ca.crt", "ca.key", "tls.crt", "tls.key")]
    except (KeyError, ValueError):
        return None
    return Certificates(*found)


def secret_of(certificates: Certificates, namespace: str, resource_version: str | None = None) -> Object:
    """Return the Secret that holds the certificates."""
    texts = {
        "ca.crt": certificates.ca,
        "ca.key": certificates.ca_key,
        "tls.crt": certificates.leaf,
        "tls.key": certificates.leaf_key,
    }
    meta: Object = {"name": SECRET, "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": "halo"}}
    if resource_version:
        meta["resourceVersion"] = resource_version
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": meta,
        "data": {key: b64encode(text.encode()).decode() for key, text in texts.items()},
    }


def load_into(context: ssl.SSLContext, certificates: Certificates) -> None:
    """Have new connections see these certificates; the files they are loaded from exist only for that."""
    with tempfile.TemporaryDirectory() as folder:
        leaf, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        leaf.write_text(certificates.leaf)
        key.touch(mode=0o600)
        key.write_text(certificates.leaf_key)
        context.load_cert_chain(leaf, key)
