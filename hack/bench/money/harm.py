"""Two replicas of the operator, one of which is SIGKILLed every few seconds, preferably just when a Workspace was written."""

from __future__ import annotations

import random
import re
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from scale.costs import cpu_seconds
from tests.api.client import Api
from tests.api.kube import OPERATOR_NAMESPACE, ROOT, Kubectl, eventually
from tests.api.operator_process import OperatorProcess

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{OPERATOR_NAMESPACE}/leases/halo-operator"
PAUSE_SECONDS = 1.0
# The leader works so long between two kills, in seconds of CPU: a busy machine is not killed to a standstill; or waits so long.
WORK_SECONDS, MOST_SECONDS = (0.3, 4.0), 5.0
# A leader's chances to be the one, to be hit in the moment after a write, and to stay down until the other has taken over.
LEADER, AT_A_WRITE, TAKEN_OVER = 0.65, 0.5, 0.1
MOMENT = 0.05
# Now and then one dies while it starts.
STARTING = 0.1
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
    _started: dict[str, datetime] = field(default_factory=dict)
    _written: threading.Event = field(default_factory=threading.Event)
    _harmful: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.code = Path(tempfile.mkdtemp(prefix="halo-ledger-"))
        self._thread = threading.Thread(target=self._harm, daemon=True)

    def start(self) -> None:
        # All starts are of the code as it is now: the tree may be worked on.
        shutil.copytree(ROOT / "operator", self.code, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        for _ in range(2):
            self.replicas.append(OperatorProcess(self.kubectl, PYTHONPATH=str(self.code)))
            self._started[self.replicas[-1].identity] = datetime.now(UTC)
        eventually(lambda: self.leader() is not None, "a replica leads", 60)
        self._thread.start()

    def stop(self, keep: bool = False) -> list[str]:
        """End them; return the exceptions in their logs, whose files stay then, or where they are to be kept."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(TAKEOVER_SECONDS + 10)
        shutil.rmtree(self.code)
        found = []
        for replica in self.replicas:
            replica.kill()
            errors = re.findall(r"^\w+(?:\.\w+)*(?:Error|Exception)\b.*$", replica.said(), re.MULTILINE)
            found += [f"{replica.log}: {error}" for error in errors]
            if not errors and not keep:
                shutil.rmtree(replica.folder)
        return found

    def allow(self, yes: bool) -> None:
        """Kill from now on, or leave them alone and have both there."""
        (self._harmful.set if yes else self._harmful.clear)()

    def written(self) -> None:
        """A Workspace has a new version."""
        self._written.set()

    def leader(self) -> OperatorProcess | None:
        """Who leads: has renewed the lease since it was started. One that is still starting has its name in it, too."""
        spec = (self.api.get(LEASE) or {}).get("spec") or {}
        renewed = datetime.fromisoformat(spec.get("renewTime") or "1970-01-01T00:00:00Z")
        leads = (r for r in self.replicas if r.identity == spec.get("holderIdentity") and r.is_alive())
        return next((r for r in leads if renewed > self._started[r.identity]), None)

    def _start(self, replica: OperatorProcess) -> None:
        self._started[replica.identity] = datetime.now(UTC)
        replica.start()

    def _harm(self) -> None:
        while not self._stop.wait(PAUSE_SECONDS):
            for replica in self.replicas:
                if not replica.is_alive():
                    # As its kubelet would do: the lease was lost, for the machine was too slow.
                    self.ended_by_themselves += 1
                    self._start(replica)
            if self._harmful.is_set():
                self._kill_one()

    def _kill_one(self) -> None:
        if self.chance.random() >= STARTING:
            self._let_lead()
        leader = self.leader()
        if leader is None or self.chance.random() >= LEADER:
            victim = self.chance.choice([replica for replica in self.replicas if replica is not leader])
        else:
            victim = leader
            if self.chance.random() < AT_A_WRITE:
                self._written.clear()
                if self._written.wait(MOST_SECONDS / 2):
                    time.sleep(self.chance.uniform(0, MOMENT))
        victim.kill()
        self.kills += 1
        self.leaders_killed += victim is leader
        if victim is leader and self.chance.random() < TAKEN_OVER:
            self.takeovers += 1
            self._wait_for_leader()
        self._start(victim)

    def _let_lead(self) -> None:
        """Wait until somebody leads and has worked for a random while."""
        leader = self._wait_for_leader()
        if leader is None:
            return
        work, end = self.chance.uniform(*WORK_SECONDS), time.monotonic() + MOST_SECONDS
        before = used_by(leader)
        while used_by(leader) - before < work and time.monotonic() < end and not self._stop.wait(0.05):
            pass

    def _wait_for_leader(self) -> OperatorProcess | None:
        end = time.monotonic() + TAKEOVER_SECONDS
        while (leader := self.leader()) is None:
            if time.monotonic() > end or self._stop.wait(0.2):
                return None
        return leader


def used_by(replica: OperatorProcess) -> float:
    try:
        return float(cpu_seconds(replica.pid))
    except OSError:
        return 0.0
