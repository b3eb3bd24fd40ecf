"""Answers the API server's AdmissionReviews: the reconciler's own checks at apply time, and the quote as a warning.

It is advice that comes early. Whatever passes it, or goes past it, the reconciler checks again; it never changes an object.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from halo_api.conditions import Reason
from halo_api.estimate import Estimate
from halo_api.grpo_run import GrpoRunSpec
from halo_api.training_job import TrainingJobSpec, TrainingJobStatus
from halo_operator import metrics
from halo_operator.cluster import ClusterError
from halo_operator.gather import Unreadable
from halo_operator.grpo import GrpoLooks, unreadable
from halo_operator.plan.admission import ADMISSION
from halo_operator.plan.budget import RAISE, quote_of
from halo_operator.plan.grpo.plan import grpo_answer
from halo_operator.plan.pod_view import parse_time
from halo_operator.plan.quote import quote_lines
from halo_operator.plan.refusal import Check, Refusal
from halo_operator.plan.world import Catalog, Environment, Meta, RunWorld

log = logging.getLogger(__name__)

Object = dict[str, Any]
PATH = "/validate"
# Less than the configuration's timeoutSeconds, so that what is answered late is our answer.
ANSWER_SECONDS = 4.0
# The API server cuts warnings off after 4096 characters in all, and then each of them at 256.
WARNING_LENGTH = 250
WARNINGS = 16
# metav1.StatusReason of each code that a check has
REASONS = {400: "BadRequest", 402: "PaymentRequired", 403: "Forbidden", 404: "NotFound", 429: "TooManyRequests"}


class BadReview(ValueError):
    """The body is no AdmissionReview of a version that we answer."""


@dataclass(frozen=True)
class Asked:
    """What an AdmissionReview asks."""

    uid: str
    operation: str
    kind: str
    namespace: str
    name: str
    body: Object
    before: Object = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """Allowed unless there is a refusal."""

    refusal: Refusal | None = None
    warnings: tuple[str, ...] = ()


ALLOWED = Decision()
Judge = Callable[[Asked], Awaitable[Decision]]
Look = Callable[[str, str, TrainingJobSpec], Awaitable[Catalog]]


class Webhook:
    """The HTTP side; every replica answers, whether it leads or not."""

    def __init__(self, judges: Mapping[str, Judge]) -> None:
        """`judges` has one for each kind that is checked; other kinds pass."""
        self._judges = judges

    async def answer(self, request: web.Request) -> web.Response:
        """Answer one review; what is no answer (400, 500, 503) leaves it to the configuration's failurePolicy."""
        started, asked, result = time.monotonic(), None, "error"
        try:
            asked = asked_of(await request.read())
            async with asyncio.timeout(ANSWER_SECONDS):
                decision = await self.decide(asked)
            result = "refused" if decision.refusal else "allowed"
            return web.json_response(review_of(asked.uid, decision))
        except BadReview as error:
            return web.Response(status=400, text=str(error))
        except (ClusterError, TimeoutError) as error:
            log.warning("webhook: not answered: %s %s", type(error).__name__, error)
            return web.Response(status=503, text="the API server did not say what the checks need")
        except Exception:
            log.exception("webhook: not answered")
            return web.Response(status=500, text="the checks failed; the operator's log has more")
        finally:
            metrics.ADMISSIONS.labels(asked.kind if asked and asked.kind in self._judges else "", result).inc()
            metrics.ADMISSION_SECONDS.observe(time.monotonic() - started)

    async def decide(self, asked: Asked) -> Decision:
        """Decide about one object: a new one, or one whose budget was raised; everything else passes."""
        judge = self._judges.get(asked.kind)
        return await judge(asked) if judge and concerns_us(asked) else ALLOWED


def training_jobs(look: Look, environment: Callable[[], Environment]) -> Judge:
    """Return the judge of TrainingJobs, which looks at the same catalog as the reconciler."""

    async def judge(asked: Asked) -> Decision:
        try:
            spec = TrainingJobSpec.model_validate(asked.body.get("spec", {}))
            status = TrainingJobStatus.model_validate(asked.body.get("status", {}))
        except ValidationError as error:
            return Decision(unreadable(error))
        try:
            catalog = await look(asked.namespace, asked.name, spec)
        except Unreadable as error:
            return Decision(warnings=(f"waits: {error.refusal.message}",))
        world = RunWorld(meta_of(asked), spec, status, (), environment(), catalog)
        decision = decided(world, ADMISSION if asked.operation == "CREATE" else RAISE)
        return quoted(decision, quote_of(world) if may_be_quoted(decision) else None)

    return judge


