"""Builds the conditions of each state a run, or a data set, can be in; the STATE column is the reason of Ready."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from halo_api.conditions import Condition, ConditionType, Reason, condition_of

T = ConditionType
# A status may hold reasons of another version of the operator: they are kept as they are.
Fact = tuple[str, str, str]
Facts = Mapping[ConditionType, Fact]

RUN_TYPES = (T.ACCEPTED, T.RESERVED, T.SCHEDULED, T.RUNNING, T.PUBLISHED, T.SUSPENDED, T.COMPLETE, T.FAILED, T.READY)
# Present only when true, as kstatus expects them.
ABNORMAL = (T.RECONCILING, T.STALLED, T.DISK_PRESSURE, T.ROLLOUT_DEGRADED)


def stamp(now: datetime) -> str:
    """Return a time as Kubernetes writes it."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def update(
    old: Sequence[Condition], facts: Facts, generation: int, now: datetime, known: Sequence[ConditionType]
) -> list[Condition]:
    """Return the new list: facts on top of what was, every known type there, transition times kept while nothing flips."""
    result = []
    for type_ in (*known, *ABNORMAL):
        before = condition_of(list(old), type_)
        fact = facts.get(type_)
        if fact is None:
            if type_ in ABNORMAL:
                continue
            fact = (before.status, before.reason, before.message) if before else ("Unknown", Reason.NOT_STARTED, "")
        status, reason, message = fact
        since = before.last_transition_time if before and before.status == status else stamp(now)
        result.append(
            Condition(
                type=type_,
                status=status,
                reason=reason,
                message=message,
                observed_generation=generation,
                last_transition_time=since,
            )
        )
    return result


def abnormal(found: Sequence[Condition]) -> dict[ConditionType, Fact]:
    """Return the facts that go on being true though nothing new is known; without them these conditions would go."""
    return {T(c.type): (c.status, c.reason, c.message) for c in found if c.type in ABNORMAL}


def is_rejected(found: Condition | None) -> bool:
    """Whether the condition says that the API server refused the pods."""
    return found is not None and found.status == "False" and found.reason == Reason.POD_REJECTED


def working(state: Reason, message: str, facts: Facts | None = None) -> dict[ConditionType, Fact]:
    """Return the facts of a run that is on its way."""
    return {
        T.READY: ("False", state, message),
        T.RECONCILING: ("True", state, message),
        T.COMPLETE: ("False", state, message),
        T.FAILED: ("False", state, ""),
        T.PUBLISHED: ("False", state, ""),
        T.SUSPENDED: ("False", Reason.NOT_SUSPENDED, ""),
        **(facts or {}),
    }


def waiting(reason: Reason, message: str) -> dict[ConditionType, Fact]:
    """The run waits for something that may still appear."""
    return working(Reason.WAITING, message, {T.ACCEPTED: ("Unknown", reason, message)})


def hold_pending(message: str) -> dict[ConditionType, Fact]:
    """The run waits for its budget to be held."""
    return waiting(Reason.HOLD_PENDING, message) | {T.RESERVED: ("False", Reason.HOLD_PENDING, message)}


def reserved(held: str | None, why_not: str = "") -> dict[ConditionType, Fact]:
    """The run's budget is held, or there is nothing to hold."""
    if held is None:
        return {T.RESERVED: ("True", Reason.NOTHING_HELD, why_not)}
    return {T.RESERVED: ("True", Reason.BUDGET_HELD, f"{held} are held")}


def settled(words: str | None) -> dict[ConditionType, Fact]:
    """What was held is charged or released; a run that never held anything says nothing of it."""
    return {} if words is None else {T.RESERVED: ("False", Reason.SETTLED, words)}


def ended_badly(state: Reason, reason: Reason, message: str) -> dict[ConditionType, Fact]:
    """The run failed or was refused: Failed and Stalled together, so that every GitOps tool calls it failed."""
    return {
        T.READY: ("False", state, message),
        T.FAILED: ("True", reason, message),
        T.STALLED: ("True", reason, message),
        T.COMPLETE: ("False", state, ""),
        T.RUNNING: ("False", reason, ""),
    }


def refused(reason: Reason, message: str) -> dict[ConditionType, Fact]:
    """The run can never be right."""
    return {
        **ended_badly(Reason.REFUSED, reason, message),
        T.ACCEPTED: ("False", reason, message),
        T.RESERVED: ("False", Reason.REFUSED, ""),
        T.SCHEDULED: ("False", Reason.REFUSED, ""),
        T.PUBLISHED: ("False", Reason.REFUSED, ""),
        T.SUSPENDED: ("False", Reason.NOT_SUSPENDED, ""),
    }


def cancelled(message: str) -> dict[ConditionType, Fact]:
    """The run was deleted before its end."""
    return {**ended_badly(Reason.CANCELLED, Reason.CANCELLED, message), T.PUBLISHED: ("False", Reason.CANCELLED, "")}


def failed(reason: Reason, message: str) -> dict[ConditionType, Fact]:
    """The run ended without an adapter."""
    return {**ended_badly(Reason.FAILED, reason, message), T.PUBLISHED: ("False", Reason.FAILED, "")}


def succeeded(message: str, reason: Reason = Reason.SUCCEEDED) -> dict[ConditionType, Fact]:
    """The adapter is published: after the last step, or with the last checkpoint that the budget allowed."""
    return {
        T.READY: ("True", reason, message),
        T.COMPLETE: ("True", reason, message),
        T.FAILED: ("False", reason, ""),
        T.PUBLISHED: ("True", Reason.PUBLISHED, message),
        T.RUNNING: ("False", Reason.FINISHED, ""),
    }


def suspended(message: str) -> dict[ConditionType, Fact]:
    """The run was stopped on purpose and keeps its last checkpoint."""
    return {
        T.READY: ("False", Reason.SUSPENDED, message),
        T.SUSPENDED: ("True", Reason.SUSPENDED, message),
        T.COMPLETE: ("False", Reason.SUSPENDED, ""),
        T.FAILED: ("False", Reason.SUSPENDED, ""),
        T.RUNNING: ("False", Reason.SUSPENDED, ""),
        T.SCHEDULED: ("False", Reason.SUSPENDED, ""),
        T.PUBLISHED: ("False", Reason.SUSPENDED, ""),
    }
