"""Leader election by a coordination.k8s.io Lease: 15 s long, renewed every 2 s, given up after 10 s without renewal.

No lease is a fence: a paused leader may wake up and write. Every write of ours is safe twice; the lease only saves work.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from datetime import UTC, datetime
from typing import Any

from halo_operator.cluster import Cluster, ClusterError, Conflict

log = logging.getLogger(__name__)

NAME = "halo-operator"
DURATION = 15.0
RENEW_DEADLINE = 10.0
RETRY = 2.0
# Long enough for Helm to delete the Deployment; an uninstall that goes no further gets its operator back after that.
TAKEN_AWAY = 60.0


class Lease:
    """Holds, or waits for, the one lease of the installation."""

    def __init__(self, cluster: Cluster, namespace: str, identity: str, clock: Any = time.monotonic) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._identity = identity
        self._clock = clock
        self._renewed = float("-inf")
        # Another holder's expiry is measured by our own clock from its last change that we saw: clocks need not agree.
        self._seen: tuple[str, float] = ("", 0.0)

    @property
    def held(self) -> bool:
        """Whether the lease was renewed recently enough that nobody else can hold it."""
        return bool(self._clock() - self._renewed < RENEW_DEADLINE)

    async def acquire(self) -> None:
        """Return once the lease is ours."""
        while not await self._attempt():  # noqa: ASYNC110 - another process gives it up, no event of ours
            await asyncio.sleep(RETRY * random.uniform(1.0, 1.2))
        log.info("leading as %s", self._identity)

    async def keep(self) -> None:
        """Renew until that fails for too long, then return: the caller must end the process."""
        while self.held:
            await asyncio.sleep(RETRY)
            await self._attempt()
        log.error("lost the lease")

    async def release(self) -> None:
        """Let another take over at once."""
        if not self.held:
            return
        self._renewed = float("-inf")
        try:
            lease = await self._cluster.get("Lease", self._namespace, NAME)
            if lease and lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
                await self._cluster.replace(lease)
        except ClusterError as error:
            log.info("lease not released: %s", error)

    async def take_away(self) -> None:
        """Hold the lease for a minute, whoever had it, and return once that one has stopped writing."""
        while True:
            lease = await self._cluster.get("Lease", self._namespace, NAME)
            body = self._body(lease or {})
            body["spec"]["leaseDurationSeconds"] = int(TAKEN_AWAY)
            try:
                await (self._cluster.replace(body) if lease else self._cluster.create(body))
            except Conflict:
                continue
            if lease and lease["spec"].get("holderIdentity"):
                await asyncio.sleep(RENEW_DEADLINE + RETRY)
            return

    async def _attempt(self) -> bool:
        started = self._clock()
        try:
            lease = await self._cluster.get("Lease", self._namespace, NAME)
            if lease is None:
                await self._cluster.create(self._body({}))
            elif self._may_take(lease):
                await self._cluster.replace(self._body(lease))
            else:
                return False
        except Conflict:
            return False
        except ClusterError as error:
            log.warning("lease: %s", error)
            return False
        self._renewed = started
        return True

    def _may_take(self, lease: dict[str, Any]) -> bool:
        spec = lease.get("spec", {})
        if spec.get("holderIdentity") in ("", None, self._identity):
            return True
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, self._clock())
        return bool(self._clock() - self._seen[1] > float(spec.get("leaseDurationSeconds") or DURATION))

    def _body(self, old: dict[str, Any]) -> dict[str, Any]:
        spec = old.get("spec", {})
        mine = spec.get("holderIdentity") == self._identity
        meta = {"name": NAME, "namespace": self._namespace}
        if old:
            meta["resourceVersion"] = old["metadata"]["resourceVersion"]
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": meta,
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": int(DURATION),
                "acquireTime": spec.get("acquireTime") if mine else _now(),
                "renewTime": _now(),
                "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (0 if mine or not old else 1),
            },
        }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
