"""The HTTPS server that takes the pods' reports and answers the webhook, and the plain one for health and metrics."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client import generate_latest
from pydantic import ValidationError

from halo_api.report import Answer, Report
from halo_api.run_file import REPORT_AUDIENCE
from halo_operator.cluster import Cluster, ClusterError, Object
from halo_operator.plan.names import ATTEMPT_LABEL, OWNER_ANNOTATION, RANK_LABEL, ROLE_LABEL, RUN_LABEL
from halo_operator.queue import Key
from halo_operator.reports import Reports

LARGEST_REPORT = 256 * 1024
# The object and the one before it, each as large as etcd takes them.
LARGEST_REVIEW = 4 * 1024 * 1024
TOKEN_SECONDS = 300.0
REMEMBERED_TOKENS = 10_000
# Whose pods push: those with GPUs.
REPORTING_ROLES = ("trainer", "rollout")


class ReportServer:
    """Knows who pushes by the pod's own token, and believes the body only about that pod's run."""

    def __init__(
        self,
        cluster: Cluster,
        reports: Reports,
        add: Callable[[Key], None],
        leading: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._reports = reports
        self._add = add
        self._leading = leading
        self._tokens: dict[str, tuple[float, Object]] = {}

    async def take(self, request: web.Request) -> web.Response:
        """Take one report: 503 from a standby, 401 for no pod's token, 403 for no run's pod, 410 for a run that has gone on."""
        if not self._leading():
            return web.Response(status=503, text="not the leader; try again", headers={"Retry-After": "1"})
        if not 0 < (request.content_length or 0) <= LARGEST_REPORT:
            return web.Response(status=413, text=f"a report has a Content-Length of at most {LARGEST_REPORT} bytes")
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
            or labels.get(ROLE_LABEL) not in REPORTING_ROLES
            or labels.get(ATTEMPT_LABEL) != str(report.attempt)
            or not pod["owner"]
        ):
            return web.Response(status=403, text="the report is about another run or attempt than the pod's")
        if self._reports.is_stale(report):
            return web.Response(status=410, text="the report is about an attempt that is over")
        deadline, over = self._reports.deadline(report, pod["name"])
        answer = Answer(acknowledged=True, deadline=deadline, command="stop" if over else "continue")
        if labels[ROLE_LABEL] == "rollout":
            # It says nothing of the run: that it was heard of is what counts.
            self._reports.hear(report, pod["name"])
            return answered(answer)
        answer = answer.model_copy(update={"servers": self._reports.servers(report)})
        if int(labels.get(RANK_LABEL, "0")):
            # The first pod speaks for the run; the others' outcomes are in their termination messages.
            return answered(answer)
        if self._reports.put(report) or not self._reports.acknowledged(report):
            self._add(pod["owner"])
        facts = {
            "acknowledged": self._reports.acknowledged(report),
            "saved_step": self._reports.saved_step(report.run_uid),
            "checkpoints": self._reports.named_steps(report),
        }
        return answered(answer.model_copy(update=facts))

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
        return {"name": name, "labels": meta.get("labels", {}), "owner": Key(kind, parts[2], owner) if owner else None}


def answered(answer: Answer) -> web.Response:
    """Return the answer to a push that was taken."""
    return web.Response(text=answer.model_dump_json(by_alias=True, exclude_none=True), content_type="application/json")


def application(*routes: web.RouteDef) -> web.Application:
    """Return the application that is served by HTTPS."""
    app = web.Application(client_max_size=LARGEST_REVIEW)
    app.router.add_routes(routes)
    return app


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
