"""Plans an Adapter's next move: a pod that hashes its files again, whenever nobody has yet, or somebody wants it newer.

Nothing but its pods and its status says how far it is: whoever looks next, in whatever process, goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from halo_api.adapter import Adapter, AdapterSpec, AdapterStatus, Verification
from halo_api.conditions import Condition, ConditionType, Reason, condition_of
from halo_api.receipt_check import Verifier
from halo_api.report import VerificationReport
from halo_operator.plan import conditions
from halo_operator.plan.conditions import Facts, stamp
from halo_operator.plan.moves import RECHECK_SECONDS
from halo_operator.plan.pod_view import alive, is_superseded, parse_time, seconds_until_lost
from halo_operator.plan.verdict import Judgement, judge, lineage, what_would_do
from halo_operator.plan.verify_pod import verify_pod
from halo_operator.plan.world import Environment, Meta, Note, Plan, PodRef, PodView

AdapterPlan = Plan[AdapterStatus]
T = ConditionType
TYPES = (T.VERIFIED, T.READY)

FIRST_DELAY_SECONDS = 10.0
LONGEST_DELAY_SECONDS = 600.0
# A pod that has a node and does not run for this long is worth a word: its claim can't be mounted, or its image is large.
SLOW_START_SECONDS = 60.0


@dataclass(frozen=True)
class AdapterWorld:
    """Everything that decides what happens next to an Adapter."""

    meta: Meta
    spec: AdapterSpec
    status: AdapterStatus
    pods: tuple[PodView, ...]
    environment: Environment
    # The envelope on the Adapter.
    receipt: str | None = None
    # A verification that began before this is too old for somebody.
    wanted: datetime | None = None
    # What only a judgement needs: the public keys, and the Adapter of the parent's name.
    keys: Mapping[str, Verifier] = field(default_factory=dict)
    parent: Adapter | None = None


def plan_adapter(world: AdapterWorld, now: datetime) -> AdapterPlan:
    """Return what to do next. A verification that has begun is ended, also if nobody wants it any more."""
    if world.meta.deleting:
        return Plan(delete=alive(world.pods))
    pods = unread(world)
    over = alive(p for p in world.pods if p not in pods)
    if told := to_judge(world):
        return judged(world, *told, over, now)
    if pods:
        return follow(world, pods, over, now)
    if is_due(world):
        return start(world, 1, over, now)
    return written(world, {}, None, now, delete=over)


def to_judge(world: AdapterWorld) -> tuple[PodView, VerificationReport] | None:
    """Return the pod that has told what the files are, and what it told."""
    told = [(p, p.outcome.verification) for p in unread(world) if p.ended and p.outcome and p.outcome.verification]
    return max(told, key=lambda one: one[0].created_at) if told else None


def unread(world: AdapterWorld) -> tuple[PodView, ...]:
    """Return the adapter's own pods whose word is not in the status yet, by their attempt."""
    last = began(world.status)
    mine = [p for p in world.pods if p.owner_uid == world.meta.uid and (last is None or p.created_at > last)]
    return tuple(sorted(mine, key=lambda p: (p.attempt, p.created_at)))


def began(status: AdapterStatus) -> datetime | None:
    """Return when the last verification that ended began."""
    return parse_time(status.verification.started_at) if status.verification else None


def is_due(world: AdapterWorld) -> bool:
    """Whether another verification is needed: what was begun and not settled is, too."""
    last, said = began(world.status), condition_of(world.status.conditions, T.VERIFIED)
    if last is None or said is None or said.status == "Unknown":
        return True
    return world.wanted is not None and last < world.wanted


def start(world: AdapterWorld, attempt: int, over: tuple[PodRef, ...], now: datetime) -> AdapterPlan:
    """Make the pod of an attempt; what was wrong with the one before, or what refused it, stays said until one runs."""
    since = world.status.verification.started_at if world.status.verification else ""
    pod = verify_pod(world.meta, world.spec, since, attempt, world.environment)
    plan = going(world, now, over, wait=RECHECK_SECONDS if world.status.waiting else None, as_before=True)
    return replace(plan, create=(pod,))


def follow(world: AdapterWorld, pods: tuple[PodView, ...], over: tuple[PodRef, ...], now: datetime) -> AdapterPlan:
    """Say how the pod at hand is; one that has failed is followed by another after a while."""
    last = pods[-1]
    over += alive(pods[:-1])
    if last.ended:
        return failed(world, last, over, now)
    if last.deleting_since:
        return going(world, now, over, wait=seconds_until_lost((last,), now), as_before=True)
    waits = (now - last.bound_at).total_seconds() if last.bound_at and not last.running else 0.0
    if waits >= world.environment.start_timeout_seconds or is_superseded(last, world.environment):
        # Another node may do, or the image of today.
        return start(world, last.attempt + 1, (*over, last.ref), now)
    if last.blocked and last.blocked_reason:
        wait = RECHECK_SECONDS if last.bound_at else None
        return stuck(world, Reason(last.blocked_reason), f"pod {last.ref.name}: {last.blocked}", now, over, wait)
    if waits >= SLOW_START_SECONDS:
        words = (
            f"pod {last.ref.name}: found it on node {last.node} and not running after a minute, as when its claim can't be "
            f"mounted or its image is large; kubectl describe pod {last.ref.name} has more"
        )
        return stuck(world, Reason.NOT_STARTED, words, now, over, RECHECK_SECONDS)
    wait = SLOW_START_SECONDS - waits if last.bound_at and not last.running else None
    return going(world, now, over, wait, as_before=last.attempt > 1)


