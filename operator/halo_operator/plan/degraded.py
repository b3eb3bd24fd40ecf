"""Tells that a run's rollouts are worse than they should be, though it goes on: servers are missing, or episodes have no reward."""

from __future__ import annotations

from datetime import datetime

from halo_api.conditions import ConditionType, Reason, is_true
from halo_api.run_status import Progress
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan.attempts import Attempt, attempt_in
from halo_operator.plan.conditions import Fact, Facts
from halo_operator.plan.pod_view import parse_time
from halo_operator.plan.progress import record_of
from halo_operator.plan.rollouts import MOST_REPLACED, are_needed, current, incarnations_of
from halo_operator.plan.world import PodView, RunWorld

T = ConditionType


def with_degraded(world: RunWorld, status: TrainingJobStatus, facts: Facts, now: datetime) -> Facts:
    """Return the facts with what is wrong with the rollouts of the attempt that trains, if anything is."""
    others: dict[ConditionType, Fact] = {type_: fact for type_, fact in facts.items() if type_ != T.ROLLOUT_DEGRADED}
    record = record_of(status, status.attempt or 1)
    ends = (T.COMPLETE, T.FAILED, T.SUSPENDED)
    over = any(others[end][0] == "True" if end in others else is_true(status.conditions, end) for end in ends)
    if status.topology is None or not status.topology.rollout or over or record is None:
        return others
    attempt = attempt_in(status.topology, record.attempt, world.pods)
    if not are_needed(world, status, attempt, now):
        return others
    seen = _since(status.progress, record.started_at)
    servers, episodes = _servers(status, attempt, seen), _episodes(seen)
    if servers is None and episodes is None:
        return others
    reason = Reason.SERVER_REPLACED if servers else Reason.EPISODES_UNSCORED
    return {**others, T.ROLLOUT_DEGRADED: ("True", reason, "; ".join(filter(None, (servers, episodes))))}


def _since(progress: Progress | None, started: str | None) -> Progress | None:
    """Return what is known of this attempt's steps: what an attempt before reported is no news of it."""
    at, start = parse_time(progress.updated_at) if progress else None, parse_time(started)
    return progress if at and start and at >= start else None


def _servers(status: TrainingJobStatus, attempt: Attempt, seen: Progress | None) -> str | None:
    pods = current(attempt, incarnations_of(status, status.topology))
    missing = [server for server, pod in enumerate(pods) if not _serves(pod, seen)]
    took_part = seen.rollouts.servers if seen and seen.rollouts else None
    if missing:
        record = record_of(status, attempt.number)
        used = len(record.replaced) if record else 0
        which = f"server{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        return (
            f"{len(pods) - len(missing)} of {len(pods)} rollout servers serve: {which} "
            f"{'are' if len(missing) > 1 else 'is'} being replaced ({used} of {MOST_REPLACED} replacements of the attempt)"
        )
    if took_part is not None and took_part < len(pods):
        return f"step {seen.step if seen else 0}: {took_part} of {len(pods)} rollout servers took part"
    return None


def _serves(pod: PodView | None, seen: Progress | None) -> bool:
    """Whether a server serves, as far as its pod tells: one that replaced another must have been ready, or seen a step end.

    Later it may be unready for moments, while it takes a policy; that is no news.
    """
    if pod is None or pod.ended:
        return False
    if pod.incarnation == 1 or pod.ready:
        return True
    at = parse_time(seen.updated_at) if seen else None
    return pod.running and at is not None and pod.bound_at is not None and at > pod.bound_at


def _episodes(seen: Progress | None) -> str | None:
    found = seen.rollouts if seen else None
    if seen is None or found is None or not found.unscored:
        return None
    why = ", ".join(f"{reason} {count}" for reason, count in sorted(found.unscored_reasons.items()))
    words = f"step {seen.step}: {found.unscored} of {found.scored + found.unscored} episodes have no reward, and train nothing"
    return f"{words} ({why})" if why else words
