"""Reads a Pod object into the few facts that plans decide by; its times are told on the API server's clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Literal

from pydantic import ValidationError

from halo_api.conditions import Reason
from halo_api.report import Deadline, Outcome
from halo_api.run_file import CA_ANNOTATION, DEADLINE_ANNOTATION
from halo_operator.plan import names
from halo_operator.plan.world import Environment, Object, PodRef, PodView

PULL_FAILURES = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
)
CREATE_FAILURES = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
# A deleted pod whose node does not confirm the end this long after its grace period is on a lost node.
LOST_AFTER_SECONDS = 60.0
# A kubelet takes a pod over within seconds of its binding; what is outside of this is the clock of its node.
TAKEN_OVER_SECONDS = (-2.0, 30.0)

Blocked = tuple[Literal["Unschedulable", "ImagePullFailed", "PodRejected"], str]


def pod_view(pod: Object, now: datetime, sign: datetime | None = None) -> PodView:
    """Return the facts of a pod of ours, as of `now`; `sign` is the last sign of life of one that is lost."""
    meta, status = pod["metadata"], pod.get("status", {})
    labels, annotations = meta.get("labels", {}), meta.get("annotations", {})
    # A mesh may have put containers of its own beside ours, which is named for its role.
    containers = {c.get("name"): c for c in status.get("containerStatuses", ())}
    container: Object = containers.get(labels.get(names.ROLE_LABEL)) or next(iter(containers.values()), {})
    asked = {c.get("name"): c for c in pod.get("spec", {}).get("containers", ())}
    wanted: Object = asked.get(labels.get(names.ROLE_LABEL)) or {}
    state = container.get("state", {})
    terminated = state.get("terminated")
    phase = status.get("phase", "Pending")
    deleting = parse_time(meta.get("deletionTimestamp"))
    bound_at = _bound_at(status)
    over = phase in ("Succeeded", "Failed")
    overdue = deleting is not None and (now - deleting).total_seconds() > LOST_AFTER_SECONDS
    lost = bound_at is not None and not terminated and (_forsaken(status, state) if over else overdue)
    never_ran = deleting is not None and bound_at is None
    ended = bool(terminated) or over or lost or never_ran
    offset = _clock_offset(status, bound_at)
    blocked = _blocked(status, state) if not ended else None
    owner = next((o for o in meta.get("ownerReferences", ()) if o.get("controller")), None)
    return PodView(
        ref=PodRef(meta["namespace"], meta["name"], meta["uid"]),
        owner_uid=owner["uid"] if owner else None,
        role=labels.get(names.ROLE_LABEL, ""),
        attempt=int(labels.get(names.ATTEMPT_LABEL, "0")),
        rank=int(labels.get(names.RANK_LABEL, "0")),
        phase=phase,
        incarnation=int(labels.get(names.INCARNATION_LABEL, "1")),
        ready=(_condition(status, "Ready") or {}).get("status") == "True" and not ended,
        created_at=parse_time(meta.get("creationTimestamp")) or now,
        bound_at=bound_at,
        finished_at=_finished_at(terminated, status, bound_at or deleting, offset, sign if lost else None)
        if ended
        else None,
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
        run_uid=labels.get(names.RUN_LABEL),
        image=wanted.get("image"),
        image_pull_policy=wanted.get("imagePullPolicy"),
        image_id=container.get("imageID") or None,
        node=pod.get("spec", {}).get("nodeName"),
        lost=lost,
        clock_offset=offset,
        deadline=_deadline(annotations.get(DEADLINE_ANNOTATION)),
    )


def alive(pods: Iterable[PodView]) -> tuple[PodRef, ...]:
    """Return the pods that are not being deleted yet."""
    return tuple(pod.ref for pod in pods if pod.deleting_since is None)


def is_superseded(pod: PodView, env: Environment) -> bool:
    """Whether a pod waits for an image that is not the operator's any more: another pod may find today's."""
    today = (env.trainer_image, env.image_pull_policy)
    return pod.blocked_reason == "ImagePullFailed" and (pod.image, pod.image_pull_policy) != today


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


def _forsaken(status: Object, state: Object) -> bool:
    """Whether somebody else than its node said that the pod is over."""
    target = _condition(status, "DisruptionTarget") or {}
    return "running" in state or target.get("reason") == "DeletionByPodGC"


def _clock_offset(status: Object, bound_at: datetime | None) -> float:
    taken_over = parse_time(status.get("startTime"))
    if taken_over is None or bound_at is None:
        return 0.0
    found = (taken_over - bound_at).total_seconds()
    least, most = TAKEN_OVER_SECONDS
    return 0.0 if least <= found <= most else found


def _finished_at(
    terminated: Object | None, status: Object, start: datetime | None, offset: float, sign: datetime | None
) -> datetime | None:
    """Return when the pod ended, never before its start: as its node said, or else at its last sign of life."""
    ahead = timedelta(seconds=offset)
    finished = parse_time((terminated or {}).get("finishedAt"))
    times = [finished - ahead] if finished else [sign] if sign else _shown(status, ahead)
    return max([*times, *([start] if start else [])], default=None)


def _shown(status: Object, ahead: timedelta) -> list[datetime]:
    """Return when the pod's status last changed, as its node or a controller wrote it down."""
    found = []
    for condition in (_condition(status, "Ready"), _condition(status, "DisruptionTarget")):
        at = parse_time((condition or {}).get("lastTransitionTime"))
        if condition is None or at is None:
            continue
        # A kubelet says why a pod is not ready; the controller that calls the pods of a silent node not ready does not.
        told = condition.get("status") == "True" or bool(condition.get("reason"))
        if condition["type"] == "Ready":
            found.append(at - ahead if told else at)
        elif condition.get("reason") == "TerminationByKubelet":
            found.append(at - ahead)
    return found


def _deadline(text: str | None) -> Deadline | None:
    try:
        return Deadline.model_validate_json(text or "")
    except ValidationError:
        return None


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


def heartbeat_of(lease: Object, view: PodView) -> datetime | None:
    """Return when the pod's node last renewed its Lease, on the API server's clock."""
    renewed = parse_time(lease.get("spec", {}).get("renewTime"))
    return renewed - timedelta(seconds=view.clock_offset) if renewed else None


def all_of(
    pods: list[Object], now: datetime, signs: Mapping[str, datetime] = MappingProxyType({})
) -> tuple[PodView, ...]:
    """Return the views of several pods, in the order of attempt, role and rank.

    `signs` are the last signs of life of lost pods by their uid, on the API server's clock: reports, their node's heartbeat.
    """
    views = (pod_view(pod, now, signs.get(pod["metadata"]["uid"])) for pod in pods)
    return tuple(sorted(views, key=lambda p: (p.attempt, p.role, p.rank, p.incarnation, p.ref.name)))
