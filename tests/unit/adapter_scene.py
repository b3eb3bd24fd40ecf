"""An Adapter as the API server has it, its pods, and an operator that can die after each of its writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from halo_api.adapter import Adapter, AdapterSpec, AdapterStatus
from halo_api.conditions import Condition, ConditionType, Reason, condition_of
from halo_api.digests import bytes_digest, files_digest
from halo_api.report import AdapterConfig, FileProblem, Outcome, VerificationReport
from halo_api.run_status import ReceiptRef
from halo_operator.plan.pod_view import pod_view
from halo_operator.plan.verify import AdapterPlan, AdapterWorld, plan_adapter, rejected
from halo_operator.plan.world import Meta, Object
from halo_operator.signing import sign, verifier_of
from tests.unit import builders as b
from tests.unit.builders_receipt import KEY, adapter, contents, files, statement

ENVELOPE = sign(statement(), KEY).decode()
KEYS = dict([verifier_of(KEY.public_pem)])
T = ConditionType


def published(envelope: str = ENVELOPE, **changes: Any) -> AdapterSpec:
    facts = {"receipt": ReceiptRef(digest=bytes_digest(envelope.encode()))} | changes
    return adapter(contents()).model_copy(update=facts)


def config(**changes: Any) -> AdapterConfig:
    return AdapterConfig(**({"base": "smol", "revision": "rev-0001", "rank": 16, "alpha": 32} | changes))


def found(*problems: tuple[str, str], digest: str = "", **of_config: Any) -> Outcome:
    """What the pod says of the files."""
    report = VerificationReport(
        digest=digest or files_digest(files(contents())),
        problems=tuple(FileProblem(problem=problem, message=message) for problem, message in problems),
        config=config(**of_config),
    )
    return Outcome(result="Succeeded", reason=Reason.SUCCEEDED, verification=report)


class Scene:
    """The Adapter as the API server has it, its pods, and an operator that can die after each write."""

    def __init__(self, spec: AdapterSpec | None = None, receipt: str | None = ENVELOPE) -> None:
        self.now = b.NOW
        self.spec = spec or published()
        self.receipt = receipt
        self.meta = Meta(kind="Adapter", namespace="team", name="run", uid="adapter-1", generation=1)
        self.status = AdapterStatus(observed_generation=-1)
        self.pods: dict[str, Object] = {}
        self.made: list[Object] = []
        self.wanted: datetime | None = None
        self.keys = dict(KEYS)
        self.parent: Adapter | None = None
        self.writes = 0

    @property
    def world(self) -> AdapterWorld:
        views = tuple(pod_view(pod, self.now) for pod in self.pods.values())
        known = (self.receipt, self.wanted, self.keys, self.parent)
        return AdapterWorld(self.meta, self.spec, self.status, views, b.ENVIRONMENT, *known)

    def look(self, later: float = 0, refused: str = "", dies_after: int | None = None) -> AdapterPlan:
        """One look of the operator, its writes in the applier's order."""
        self.now += timedelta(seconds=later)
        plan = plan_adapter(self.world, self.now)
        for done, write in enumerate(self.hands(plan, refused)):
            if done == dies_after:
                break
            write()
            self.writes += 1
        return plan

    def hands(self, plan: AdapterPlan, refused: str = "") -> Iterator[Callable[[], object]]:
        if plan.status is not None:
            yield lambda: setattr(self, "status", plan.status)
        for ref in plan.delete:
            yield lambda ref=ref: self.pods.pop(ref.uid)
        for body in plan.create:
            if refused:
                told = rejected(self.world, refused, self.now)
                yield lambda told=told: setattr(self, "status", told.status or self.status)
            else:
                yield lambda body=body: self.make(body)

    def make(self, body: Object) -> None:
        name = body["metadata"]["name"]
        # A name that is taken by ours is no error to the applier.
        if name not in {pod["metadata"]["name"] for pod in self.pods.values()}:
            uid = f"pod-{len(self.made)}"
            meta = body["metadata"] | {"uid": uid, "creationTimestamp": self.now.isoformat()}
            self.pods[uid] = body | {"metadata": meta, "status": {"phase": "Pending"}}
            self.made.append(body)

    @property
    def pod(self) -> Object:
        (one,) = self.pods.values()
        return one

    def bind(self) -> None:
        at = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.now.isoformat()}
        self.pod["spec"]["nodeName"] = "node-0"
        self.pod["status"]["conditions"] = [at]

    def end(self, outcome: Outcome) -> None:
        """The pod's container has ended and left this."""
        self.bind()
        over = {"exitCode": 0, "finishedAt": self.now.isoformat(), "message": outcome.termination_message()}
        state = {"name": "verify", "state": {"terminated": over}}
        self.pod["status"] |= {"phase": "Succeeded", "containerStatuses": [state]}

    def said(self, type_: str = T.VERIFIED) -> Condition:
        one = condition_of(self.status.conditions, type_)
        assert one, f"no condition {type_}"
        return one

    @property
    def verdict(self) -> tuple[str, str, str]:
        """Status and reason of Verified, and the status of Ready."""
        return self.said().status, self.said().reason, self.said(T.READY).status

    def verify(self, outcome: Outcome | None = None) -> tuple[str, str, str]:
        """A whole verification, from nothing to the verdict."""
        self.look()
        self.end(outcome or found())
        self.look(later=5)
        assert self.pods == {}
        return self.verdict
