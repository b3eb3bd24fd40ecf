"""A namespace with runs and a Workspace, whose reconcile runs here, on a queue of its own, as the operator's account."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from kubernetes.aio import client, config

from halo_api.ledger import Rate, RunRef
from halo_operator.clock import ServerClock
from halo_operator.cluster import Cluster, Conflict
from halo_operator.desk import Desk
from halo_operator.events import Recorder
from halo_operator.plan import money
from halo_operator.plan.names import HOLD_FINALIZER
from halo_operator.plan.wishes import Ended, Wanted
from halo_operator.queue import Key, WorkQueue
from halo_operator.reconcile import AGAIN
from halo_operator.workspaces import Workspaces
from tests.api.client import Api, Object
from tests.api.kube import Kubectl
from tests.api.operator_process import service_account_kubeconfig, training_job

GROUP = "/apis/halo.training/v1alpha1"
RATE = Rate(gpu_class="h100", region="eu-west", usd_per_hour="2.5", markup="1.2", h100_equivalent="1")


class Scene:
    """What a test does and sees; a new operator begins with `restarted`."""

    def __init__(self, installed: Kubectl, cluster: Cluster) -> None:
        self.api, self.cluster = Api.connect(installed.kubeconfig), cluster
        self.namespace = f"book-{uuid.uuid4().hex[:8]}"
        self.kubectl = Kubectl(installed.tools, installed.kubeconfig, self.namespace)
        self.kubectl("create", "namespace", self.namespace)
        self.key = Key("Workspace", self.namespace, "workspace")
        self.recorder = Recorder(cluster, "test")
        self.woken: set[str] = set()
        self.begin()

    def begin(self) -> None:
        self.queue = WorkQueue(self._reconcile, workers=4)
        self.desk = Desk(self.queue.add)
        self.workspaces = Workspaces(self.cluster, self.desk, self.recorder, self.cluster.clock.now, self.queue.add)
        self.working = asyncio.get_running_loop().create_task(self.queue.run())

    async def restarted(self) -> None:
        """The operator ends, and another one knows nothing but what is stored."""
        await self.end()
        self.begin()

    async def end(self) -> None:
        self.working.cancel()
        await asyncio.gather(self.working, return_exceptions=True)

    async def _reconcile(self, key: Key) -> float | None:
        if key.kind != "Workspace":
            self.woken.add(key.name)
            return None
        try:
            return await self.workspaces(key)
        except Conflict:
            return AGAIN

    # --- what people do

    def path(self, plural: str, name: str = "") -> str:
        return f"{GROUP}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def grant(self, **spec: Any) -> Object:
        body = {"apiVersion": "halo.training/v1alpha1", "kind": "Workspace", "metadata": {"name": "workspace"}}
        made = self.api.post(self.path("workspaces"), body | {"spec": spec})
        self.queue.add(self.key)
        return made

    def run(self, name: str) -> RunRef:
        made = self.api.post(self.path("trainingjobs"), training_job("smol", name))
        return RunRef(kind="TrainingJob", name=name, uid=made["metadata"]["uid"])

    def delete_run(self, name: str) -> None:
        self.api.delete(self.path("trainingjobs", name))

    # --- what runs do

    def wants(self, run: RunRef, usd: float, at: datetime | None = None) -> None:
        self.desk.ask(self.namespace, Wanted(run, at or self.cluster.clock.now(), "USD", money.micro(usd), RATE))

    def ends(self, run: RunRef, usd: float) -> None:
        self.desk.ask(self.namespace, Ended(run, money.micro(usd), 3_600_000, "Succeeded"))

    # --- what there is

    def workspace(self) -> Object | None:
        return self.api.get(self.path("workspaces", "workspace"))

    def status(self) -> Object:
        return dict((self.workspace() or {}).get("status", {}))

    def held(self) -> list[str]:
        return sorted(hold["run"]["name"] for hold in self.status().get("holds", {}).values())

    def entries(self) -> list[tuple[str, str, str]]:
        """The settled entries: the run, what was charged, why it ended."""
        return [(e["run"]["name"], e["charged"], e["outcome"]) for e in self.status().get("settled", [])]

    def pages(self) -> list[Object]:
        return [page["spec"] for page in self.api.items(self.path("ledgerpages"))]

    async def until(self, holds: Callable[[], Any], what: str, seconds: float = 30) -> None:
        """Wait while the reconcile goes on."""
        try:
            async with asyncio.timeout(seconds):
                while not holds():  # noqa: ASYNC110 - it is the API server that is waited for
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"not within {seconds} s: {what}; the status is {self.status()}") from None

    async def until_answered(self, *runs: RunRef) -> None:
        await self.until(lambda: {run.name for run in runs} <= self.woken, "all runs are answered")
        self.woken -= {run.name for run in runs}


async def connect(
    installed: Kubectl, folder: Path, kind: type[Cluster] = Cluster, clock: ServerClock | None = None
) -> Cluster:
    """The API server as the chart's ServiceAccount sees it: with its rights and under its policy."""
    settings = client.Configuration()
    path = service_account_kubeconfig(installed, folder)
    await config.load_kube_config(config_file=str(path), client_configuration=settings)
    settings.retries = False
    return kind(client.ApiClient(settings), clock)


@asynccontextmanager
async def scene(
    installed: Kubectl, folder: Path, kind: type[Cluster] = Cluster, clock: ServerClock | None = None
) -> AsyncIterator[Scene]:
    """A namespace that is gone, or on its way, in the end."""
    cluster = await connect(installed, folder, kind, clock)
    found = Scene(installed, cluster)
    try:
        yield found
    finally:
        await found.end()
        await cluster.close()
        if HOLD_FINALIZER in str((found.workspace() or {}).get("metadata", {})):
            found.api.patch(found.path("workspaces", "workspace"), {"metadata": {"finalizers": None}})
        found.kubectl("delete", "namespace", found.namespace, "--wait=false", "--ignore-not-found")
