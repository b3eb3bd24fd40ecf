"""Plays the nodes: pods are bound by the real scheduler, run at once, and end when a run's script says so; no container runs."""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import urllib3
from tests.api import pods
from tests.api.client import STRATEGIC, Api, Object, Refused

from halo_api.conditions import Reason
from halo_api.report import Outcome

from .book import Life
from .follow import follow

# Their clocks go right, ahead and behind.
CLOCKS = {"ledger-0": 0, "ledger-1": 300, "ledger-2": -300}
ROLE, ATTEMPT = "halo.training/role", "halo.training/attempt"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
GROUP = "/apis/halo.training/v1alpha1"
BEAT_SECONDS = 10.0
AGAIN_SECONDS = 0.5
ROOM = {"cpu": "512", "memory": "4Ti", "pods": "1000", "nvidia.com/gpu": "400"}

# How long after its pod ran (or the script was given) an attempt ends, and how.
Script = list[tuple[float, Callable[[Object], Outcome]]]


@dataclass
class Played:
    """A pod and how far it is played."""

    pod: Object
    life: Life
    run: str
    running: bool = False
    ended: bool = False
    gone: bool = False
    # Chosen once: a write that is sent again says the same.
    outcome: Outcome | None = None


@dataclass
class Player:
    """The kubelets of all nodes, in one thread, so that nothing of a pod is written out of order."""

    api: Api
    lives: dict[str, list[Life]] = field(default_factory=lambda: defaultdict(list))
    troubles: list[str] = field(default_factory=list)
    _pods: dict[str, Played] = field(default_factory=dict)
    _scripts: dict[str, Script] = field(default_factory=dict)
    _said: queue.Queue[tuple[str, Any]] = field(default_factory=queue.Queue)
    _due: list[tuple[float, int, str, str]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _count: int = 0

    def start(self) -> None:
        for name in CLOCKS:
            self.api.post("/api/v1/nodes", a_node(name))
            self.api.patch(f"/api/v1/nodes/{name}/status", {"status": node_status()}, STRATEGIC)
        self._beat()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()
        self._beats = threading.Thread(target=self._keep_beating, daemon=True)
        self._beats.start()
        follow(self.api, "/api/v1/pods", lambda type_, pod: self._said.put((type_, pod)), self._stop)

    def stop(self) -> None:
        self._stop.set()
        self._said.put(("STOP", None))
        self._thread.join(10)

    def script(self, run: str, script: Script) -> None:
        """Say how the attempts of a run end, one after the other; the last for all that come after."""
        self._said.put(("SCRIPT", (run, script)))

    def forget(self, runs: set[str]) -> None:
        for run in runs:
            self.lives.pop(run, None)
            self._scripts.pop(run, None)

    # --- the thread

    def _play(self) -> None:
        while not self._stop.is_set():
            wait = self._due[0][0] - time.monotonic() if self._due else 1.0
            try:
                type_, what = self._said.get(timeout=max(0.001, min(wait, 1.0)))
                self._hear(type_, what)
            except queue.Empty:
                pass
            while self._due and self._due[0][0] <= time.monotonic():
                _, _, uid, what = heapq.heappop(self._due)
                if played := self._pods.get(uid):
                    self._try(played, what)

    def _hear(self, type_: str, what: Any) -> None:
        if type_ == "SCRIPT":
            run, script = what
            self._scripts[run] = script
            for played in self._pods.values():
                if played.run == run and played.running:
                    self._plan_end(played)
        elif type_ == "DELETED":
            self._pods.pop(what["metadata"]["uid"], None)
        elif type_ != "STOP":
            played = self._known(what)
            played.pod = what
            self._try(played, "")

    def _known(self, pod: Object) -> Played:
        meta = pod["metadata"]
        if meta["uid"] not in self._pods:
            container = pod["spec"]["containers"][0]
            gpus = int(container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0))
            life = Life(int(meta.get("labels", {}).get(ATTEMPT, 0)), gpus)
            run = next((owner["uid"] for owner in meta.get("ownerReferences", ())), "")
            self._pods[meta["uid"]] = Played(pod, life, run)
            if meta.get("labels", {}).get(ROLE) == "trainer":
                self.lives[run].append(life)
        return self._pods[meta["uid"]]

    def _later(self, seconds: float, played: Played, what: str) -> None:
        self._count += 1
        heapq.heappush(self._due, (time.monotonic() + seconds, self._count, played.pod["metadata"]["uid"], what))

    def _try(self, played: Played, what: str) -> None:
        try:
            self._step(played, what)
        except Refused as refused:
            # It went meanwhile, or changed: then an event comes.
            if refused.status not in (404, 409):
                self.troubles.append(f"{played.pod['metadata']['name']}: {refused}")
                self._later(AGAIN_SECONDS, played, what)
        except (urllib3.exceptions.HTTPError, OSError):
            self._later(AGAIN_SECONDS, played, what)

    def _step(self, played: Played, what: str) -> None:
        """Write what the pod's kubelet would write next."""
        pod, life = played.pod, played.life
        node = pod["spec"].get("nodeName")
        if node not in CLOCKS or played.gone:
            return
        life.scheduled = life.scheduled or scheduled_at(pod)
        if life.scheduled is None:
            return
        life.started = life.started or node_time(node)
        if "deletionTimestamp" in pod["metadata"]:
            self._end(played, node, Outcome(result="Failed", reason=Reason.INTERRUPTED, message="asked to stop"))
            uid = {"uid": pod["metadata"]["uid"]}
            self.api.request(
                "DELETE",
                pods.path_of(pod),
                {"gracePeriodSeconds": 0, "preconditions": uid, "kind": "DeleteOptions", "apiVersion": "v1"},
            )
            played.gone = True
        elif pod["metadata"].get("labels", {}).get(ROLE) != "trainer":
            self._end(played, node, self._done(pod))
        elif what == "end":
            script = self._scripts.get(played.run)
            if script:
                self._end(played, node, script[min(life.attempt, len(script)) - 1][1](pod))
        elif not played.running:
            self._write(played, node, "Running", {"running": {"startedAt": stamp(life.started)}})
            played.running = True
            self._plan_end(played)

    def _done(self, pod: Object) -> Outcome:
        """How a pod without GPUs ends: well."""
        match pod["metadata"].get("labels", {}).get(ROLE):
            case "publish":
                return pods.published(pod)
            case "verify":
                run = pods.run_file(pod).run
                return pods.verified(self.api.request("GET", f"{GROUP}/namespaces/{run.namespace}/adapters/{run.name}"))
        return pods.inspected()

    def _plan_end(self, played: Played) -> None:
        if script := self._scripts.get(played.run):
            self._later(script[min(played.life.attempt, len(script)) - 1][0], played, "end")

    def _end(self, played: Played, node: str, outcome: Outcome) -> None:
        if played.ended:
            return
        life = played.life
        played.outcome = played.outcome or outcome
        life.finished = life.finished or node_time(node)
        well = played.outcome.result == "Succeeded"
        terminated = {
            "exitCode": 0 if well else 1,
            "reason": "Completed" if well else "Error",
            "message": played.outcome.termination_message(),
            "startedAt": stamp(life.started or life.finished),
            "finishedAt": stamp(life.finished),
        }
        self._write(played, node, "Succeeded" if well else "Failed", {"terminated": terminated})
        played.ended = True

    def _write(self, played: Played, node: str, phase: str, state: Object) -> None:
        pod, life = played.pod, played.life
        container = pod["spec"]["containers"][0]
        status = {
            "name": container["name"],
            "image": container["image"],
            "imageID": f"{container['image']}@{pods.DIGEST}",
            "ready": "running" in state,
            "restartCount": 0,
            "state": state,
        }
        ready = {"type": "Ready", "status": str("running" in state), "lastTransitionTime": stamp(node_time(node))}
        body = {"phase": phase, "conditions": [ready], "containerStatuses": [status], "startTime": stamp(life.started)}
        self.api.patch(pods.path_of(pod, "status"), {"status": body}, STRATEGIC)

    # --- heartbeats

    def _keep_beating(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            try:
                self._beat()
            except (Refused, urllib3.exceptions.HTTPError, OSError):
                continue

    def _beat(self) -> None:
        for name in CLOCKS:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now}
            if self.api.get(f"{LEASES}/{name}") is None:
                self.api.post(LEASES, {"metadata": {"name": name}, "spec": spec})
            else:
                self.api.patch(f"{LEASES}/{name}", {"spec": spec})


def node_time(node: str) -> datetime:
    """What the node's clock shows, in the whole seconds that a pod's status is written in."""
    return (datetime.now(UTC) + timedelta(seconds=CLOCKS[node])).replace(microsecond=0)


def stamp(time_: datetime | None) -> str | None:
    return time_.strftime("%Y-%m-%dT%H:%M:%SZ") if time_ else None


def scheduled_at(pod: Object) -> datetime | None:
    """When the API server says that it was bound."""
    for condition in pod.get("status", {}).get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "True":
            return datetime.fromisoformat(condition["lastTransitionTime"]).astimezone(UTC)
    return None


def a_node(name: str) -> Object:
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def node_status() -> Object:
    now = stamp(datetime.now(UTC))
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return {"capacity": ROOM, "allocatable": ROOM, "conditions": [ready | times]}
