"""Two replicas of the operator, one of which is SIGKILLed every few seconds, preferably just when a Workspace was written."""

from __future__ import annotations

import random
import re
import shutil
import threading
import time
from dataclasses import dataclass, field

from tests.api.client import Api
from tests.api.kube import OPERATOR_NAMESPACE, Kubectl, eventually
from tests.api.operator_process import OperatorProcess

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{OPERATOR_NAMESPACE}/leases/halo-operator"
BETWEEN_KILLS = (2.0, 5.0)
# A leader's chances to be the one, to be hit in the moment after a write, and to stay down until the other has taken over.
LEADER, AT_A_WRITE, TAKEN_OVER = 0.65, 0.5, 0.1
MOMENT = 0.05
TAKEOVER_SECONDS = 60.0


@dataclass
class Harm:
    """The replicas, what was done to them, and what they did of themselves."""

    kubectl: Kubectl
    api: Api
    chance: random.Random
    replicas: list[OperatorProcess] = field(default_factory=list)
    kills: int = 0
    leaders_killed: int = 0
    takeovers: int = 0
    ended_by_themselves: int = 0
    _written: threading.Event = field(default_factory=threading.Event)
    _harmful: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._harm, daemon=True)

    def start(self) -> None:
        for _ in range(2):
            self.replicas.append(OperatorProcess(self.kubectl, PYTHONDONTWRITEBYTECODE="1"))
        eventually(lambda: self.leader() is not None, "a replica leads", 60)
        self._thread.start()

    def stop(self) -> list[str]:
        """End them; return the exceptions in their logs, whose files stay then."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(TAKEOVER_SECONDS + 10)
        found = []
        for replica in self.replicas:
            replica.kill()
            errors = re.findall(r"^\w+(?:\.\w+)*(?:Error|Exception)\b.*$", replica.said(), re.MULTILINE)
            found += [f"{replica.log}: {error}" for error in errors]
            if not errors:
                shutil.rmtree(replica.folder)
        return found

    def allow(self, yes: bool) -> None:
        """Kill from now on, or leave them alone and have both there."""
        (self._harmful.set if yes else self._harmful.clear)()

    def written(self) -> None:
        """A Workspace has a new version."""
        self._written.set()

    def leader(self) -> OperatorProcess | None:
        """Who has the lease and is alive."""
        holder = ((self.api.get(LEASE) or {}).get("spec") or {}).get("holderIdentity")
        return next((r for r in self.replicas if r.identity == holder and r.is_alive()), None)

    def _harm(self) -> None:
        while not self._stop.wait(self.chance.uniform(*BETWEEN_KILLS)):
            for replica in self.replicas:
                if not replica.is_alive():
                    # As its kubelet would do: the lease was lost, for the machine was too slow.
                    self.ended_by_themselves += 1
                    replica.start()
            if self._harmful.is_set():
                self._kill_one()

    def _kill_one(self) -> None:
        leader = self.leader()
        others = [replica for replica in self.replicas if replica is not leader]
        if leader is None or self.chance.random() >= LEADER:
            victim = self.chance.choice(others)
        else:
            victim = leader
            if self.chance.random() < AT_A_WRITE:
                self._written.clear()
                if self._written.wait(BETWEEN_KILLS[0]):
                    time.sleep(self.chance.uniform(0, MOMENT))
        victim.kill()
        self.kills += 1
        self.leaders_killed += victim is leader
        if victim is leader and self.chance.random() < TAKEN_OVER:
            self.takeovers += 1
            end = time.monotonic() + TAKEOVER_SECONDS
            while self.leader() is None and time.monotonic() < end and not self._stop.wait(0.5):
                pass
        victim.start()
