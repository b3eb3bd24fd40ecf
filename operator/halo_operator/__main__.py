"""Wires the operator together: settings, logging, lease, watches, queue, servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from halo_api import API_VERSION
from halo_operator import admission, metrics, recipe_objects
from halo_operator.adapters import Demand
from halo_operator.cluster import RESOURCES, Cluster, ClusterError, NotFound, Object, expected
from halo_operator.desk import Desk
from halo_operator.events import Recorder
from halo_operator.gather import Gatherer
from halo_operator.grpo import GrpoLooks
from halo_operator.lease import Lease
from halo_operator.queue import Key, WorkQueue
from halo_operator.recipes import RECIPES
from halo_operator.reconcile import Reconciler
from halo_operator.release import release_all
from halo_operator.reports import Reports
from halo_operator.server import ReportServer, application, health_application
from halo_operator.settings import Settings, SettingsError, load
from halo_operator.tls import MountedCertificates, OwnCertificates
from halo_operator.watches import listen, watch
from halo_operator.workspaces import Workspaces

log = logging.getLogger("halo_operator")

RELIST_SECONDS = 600.0
# With a relist every ten minutes, no success for half an hour means that nothing works any more.
SILENT_SECONDS = 1800.0
# Every kind is listed once before the watches are ready.
WATCHES_START_SECONDS = 120.0
KINDS = ("TrainingJob", "GrpoRun", "Dataset", "Adapter", "Workspace")
# What the operator watches or reads.
REQUIRED = (
    *KINDS,
    "Environment",
    "Criterion",
    "ModelAlias",
    "LedgerPage",
    "BaseModel",
    "GpuClass",
    "Recipe",
)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_logging(settings: Settings) -> None:
    """Send everything to stdout; Kopf's and aiohttp's chatter only from warnings on."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        JsonFormatter()
        if settings.log_format == "json"
        else logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for chatty in ("kopf", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


async def require_crds(cluster: Cluster) -> None:
    """End with one sentence when the CRDs are not there: Kopf would watch nothing, silently and for ever."""
    try:
        found = {r["name"] for r in (await cluster.raw(f"/apis/{API_VERSION}"))["resources"]}
    except NotFound:
        raise SystemExit(
            f"the API {API_VERSION} is not served; install the CRDs: helm upgrade --set crds.enabled=true"
        ) from None
    except ClusterError as error:
        raise SystemExit(f"the API server does not answer as it should: {error}") from None
    missing = {RESOURCES[kind][1] for kind in REQUIRED} - found
    if missing:
        raise SystemExit(
            f"CRDs missing: {', '.join(sorted(missing))}; install them: helm upgrade --set crds.enabled=true"
        )


async def relist(
    cluster: Cluster, queue: WorkQueue, workspaces: Workspaces, namespaces: tuple[str, ...], early: asyncio.Event
) -> None:
    """Add every object again from time to time: a delete in a watch gap gives no event, and pods may outlive their run.

    `early` asks for it now, as when all live pods must learn of a new CA.
    """
    while True:
        await recipe_objects.keep(cluster, RECIPES)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(early.wait(), RELIST_SECONDS)
        early.clear()
        try:
            for namespace in namespaces or (None,):
                for kind in KINDS:
                    for item in await cluster.list_meta(kind, namespace):
                        key = Key(kind, item["metadata"]["namespace"], item["metadata"]["name"])
                        if kind == "Workspace":
                            workspaces.look_for_gone(key.namespace)
                        queue.add(key)
                for pod in await cluster.list_all("Pod", namespace, labels="halo.training/run"):
                    kind, _, name = pod["metadata"].get("annotations", {}).get("halo.training/owner", "").partition("/")
                    if name:
                        queue.add(Key(kind, pod["metadata"]["namespace"], name))
        except ClusterError as error:
            log.warning("relist: %s", error)


async def keep_watching(ready: asyncio.Event) -> None:
    """Return only if the watches do not start: Kopf stays, and does nothing, when its first look at the API fails."""
    try:
        async with asyncio.timeout(WATCHES_START_SECONDS):
            await ready.wait()
    except TimeoutError:
        log.error("the watches did not start within %d s", WATCHES_START_SECONDS)
        return
    await asyncio.Event().wait()


async def serve(app: web.Application, port: int, context: ssl.SSLContext | None = None) -> web.AppRunner:
    """Serve an application on every address of the pod."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, None, port, ssl_context=context).start()
    return runner


async def serve_mounted(webhook: admission.Webhook, settings: Settings) -> None:
    """Serve the webhook under somebody else's certificate, on a port of its own, as soon as that is there."""
    mounted = MountedCertificates(Path(settings.webhook_certificate))
    keeping = asyncio.create_task(mounted.keep())
    try:
        await mounted.loaded.wait()
        runner = await serve(
            application(web.post(admission.PATH, webhook.answer)), settings.webhook_port, mounted.context
        )
        try:
            await keeping
        finally:
            await runner.cleanup()
    finally:
        keeping.cancel()


async def run(settings: Settings) -> int:
    """Run until asked to stop (0) or until the lease or the API server is lost (1)."""
    cluster = await Cluster.connect()
    await require_crds(cluster)
    stop, ready = asyncio.Event(), asyncio.Event()
    listen(stop)

    lease = Lease(cluster, settings.namespace, settings.identity)
    reports = Reports()
    queue: WorkQueue
    recorder = Recorder(cluster, settings.identity, lambda: queue.new > 0)
    server = ReportServer(cluster, reports, lambda key: queue.add(key), lambda: lease.held and ready.is_set())
    changed_authorities = asyncio.Event()
    certificates = OwnCertificates(cluster, settings, lambda: lease.held, changed_authorities.set)
    gatherer = Gatherer(cluster, settings.namespace)
    desk, demand = Desk(lambda key: queue.add(key)), Demand(lambda key: queue.add(key))
    now = cluster.clock.now
    workspaces = Workspaces(cluster, desk, recorder, now, lambda key: queue.add(key), lambda: queue.new > 0)
    reconciler = Reconciler(
        cluster, gatherer, settings, reports, recorder, desk, demand, workspaces, lambda: certificates.bundle, now
    )
    queue = WorkQueue(reconciler, workers=settings.workers, expected=expected)
    metrics.observe(queue)
    metrics.LEADER.labels("halo-operator").set_function(lambda: float(lease.held))

    def changed(key: Key, new: Object | None = None) -> None:
        reconciler.seen(key, new)
        queue.add(key, new is not None)

    def problem() -> str | None:
        silent = time.monotonic() - queue.last_success
        return (
            f"no reconcile has succeeded for {silent:.0f} s"
            if ready.is_set() and len(queue) and silent > SILENT_SECONDS
            else None
        )

    health = await serve(health_application(problem), settings.health_port)
    # An apply waits for the answer, and the reconciler looks again.
    hasty = Gatherer(cluster, settings.namespace, hasty=True)
    webhook = admission.Webhook(
        {
            "TrainingJob": admission.training_jobs(hasty.catalog_of, reconciler.environment),
            "GrpoRun": admission.grpo_runs(GrpoLooks(cluster, hasty), now),
        }
    )
    routes = (web.post("/v1/reports", server.take), web.post(admission.PATH, webhook.answer))
    reporting = await serve(application(*routes), settings.report_port, await certificates.prepare())
    serving = [asyncio.create_task(certificates.keep())]
    if settings.webhook_certificate:
        serving.append(asyncio.create_task(serve_mounted(webhook, settings)))
    stopping = asyncio.create_task(stop.wait())
    acquiring = asyncio.create_task(lease.acquire())
    await asyncio.wait({stopping, acquiring}, return_when=asyncio.FIRST_COMPLETED)
    code = 0
    if acquiring.done() and not stop.is_set():
        # From here on every write but the lease's own is refused once the lease is lost.
        cluster.fence = lambda: lease.held
        certificates.look_now()
        await reconciler.prepare()
        watching = asyncio.create_task(
            watch(changed, reconciler.waiting_for, workspaces.gone, settings.watch_namespaces, ready, stop)
        )
        work = [
            asyncio.create_task(lease.keep()),
            asyncio.create_task(queue.run()),
            asyncio.create_task(recorder.run()),
            asyncio.create_task(keep_watching(ready)),
            asyncio.create_task(relist(cluster, queue, workspaces, settings.watch_namespaces, changed_authorities)),
        ]
        done, _ = await asyncio.wait({stopping, watching, *work}, return_when=asyncio.FIRST_COMPLETED)
        for task in done if stopping not in done else ():
            code = 1
            # Kopf, when it ends by itself, cancels whatever began after it.
            problem_met = None if task.cancelled() else task.exception()
            log.error("ending: %s", problem_met or "the watch or the lease ended")
        stop.set()
        for task in work:
            task.cancel()
        await asyncio.wait({watching}, timeout=10)
        await asyncio.gather(*work, return_exceptions=True)
        await recorder.flush()
        await lease.release()
    acquiring.cancel()
    for task in serving:
        task.cancel()
    await reporting.cleanup()
    await health.cleanup()
    await cluster.close()
    return code


async def release(settings: Settings) -> None:
    """Let go of every pod of a run, as an uninstall needs it; nobody may lead meanwhile, and make another."""
    cluster = await Cluster.connect()
    await Lease(cluster, settings.namespace, settings.identity).take_away()
    await release_all(cluster, settings.watch_namespaces)
    await cluster.close()


def main() -> None:
    """Start the operator."""
    try:
        settings = load()
    except SettingsError as error:
        raise SystemExit(str(error)) from None
    configure_logging(settings)
    if sys.argv[1:] == ["release"]:
        asyncio.run(release(settings))
        return
    if sys.argv[1:]:
        raise SystemExit(
            f"found {' '.join(sys.argv[1:])!r}; the only verb is release, which the chart runs before an uninstall"
        )
    raise SystemExit(asyncio.run(run(settings)))


if __name__ == "__main__":
    main()
