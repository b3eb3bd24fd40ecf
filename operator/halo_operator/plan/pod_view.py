"""Reads a Pod object into the few facts that plans decide by."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from pydantic import ValidationError

from halo_api.conditions import Reason
from halo_api.report import Outcome
from halo_api.run_file import CA_ANNOTATION
from halo_operator.plan import names
from halo_operator.plan.world import Object, PodRef, PodView

PULL_FAILURES = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
)
CREATE_FAILURES = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
# A deleted pod whose node does not confirm the end this long after its grace period is on a lost node.
LOST_AFTER_SECONDS = 60.0

Blocked = tuple[Literal["Unschedulable", "ImagePullFailed", "PodRejected"], str]


def pod_view(pod: Object, now: datetime) -> PodView:
    """Return the facts of a pod of ours, as of `now`."""
    meta, status = pod["metadata"], pod.get("status", {})
    labels, annotations = meta.get("labels", {}), meta.get("annotations", {})
    # A mesh may have put containers of its own beside ours, which is named for its role.
    containers = {c.get("name"): c for c in status.get("containerStatuses", ())}
    container: Object = containers.get(labels.get(names.ROLE_LABEL)) or next(iter(containers.values()), {})
    state = container.get("state", {})
    terminated = state.get("terminated")
    phase = status.get("phase", "Pending")
    deleting = parse_time(meta.get("deletionTimestamp"))
    bound_at = _bound_at(status)
    lost = deleting is not None and (now - deleting).total_seconds() > LOST_AFTER_SECONDS
    never_ran = deleting is not None and bound_at is None
    ended = bool(terminated) or phase in ("Succeeded", "Failed") or lost or never_ran
    blocked = _blocked(status, state) if not ended else None
    owner = next((o for o in meta.get("ownerReferences", ()) if o.get("controller")), None)
    return PodView(
        ref=PodRef(meta["namespace"], meta["name"], meta["uid"]),
        owner_uid=owner["uid"] if owner else None,
        role=labels.get(names.ROLE_LABEL, ""),
        attempt=int(labels.get(names.ATTEMPT_LABEL, "0")),
        rank=int(labels.get(names.RANK_LABEL, "0")),
        phase=phase,
        created_at=parse_time(meta.get("creationTimestamp")) or now,
        bound_at=bound_at,
        finished_at=_finished_at(terminated, status, deleting) if ended else None,
        deleting_since=deleting,
        running="running" in state and not ended,
        ended=ended,
        outcome=_outcome(terminated, status, lost) if ended else None,
        blocked=blocked[1] if blocked else None,
        blocked_reason=blocked[0] if blocked else None,
        metered=names.METERED_FINALIZER in meta.get("finalizers", ()),
        ca=annotations.get(CA_ANNOTATION),
        base_model=annotations.get(names.BASE_ANNOTATION),
        base_revision=annotations.get(names.REVISION_ANNOTATION),
    )


def seconds_until_lost(pods: Iterable[PodView], now: datetime) -> float | None:
    """Return when to look at pods again that are being deleted: a node that is lost never tells of their end."""
    waits = [
        (pod.deleting_since - now).total_seconds() + LOST_AFTER_SECONDS + 1.0
        for pod in pods
        if pod.deleting_since and not pod.ended
    ]
    return max(min(waits), 1.0) if waits else None


def parse_time(text: str | None) -> datetime | None:
    """Return a Kubernetes time as an aware datetime."""
    return datetime.fromisoformat(text) if text else None


def _bound_at(status: Object) -> datetime | None:
    scheduled = _condition(status, "PodScheduled")
    if scheduled and scheduled.get("status") == "True":
        return parse_time(scheduled.get("lastTransitionTime"))
    return None


def _condition(status: Object, type_: str) -> Object | None:
    return next((c for c in status.get("conditions", ()) if c.get("type") == type_), None)


def _finished_at(terminated: Object | None, status: Object, deleting: datetime | None) -> datetime | None:
    if terminated and terminated.get("finishedAt"):
        return parse_time(terminated["finishedAt"])
    ready = _condition(status, "Ready")
    # A lost pod ends, for us, at the last sign of life that the API server has of it.
    times = [parse_time((ready or {}).get("lastTransitionTime")), _bound_at(status)]
    return max((t for t in times if t), default=deleting)


def _blocked(status: Object, state: Object) -> Blocked | None:
    scheduled = _condition(status, "PodScheduled")
    if scheduled and scheduled.get("status") == "False":
        return "Unschedulable", str(scheduled.get("message") or scheduled.get("reason") or "not scheduled yet")
    waiting = state.get("waiting") or {}
    reason, message = waiting.get("reason", ""), str(waiting.get("message") or "")
    if reason in PULL_FAILURES:
        return "ImagePullFailed", f"{reason}: {message}"
    if reason in CREATE_FAILURES:
        return "PodRejected", f"{reason}: {message}"
    return None


def _outcome(terminated: Object | None, status: Object, lost: bool) -> Outcome:
    if terminated and (outcome := _said(terminated.get("message"))):
        return outcome
    return Outcome(result="Failed", reason=_why(terminated, status, lost), message=_words(terminated, status, lost))


def _said(message: str | None) -> Outcome | None:
    try:
        return Outcome.model_validate_json(message or "")
    except (ValidationError, ValueError):
        return None


def _why(terminated: Object | None, status: Object, lost: bool) -> Reason:
    if terminated and terminated.get("reason") == "OOMKilled":
        return Reason.OUT_OF_MEMORY
    if status.get("reason") == "Evicted":
        return Reason.EVICTED
    if _condition(status, "DisruptionTarget") or (terminated and terminated.get("exitCode") in (137, 143)):
        return Reason.INTERRUPTED
    if lost or status.get("reason") == "NodeLost":
        return Reason.NODE_LOST
    return Reason.CRASHED if terminated else Reason.INTERRUPTED


def _words(terminated: Object | None, status: Object, lost: bool) -> str:
    if terminated and terminated.get("reason") == "OOMKilled":
        return (
            "the container was killed for using more memory than its limit; "
            "lower spec.lora.microBatch or maxLength, or raise perGpu.memory of the GpuClass"
        )
    if status.get("message"):
        return str(status["message"])
    if terminated:
        said = str(terminated.get("message") or "").strip()
        return f"the container ended with exit code {terminated.get('exitCode')}" + (f": {said[:500]}" if said else "")
    return "the node stopped answering" if lost else "the pod was deleted before it ended"


def all_of(pods: list[Object], now: datetime) -> tuple[PodView, ...]:
    """Return the views of several pods, in the order of attempt, role and rank."""
    return tuple(sorted((pod_view(pod, now) for pod in pods), key=lambda p: (p.attempt, p.role, p.rank, p.ref.name)))