def grpo_runs(looks: GrpoLooks, now: Callable[[], datetime]) -> Judge:
    """Return the judge of GrpoRuns; what it does not use as it was asked, it says in any case."""

    async def judge(asked: Asked) -> Decision:
        try:
            spec = GrpoRunSpec.model_validate(asked.body.get("spec", {}))
        except ValidationError as error:
            return Decision(unreadable(error))
        try:
            answer = grpo_answer(await looks.world_of(meta_of(asked), now(), spec))
        except Unreadable as error:
            return Decision(warnings=(f"waits: {error.refusal.message}",))
        waits = (f"waits: {answer.refusal.message}",) if answer.refusal.pending else ()
        decision = Decision(None if waits else answer.refusal, (*answer.warnings, *waits))
        return quoted(decision, answer.estimate)

    return judge


def quoted(decision: Decision, estimate: Estimate | None) -> Decision:
    """Put the quote before the warnings of a run that may start, or could if its kind of training were built."""
    if estimate is None or not may_be_quoted(decision):
        return decision
    return replace(decision, warnings=(*quote_lines(estimate), *decision.warnings))


def may_be_quoted(decision: Decision) -> bool:
    """Whether nothing is wrong with the run itself."""
    return decision.refusal is None or decision.refusal.reason == Reason.NOT_YET_AVAILABLE


def decided(world: RunWorld, checks: Iterable[Check]) -> Decision:
    """Refuse what can't become right; what may still come is a warning, since the run will wait for it."""
    found = [refusal for check in checks if (refusal := check(world))]
    wrong = next((refusal for refusal in found if not refusal.pending), None)
    return Decision(wrong) if wrong else Decision(warnings=tuple(f"waits: {pending.message}" for pending in found))


def concerns_us(asked: Asked) -> bool:
    """Whether there is something to check: a create, or a budget that an update raises, never of an object that goes."""
    if "deletionTimestamp" in asked.body.get("metadata", {}):
        return False
    return asked.operation == "CREATE" or (
        asked.operation == "UPDATE" and budget_of(asked.body) > budget_of(asked.before)
    )


def budget_of(body: Object) -> float:
    """Return a run's budget in H100-hours, 0 without one."""
    return float((body.get("spec", {}).get("budget") or {}).get("h100Hours") or 0)


def asked_of(data: bytes) -> Asked:
    """Read a review; raises BadReview when it is none."""
    try:
        review = json.loads(data)
        if review["apiVersion"] != "admission.k8s.io/v1" or review["kind"] != "AdmissionReview":
            raise BadReview("found no AdmissionReview of admission.k8s.io/v1")
        request = review["request"]
        body = request.get("object") or {}
        meta = body.get("metadata", {})
        return Asked(
            uid=str(request["uid"]),
            operation=request["operation"],
            kind=request["kind"]["kind"],
            namespace=request.get("namespace", ""),
            name=request.get("name") or meta.get("name", ""),
            body=body,
            before=request.get("oldObject") or {},
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise error if isinstance(error, BadReview) else BadReview("found no AdmissionReview with a request") from None


def meta_of(asked: Asked) -> Meta:
    """Return the identity of the object; a new one has its uid and its time already."""
    meta = asked.body.get("metadata", {})
    return Meta(
        kind=asked.kind,
        namespace=asked.namespace,
        name=asked.name,
        uid=meta.get("uid", ""),
        generation=meta.get("generation", 1),
        created_at=parse_time(meta.get("creationTimestamp")),
    )


def review_of(uid: str, decision: Decision) -> Object:
    """Return the review that answers."""
    response: Object = {"uid": uid, "allowed": decision.refusal is None}
    if decision.refusal:
        response["status"] = status_of(decision.refusal)
    if decision.warnings:
        response["warnings"] = [one_line(warning) for warning in decision.warnings[:WARNINGS]]
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def status_of(refusal: Refusal) -> Object:
    """Return a refusal as the API server passes it on: the code, the words, and our reason as the cause."""
    where, _, _ = refusal.message.partition(": ")
    cause = {"reason": refusal.reason, "message": refusal.message, "field": where}
    return {
        "code": refusal.code,
        "reason": REASONS.get(refusal.code, "BadRequest"),
        "message": f"{refusal.message} ({refusal.reason})",
        "details": {"causes": [cause]},
    }


def one_line(text: str) -> str:
    """Return a warning that the API server passes on whole."""
    line = " ".join(text.split())
    return line if len(line) <= WARNING_LENGTH else line[: WARNING_LENGTH - 1] + "…"
