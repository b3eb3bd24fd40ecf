"""Nodes and their pods as an API server and kubelets keep them, beside the truth: when each pod was bound and when it ended."""

from __future__ import annotations

import itertools
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime

from halo_api.report import Outcome
from halo_operator.plan import names
from halo_operator.plan.conditions import stamp
from halo_operator.plan.pod_view import parse_time
from halo_operator.plan.world import Object
from tests.unit.builders import NOW, published, run_file, seconds


@dataclass
class Truth:
    """What really happened to a pod, on the one true clock; its node's own may be `ahead` of it."""

    uid: str
    run: str
    role: str
    attempt: int
    rank: int
    ahead: float = 0.0
    bound: datetime | None = None
    end: datetime | None = None
    silent: bool = False


class Nodes:
    """Whatever happens to pods, at the one true time."""

    def __init__(self) -> None:
        self.time: datetime = NOW
        self.pods: dict[str, Object] = {}
        self.truth: dict[str, Truth] = {}
        self.ids = itertools.count(1)

    def owner(self, pod: Object) -> str:
        owners = pod["metadata"].get("ownerReferences", [])
        return str(owners[0]["uid"]) if owners else ""

    def create_pod(self, child: Object) -> None:
        """Make a pod, unless its name is taken."""
        if any(pod["metadata"]["name"] == child["metadata"]["name"] for pod in self.pods.values()):
            return
        pod, uid = deepcopy(child), f"pod-{next(self.ids)}"
        waits = {"type": "PodScheduled", "status": "False", "message": "no node is free"}
        pod["metadata"] |= {"uid": uid, "creationTimestamp": stamp(self.time)}
        pod["status"] = {"phase": "Pending", "conditions": [waits]}
        labels = pod["metadata"]["labels"]
        self.pods[uid] = pod
        self.truth[uid] = Truth(
            uid,
            labels[names.RUN_LABEL],
            labels[names.ROLE_LABEL],
            int(labels[names.ATTEMPT_LABEL]),
            int(labels[names.RANK_LABEL]),
        )

    def delete_pod(self, uid: str, grace: float | None = None) -> None:
        """Ask a pod to go; asking again can only shorten its grace."""
        if uid not in self.pods:
            return
        pod = self.pods[uid]
        wait = pod["spec"]["terminationGracePeriodSeconds"] if grace is None else grace
        until, before = self.time + seconds(wait), parse_time(pod["metadata"].get("deletionTimestamp"))
        pod["metadata"]["deletionTimestamp"] = stamp(min(until, before) if before else until)
        self.collect()

    def collect(self) -> None:
        """What is being deleted, does not run and has no finalizer is gone."""
        for uid, pod in list(self.pods.items()):
            truth = self.truth[uid]
            ended = truth.bound is None or truth.end is not None
            if "deletionTimestamp" in pod["metadata"] and not pod["metadata"].get("finalizers") and ended:
                del self.pods[uid]

    def is_of(self, pod: Object, uid: str, role: str, attempt: str) -> bool:
        labels = pod["metadata"]["labels"]
        return (labels[names.RUN_LABEL], labels[names.ROLE_LABEL], labels[names.ATTEMPT_LABEL]) == (uid, role, attempt)

    def bind(self, pod: Object, ahead: float = 0.0) -> None:
        """The scheduler finds a node, whose clock is `ahead`, and its kubelet starts the pod."""
        truth = self.truth[pod["metadata"]["uid"]]
        truth.bound, truth.ahead = self.time, ahead
        pod["spec"]["nodeName"] = f"node-of-{truth.uid}"
        pod["status"] = {
            "phase": "Running",
            "startTime": stamp(self.time + seconds(ahead)),
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(self.time)}],
            "containerStatuses": [{"name": pod["metadata"]["labels"][names.ROLE_LABEL], "state": {"running": {}}}],
        }

    def end(self, pod: Object, outcome: Outcome | None, code: int = 0) -> None:
        """The pod's container ends, and leaves its outcome, or nothing where it was killed."""
        truth = self.truth[pod["metadata"]["uid"]]
        truth.end = self.time
        gone = {"finishedAt": stamp(self.time + seconds(truth.ahead)), "exitCode": code}
        gone |= {"message": outcome.termination_message()} if outcome else {}
        done = outcome is not None and outcome.result == "Succeeded"
        pod["status"]["phase"] = "Succeeded" if done else "Failed"
        pod["status"]["containerStatuses"][0]["state"] = {"terminated": gone}
        self.collect()

    def publish(self) -> None:
        """Pods that publish do, at once."""
        for uid, pod in list(self.pods.items()):
            if self.truth[uid].role == "publish" and self.truth[uid].end is None:
                self.bind(pod)
                self.end(pod, published(run_file(pod).publish))

    def lose(self, pod: Object) -> None:
        """The pod's node falls silent; after a minute its pods are asked to go, which nobody hears."""
        truth = self.truth[pod["metadata"]["uid"]]
        truth.silent, truth.end = True, self.time

    def trainers(self, uid: str) -> list[Truth]:
        """Return what is true of a run's trainer pods, of those that are gone, too."""
        return [truth for truth in self.truth.values() if (truth.run, truth.role) == (uid, "trainer")]

    def pods_that_run(self) -> bool:
        """Whether any pod runs, or will."""
        return any(self.truth[uid].end is None for uid in self.pods)
