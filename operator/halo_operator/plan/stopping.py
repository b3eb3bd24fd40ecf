"""When a run must stop: its hold is time on all of its GPUs, of which publishing the adapter takes the last part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from halo_api.report import Deadline
from halo_api.training_job import TrainingJobSpec, TrainingJobStatus
from halo_operator.plan import money
from halo_operator.plan.attempts import Attempt, attempt_in
from halo_operator.plan.claim import amount_of
from halo_operator.plan.metering import closed_ms
from halo_operator.plan.world import PodView

# What publishing takes where no estimate says it.
PUBLISH_SECONDS = 30.0
# After its last second a run's pods have this long to end by themselves; with the grace of their deletion it stays under 60 s.
OVERDUE_SECONDS = 30.0
# Of a slow GPU a hold may buy more than there are dates; a century is as good as no limit.
LONGEST_SECONDS = 100 * 365 * 86_400.0


@dataclass(frozen=True)
class Deadlines:
    """What the pods of an attempt must know of its end."""

    attempt: int
    by_pod: Mapping[str, Deadline] = field(default_factory=dict)
    over: bool = False


@dataclass(frozen=True)
class Limit:
    """The time that the current attempt may take, from its last pod bound to its last pod's end."""

    wall_seconds: float
    publish_seconds: float

    @property
    def role_seconds(self) -> float:
        """How long it may train."""
        return max(self.wall_seconds - self.publish_seconds, 0.0)

    def stop_at(self, bound_at: datetime) -> datetime:
        """When its roles are told to stop."""
        return bound_at + timedelta(seconds=self.role_seconds)

    def overdue_at(self, bound_at: datetime) -> datetime:
        """When pods that have not ended by themselves are killed."""
        return bound_at + timedelta(seconds=self.wall_seconds + OVERDUE_SECONDS)


def bought_ms(spec: TrainingJobSpec, status: TrainingJobStatus) -> int | None:
    """Return the time in GPU-milliseconds that the run's hold, else its budget, buys; None where nothing limits it."""
    weight = status.frozen.gpu.h100_equivalent if status.frozen else 1.0
    if status.hold is None:
        return None if spec.budget is None else gpu_time(money.gpu_milliseconds(spec.budget.h100_hours), weight)
    unit, amount = amount_of(status.hold)
    if unit == "USD":
        return money.most_milliseconds(amount, max(money.micro(status.hold.rate or "0"), 1))
    return gpu_time(amount * money.HOUR_MS // money.MICRO, weight)


def gpu_time(h100_milliseconds: int, weight: float) -> int:
    """Return the GPU-milliseconds of so many H100-milliseconds, rounded down."""
    return int(h100_milliseconds / money.decimal_of(weight))


def limit_of(spec: TrainingJobSpec, status: TrainingJobStatus) -> Limit | None:
    """Return what is left for the current attempt once all that ended before it is paid."""
    bought = bought_ms(spec, status)
    if bought is None:
        return None
    wall = (bought - closed_ms(status.usage)) / spec.gpu.count / 1000
    return Limit(min(wall, LONGEST_SECONDS), phase_seconds(status, "publish", PUBLISH_SECONDS))


def overrun_seconds(spec: TrainingJobSpec, status: TrainingJobStatus) -> float:
    """Return by how long the run's pods outlived what it holds; negative where they ended before."""
    limit = limit_of(spec, status)
    return 0.0 if limit is None else -limit.wall_seconds


def phase_seconds(status: TrainingJobStatus, name: str, otherwise: float) -> float:
    """Return what the estimate says that a phase takes."""
    phases = status.estimate.phases if status.estimate else []
    return next((float(phase.seconds) for phase in phases if phase.name == name), otherwise)


def deadlines_of(spec: TrainingJobSpec, status: TrainingJobStatus, pods: Iterable[PodView], now: datetime) -> Deadlines:
    """Return what the answers to the current attempt's pushes say: each pod's deadline by its name, and whether it is over."""
    number, limit = status.attempt or 1, limit_of(spec, status)
    attempt = attempt_in(status.topology, number, tuple(pods))
    if limit is None:
        return Deadlines(number)
    by_pod = {pod.ref.name: deadline_of(spec, status, attempt, pod) for pod in attempt.pods}
    over = attempt.bound_at is not None and now >= limit.stop_at(attempt.bound_at)
    return Deadlines(number, by_pod, over)


def can_go_on(spec: TrainingJobSpec, status: TrainingJobStatus) -> bool:
    """Whether what is left pays publishing and another start, as long as the last one was: else an attempt only costs."""
    limit = limit_of(spec, status)
    measured = next((record.phases for record in reversed(status.attempts) if record.phases), [])
    start = sum(float(phase.seconds) for phase in measured if phase.name in ("start", "load"))
    return limit is None or limit.role_seconds > start


def deadline_of(spec: TrainingJobSpec, status: TrainingJobStatus, attempt: Attempt, pod: PodView | None) -> Deadline:
    """Return the deadline of one pod, counted from when its node set up its volumes, which is when it was bound.

    A pod that was bound before the last one waits for it unbilled; one that replaces another comes later. The sequence grows with what is known: that last pod,
    and each raise of the budget.
    """
    limit = limit_of(spec, status)
    raised = 2 * status.hold.raises if status.hold else 0
    if limit is None:
        return Deadline(sequence=raised)
    earlier = 0.0
    if pod is not None and pod.bound_at and attempt.bound_at:
        earlier = (attempt.bound_at - pod.bound_at).total_seconds()
    known = 1 if earlier else 0
    return Deadline(sequence=raised + known, remaining_seconds=round(max(limit.role_seconds + earlier, 0.0), 3))