def failed(world: AdapterWorld, last: PodView, over: tuple[PodRef, ...], now: datetime) -> AdapterPlan:
    """Try again after a while, ever longer: what could not be read says nothing of what is there."""
    if not is_due(world):
        return written(world, {}, None, now, delete=(*over, *alive((last,))))
    delay = min(FIRST_DELAY_SECONDS * 2.0 ** min(last.attempt - 1, 30), LONGEST_DELAY_SECONDS)
    left = delay - (now - (last.finished_at or last.created_at)).total_seconds()
    reason, message = (last.outcome.reason, last.outcome.message) if last.outcome else (Reason.CRASHED, "")
    if left > 0:
        words = f"{world.spec.uri}: found no way to hash its files: {message or reason}; it is tried again"
        return stuck(world, reason, words, now, over, left)
    return start(world, last.attempt + 1, (*over, *alive((last,))), now)


def judged(
    world: AdapterWorld, pod: PodView, report: VerificationReport, over: tuple[PodRef, ...], now: datetime
) -> AdapterPlan:
    """Write down what the pod found, and what the receipt says to it."""
    found = judge(world.meta, world.spec, world.receipt, world.keys, report)
    facts = wrong(found, world.spec) if found.wrong else right(found, world.spec)
    _, reason, words = facts[T.VERIFIED]
    status = world.status.model_copy(
        update={
            "verification": Verification(
                started_at=stamp(pod.created_at),
                finished_at=stamp(pod.finished_at or now),
                digest=report.digest,
                key_id=found.key_id,
            ),
            "lineage": lineage(world.spec, found.receipt, world.status.lineage, world.parent),
            "waiting": None,
        }
    )
    note = Note("Warning" if found.wrong else "Normal", reason, words)
    return written(world, facts, status, now, note, delete=(*over, *alive(unread(world))))


def wrong(found: Judgement, spec: AdapterSpec) -> Facts:
    """Something is not as it was published; the first of it is the reason."""
    reason = found.wrong[0][0]
    words = f"{found.message}; {what_would_do(reason, spec)}"
    return {
        T.VERIFIED: ("False", reason, words),
        T.READY: ("False", reason, words),
        T.STALLED: ("True", reason, words),
    }


def right(found: Judgement, spec: AdapterSpec) -> Facts:
    """Everything is as it was published; of an imported adapter nobody can say more than that its files are the same."""
    count = f"{len(spec.files)} files of {sum(file.size for file in spec.files)} bytes are those that were"
    if spec.trained_by is None:
        words = f"{count} imported; it has no receipt, so that it can be served and compared, and never be a parent"
        return {T.VERIFIED: ("False", Reason.NO_RECEIPT, words), T.READY: ("True", Reason.NO_RECEIPT, words)}
    words = f"{count} published, and its receipt is signed by the key {found.key_id}"
    return {T.VERIFIED: ("True", Reason.VERIFIED, words), T.READY: ("True", Reason.VERIFIED, words)}


def going(
    world: AdapterWorld, now: datetime, over: tuple[PodRef, ...], wait: float | None, *, as_before: bool
) -> AdapterPlan:
    """Say that work goes on. A verdict stays until there is another one; `as_before`: so does what held it up so far."""
    said = condition_of(world.status.conditions, T.VERIFIED)
    if said is not None and (said.status != "Unknown" or (as_before and world.status.waiting)):
        waiting = world.status.waiting if said.status == "Unknown" else None
        status = world.status.model_copy(update={"waiting": waiting})
        return written(world, {}, status, now, delete=over, wait=wait)
    words = f"the files at {world.spec.uri} are being hashed again, and then its receipt is checked"
    return written(world, unsettled(Reason.VERIFYING, words), None, now, delete=over, wait=wait)


def stuck(
    world: AdapterWorld, reason: Reason, words: str, now: datetime, over: tuple[PodRef, ...], wait: float | None
) -> AdapterPlan:
    """Say what holds it up: what it was before is no longer known for sure."""
    status = world.status.model_copy(update={"waiting": words})
    return written(world, unsettled(reason, words), status, now, Note("Warning", reason, words), delete=over, wait=wait)


def rejected(world: AdapterWorld, message: str, now: datetime) -> AdapterPlan:
    """Say what refused the pod: a quota or a policy, which may change, so that it is tried again."""
    return stuck(world, Reason.POD_REJECTED, message, now, (), RECHECK_SECONDS)


def unsettled(reason: Reason, words: str) -> Facts:
    """Nobody knows yet."""
    return {
        T.VERIFIED: ("Unknown", reason, words),
        T.READY: ("False", reason, words),
        T.RECONCILING: ("True", reason, words),
    }


def written(
    world: AdapterWorld,
    facts: Facts,
    status: AdapterStatus | None,
    now: datetime,
    note: Note | None = None,
    *,
    delete: tuple[PodRef, ...] = (),
    wait: float | None = None,
) -> AdapterPlan:
    """Return the plan that writes this status, if it is another; without facts the conditions stay as they are."""
    old, generation = world.status, world.meta.generation
    known = facts or conditions.abnormal(old.conditions)
    new = (status or old.model_copy(update={"waiting": None})).model_copy(
        update={
            "conditions": conditions.update(old.conditions, known, generation, now, TYPES),
            "observed_generation": generation,
        }
    )
    moved = said_of(old.conditions) != said_of(new.conditions)
    return Plan(
        status=new if new != old else None,
        delete=delete,
        notes=(note,) if note and moved else (),
        requeue_after=wait,
    )


def said_of(found: list[Condition]) -> tuple[str, str, str] | None:
    """Return what people read of a verdict."""
    said = condition_of(found, T.VERIFIED)
    return (said.status, said.reason, said.message) if said else None
