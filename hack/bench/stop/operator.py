"""The operator's own pods: killed and kept away, brought back, and watched for whether they were there when they should be."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from money.follow import follow
from tests.api.client import Api, Object
from tests.api.kube import OPERATOR_NAMESPACE, Kubectl, eventually

from . import processes
from .figures import condition

DEPLOYMENT = "deployment/halo-operator"
SELECTOR = "app.kubernetes.io/name=halo"
# Somebody else's turn is over within this.
TURN_SECONDS = 60.0


class Operator:
    """The operator's replicas, as kubelet runs them."""

    def __init__(self, kubectl: Kubectl, api: Api, turn: Path | None) -> None:
        self._kubectl = Kubectl(kubectl.tools, kubectl.kubeconfig, OPERATOR_NAMESPACE)
        self._replicas = int(self._kubectl("get", DEPLOYMENT, "-o", "jsonpath={.spec.replicas}"))
        self._turn = turn
        self._pods: dict[str, Object] = {}
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._missed: datetime | None = None
        path = f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods?labelSelector={SELECTOR}"
        follow(api, path, self._tell, self._stop)

    def _tell(self, type_: str, pod: Object) -> None:
        with self._lock:
            self._pods[pod["metadata"]["uid"]] = pod
            if type_ == "DELETED":
                del self._pods[pod["metadata"]["uid"]]
            if not any(condition(p, "Ready")["status"] == "True" for p in self._pods.values()):
                self._missed = datetime.now(UTC)

    def close(self) -> None:
        self._stop.set()

    def missed_since(self, moment: datetime) -> bool:
        """Whether there was a time since then when no replica was ready."""
        with self._lock:
            ready = any(condition(p, "Ready")["status"] == "True" for p in self._pods.values())
            return not ready or (self._missed is not None and self._missed >= moment)

    def is_away(self) -> bool:
        """Whether there is no pod of it at all, not even one that starts."""
        with self._lock:
            return not self._pods

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have the operator to ourselves: on a cluster that others use, a file says whose turn it is."""
        if self._turn is None:
            yield
            return
        end = time.monotonic() + TURN_SECONDS
        while True:
            try:
                with self._turn.open("x") as file:
                    file.write("hack/bench/budget\n")
                break
            except FileExistsError:
                if time.monotonic() > end:
                    raise TimeoutError(f"{self._turn} is somebody else's: {self._turn.read_text()!r}") from None
                time.sleep(1)
        try:
            yield
        finally:
            self._turn.unlink(missing_ok=True)

    def kill(self) -> datetime:
        """Kill every replica; return when no process of it was left."""
        with self._lock:
            uids = list(self._pods)
        self._kubectl("scale", DEPLOYMENT, "--replicas=0")
        self._kubectl("delete", "pods", "-l", SELECTOR, "--force", "--grace-period=0", "--wait=false")
        eventually(lambda: sum(map(processes.kill, uids)) == 0, "no process of the operator is left", 30)
        killed = datetime.now(UTC)
        eventually(self.is_away, "the operator's pods are gone", 30)
        return killed

    def back(self) -> None:
        self._kubectl("scale", DEPLOYMENT, f"--replicas={self._replicas}")
        self._kubectl("rollout", "status", DEPLOYMENT, "--timeout=50s")
