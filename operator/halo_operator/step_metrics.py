"""Metrics of steps, by what trains and by role: tokens, seconds, and of online RL what episodes were like; never a run's name in a label.

A report tells of one step. Of steps shorter than the time between two reports only those count that a report told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from prometheus_client import Counter, Gauge, Histogram

from halo_api.report import ProgressReport, Report, RolloutProgress
from halo_api.training_job import TrainingJobStatus

OF_A_METHOD = ["method"]
TOKENS = Counter("halo_tokens", "Tokens that trainers trained on, and that rollout servers sampled", ["method", "role"])
SECONDS = Counter("halo_step_seconds", "Seconds of online RL's steps, by what they went to", ["method", "phase"])
EPISODES = Counter("halo_episodes", "Episodes, by how they ended", ["method", "result"])
UNSCORED = Counter("halo_unscored_episodes", "Episodes that were not scored, by why", ["method", "reason"])
DROPPED = Counter("halo_dropped_groups", "Groups of equal rewards, which taught nothing", OF_A_METHOD)
REWARD = Histogram("halo_reward", "Mean reward of a step's episodes", OF_A_METHOD, buckets=[n / 10 for n in range(11)])
NATS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1)
KL = Histogram("halo_kl_nats", "KL to the reference of a step, in nats a token", OF_A_METHOD, buckets=NATS)
MISMATCH = Histogram(
    "halo_mismatch_nats", "How far the servers' log-probabilities are from the trainer's", OF_A_METHOD, buckets=NATS
)
STALENESS = Histogram(
    "halo_staleness_updates",
    "Updates that the policy of a step's rows was behind",
    OF_A_METHOD,
    buckets=(0, 1, 2, 4, 8),
)
SERVERS = Gauge("halo_rollout_servers", "Rollout servers of the runs that sample now", ["state"])

# Words of the trainer; what else a report says would make labels without a bound.
REASONS = frozenset({"ServerFailed", "EnvironmentFailed", "TimedOut", "PromptTooLong", "TemplateMismatch"})


class Seen(NamedTuple):
    """What was counted of a run."""

    attempt: int
    step: int
    tokens: int


@dataclass
class StepMetrics:
    """Counts every step once, however often its report comes."""

    _seen: dict[str, Seen] = field(default_factory=dict)
    _servers: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for place, state in enumerate(("ready", "wanted")):
            SERVERS.labels(state).set_function(partial(self._counted, place))

    def _counted(self, place: int) -> float:
        return sum(each[place] for each in self._servers.values())

    def told(self, method: str, report: Report | None, written: TrainingJobStatus) -> None:
        """Take a run's report; `written` is its status as it was: what that tells was counted, by this process or another."""
        if report is None or report.progress is None:
            return
        uid, found = report.run_uid, report.progress
        if report.attempt != (written.attempt or 1):
            # The servers of an attempt go with it.
            self._servers.pop(uid, None)
            return
        seen = self._seen.get(uid) or _before(report.attempt, found, written)
        self._seen[uid] = Seen(report.attempt, found.step, found.tokens)
        if found.rollouts and found.rollouts.servers_wanted is not None:
            self._servers[uid] = (found.rollouts.servers or 0, found.rollouts.servers_wanted)
        if (report.attempt, found.step) <= (seen.attempt, seen.step):
            return
        # An attempt goes on counting tokens where its checkpoint stood, which may be behind.
        TOKENS.labels(method, "trainer").inc(max(found.tokens - seen.tokens, 0))
        if found.rollouts:
            count(method, found.rollouts)

    def over(self, uid: str) -> None:
        """Forget a run that is over."""
        self._seen.pop(uid, None)
        self._servers.pop(uid, None)


def _before(attempt: int, found: ProgressReport, written: TrainingJobStatus) -> Seen:
    """Return what was counted before this process saw the run."""
    if written.progress is None:
        return Seen(attempt, 0, 0)
    return Seen(written.attempt or attempt, written.progress.step, found.tokens)


def count(method: str, found: RolloutProgress) -> None:
    """Count a step's episodes."""
    passed = min(round(number(found.pass_rate) * found.scored), found.scored)
    for result, much in (("passed", passed), ("failed", found.scored - passed), ("unscored", found.unscored)):
        EPISODES.labels(method, result).inc(max(much, 0))
    for reason, many in found.unscored_reasons.items():
        UNSCORED.labels(method, reason if reason in REASONS else "Other").inc(max(many, 0))
    DROPPED.labels(method).inc(max(found.dropped_groups, 0))
    TOKENS.labels(method, "rollout").inc(max(found.sampled_tokens, 0))
    for phase, seconds in (
        ("rollout", found.rollout_seconds),
        ("train", found.train_seconds),
        ("sync", found.sync_seconds),
    ):
        SECONDS.labels(method, phase).inc(max(number(seconds), 0.0))
    for metric, value in (
        (REWARD, found.reward),
        (KL, found.kl),
        (MISMATCH, found.mismatch),
        (STALENESS, found.staleness),
    ):
        if value is not None and math.isfinite(value):
            metric.labels(method).observe(value)


def number(value: float | None) -> float:
    """Return a value that can be added up: 0 for what is not known or no number."""
    return value if value is not None and math.isfinite(value) else 0.0
