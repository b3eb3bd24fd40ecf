"""One wave: runs that start together, reach their first checkpoint, lose the operator or don't, and are stopped at their budget."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from money.follow import follow

from . import processes
from .figures import (
    HOUR,
    Object,
    Stopped,
    bound_at,
    condition,
    deadline,
    ended_at,
    is_over,
    publish_seconds,
    time_of,
    wrong_with_adapter,
    wrong_with_entry,
    wrong_with_run,
)
from .stand import EQUIVALENT, GPUS, Stand

UP, DOWN = "operator up", "operator killed"
# Before the first deadline of the wave: from here on the operator may be killed, by here it is, and trainers are made to hang.
EARLIEST, LATEST, HANG = timedelta(seconds=60), timedelta(seconds=35), timedelta(seconds=12)
# What a wave may take beside its budget: pods that start, the end, the publishing of what hung, the settlement.
PATIENCE_SECONDS = 240.0


@dataclass
class Wave:
    """What is asked of it, and what was found."""

    stand: Stand
    scenario: str
    names: list[str]
    hang: int
    budget: Decimal
    stopped: list[Stopped] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    # Why nothing of it counts: somebody else had the operator.
    spoiled: str = ""
    # How long before the first deadline the operator was gone.
    lead_seconds: float | None = None

    def __post_init__(self) -> None:
        self._pods: dict[str, Object] = {}
        self._runs: dict[str, Object] = {}
        self._stop = threading.Event()
        self._end = time.monotonic() + float(self.budget) * HOUR / GPUS + PATIENCE_SECONDS
        self._hung: set[str] = set()

    def run(self) -> None:
        follow(self.stand.api, self.stand.pods(), self._tell_pod, self._stop)
        follow(self.stand.api, self.stand.path("trainingjobs"), self._tell_run, self._stop)
        try:
            self._lead()
        except (AssertionError, TimeoutError) as error:
            self.wrong.append(f"{self.scenario}: {error}")
        finally:
            self._stop.set()
        self.wrong += [f"{self.scenario}, {name}: is not judged" for name in self.names[len(self.stopped) :]]

    def _tell_pod(self, type_: str, pod: Object) -> None:
        name = pod["metadata"]["ownerReferences"][0]["name"]
        # A pod that is gone ended before, and its last version says so.
        if name in self.names and (type_ != "DELETED" or ended_at(pod)):
            self._pods[name] = pod

    def _tell_run(self, type_: str, run: Object) -> None:
        if run["metadata"]["name"] in self.names:
            self._runs[run["metadata"]["name"]] = run

    # --- the story

    def _lead(self) -> None:
        for name in self.names:
            self.stand.start(name, self.budget)
        self._until(lambda: len(self._bound()) == len(self.names), "all pods are on the node")
        begun = max(self._bound().values())
        first, last = self._deadlines()
        say(
            f"{self.scenario}: {len(self.names)} runs have their pods; they must stop from {first:%H:%M:%S} to {last:%H:%M:%S} UTC"
        )
        self._until(lambda: self._checkpoints() == len(self.names) or now() > first - LATEST, "they train")
        say(
            f"{self.scenario}: {self._checkpoints()} of {len(self.names)} have a checkpoint {seconds(first - now()):.0f} s before"
        )
        with ExitStack() as stack:
            if self.scenario == DOWN:
                self._until(lambda: now() > first - EARLIEST, "it is time to kill the operator")
                stack.enter_context(self.stand.operator.turn())
                stack.callback(self.stand.operator.back)
                killed = self.stand.operator.kill()
                self.lead_seconds = seconds(first - killed)
                say(f"{self.scenario}: no process of it was left {self.lead_seconds:.1f} s before")
            self._until(lambda: now() > first - HANG, "it is time to hang")
            self._make_hang()
            self._until(self._watched_ended, "all trainers have ended")
            if self.scenario == UP and self.stand.operator.missed_since(begun):
                self.spoiled = "there was a time without a ready replica"
        say(
            f"{self.scenario}: all ended, the last {seconds(max(self._ended().values()) - last):.0f} s after; the operator is there"
        )
        self._until(lambda: all(is_over(run) for run in self._runs.values()) and self._is_settled(), "all are settled")
        self._judge()

    def _make_hang(self) -> None:
        for name in self.names[: self.hang]:
            if name in self._ended():
                continue
            pids = processes.hang(self._pods[name]["metadata"]["uid"])
            assert pids, f"{name}: no trainer was found to be stopped"
            self._hung.add(name)

    def _watched_ended(self) -> bool:
        if self.scenario == DOWN and not self.stand.operator.is_away():
            self.spoiled = self.spoiled or "somebody brought the operator back before the trainers had ended"
        return len(self._ended()) == len(self.names)

    def _is_settled(self) -> bool:
        uids = {run["metadata"]["uid"] for run in self._runs.values()}
        return not uids & self.stand.workspace().get("status", {}).get("holds", {}).keys()

    def _judge(self) -> None:
        entries = {e["run"]["uid"]: e for e in self.stand.workspace()["status"].get("settled", ())}
        for name in self.names:
            # The follower may be a moment behind.
            run = self.stand.api.get(self.stand.path("trainingjobs", name))
            assert run is not None, f"{name} is gone"
            adapter, folder = self.stand.adapter(name)
            stopped = self._stopped(name, run, adapter)
            found = [
                *wrong_with_run(run, stopped),
                *wrong_with_adapter(run, adapter, folder),
                *wrong_with_entry(entries.get(run["metadata"]["uid"]), stopped, self.budget, EQUIVALENT),
            ]
            if self.scenario == DOWN and self.lead_seconds is not None and self.lead_seconds <= 0:
                found.append("the operator was there at its deadline")
            self.stopped.append(stopped)
            self.wrong += [f"{self.scenario}, {name}: {words}" for words in found]

    def _stopped(self, name: str, run: Object, adapter: Object | None) -> Stopped:
        pod, ended = self._pods[name], self._ended()[name]
        message = pod["status"]["containerStatuses"][0]["state"]["terminated"].get("message") or "{}"
        made = seconds(time_of(adapter["metadata"]["creationTimestamp"]) - ended) if adapter else float("nan")
        return Stopped(
            name=name,
            scenario=self.scenario,
            hung=name in self._hung,
            gpus=GPUS,
            bound=self._bound()[name],
            ended=ended,
            hold_seconds=self.budget * HOUR / EQUIVALENT,
            publish_seconds=publish_seconds(run),
            step=adapter["spec"]["trainedBy"]["step"] if adapter else 0,
            published_by="trainer" if json.loads(message).get("adapter") else "operator" if adapter else "nobody",
            adapter_after=made,
        )

    # --- what is asked

    def _bound(self) -> dict[str, datetime]:
        return {name: at for name, pod in list(self._pods.items()) if (at := bound_at(pod))}

    def _ended(self) -> dict[str, datetime]:
        return {name: at for name, pod in list(self._pods.items()) if (at := ended_at(pod))}

    def _checkpoints(self) -> int:
        return sum(bool(run.get("status", {}).get("checkpoints")) for run in list(self._runs.values()))

    def _deadlines(self) -> tuple[datetime, datetime]:
        hold = self.budget * HOUR / EQUIVALENT
        found = [deadline(at, hold, GPUS, publish_seconds(self._runs[name])) for name, at in self._bound().items()]
        return min(found), max(found)

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        while not holds():
            if time.monotonic() > self._end:
                states = {
                    n: condition(run, "Ready")["message"] or run.get("status", {}).get("waiting")
                    for n, run in self._runs.items()
                }
                raise TimeoutError(f"not within its time: {what}: {states}")
            failed = [n for n, run in list(self._runs.items()) if condition(run, "Failed")["status"] == "True"]
            if len(failed) == len(self.names):
                raise AssertionError(f"all have failed: {condition(self._runs[failed[0]], 'Failed')['message']}")
            time.sleep(0.25)


def now() -> datetime:
    return datetime.now(UTC)


def seconds(span: timedelta) -> float:
    return span.total_seconds()


def say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)
