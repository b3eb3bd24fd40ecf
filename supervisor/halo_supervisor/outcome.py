"""The outcome: what the role's own word, its exit and the kernel's counters together mean. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from halo_api.conditions import Reason
from halo_api.report import Outcome, Report


@dataclass(frozen=True)
class StopCause:
    """Why the supervisor stopped the role."""

    reason: Reason
    message: str


DEADLINE = StopCause(Reason.DEADLINE_REACHED, "the run's time was up; it was stopped and keeps its last checkpoint")
STOPPED = StopCause(Reason.DEADLINE_REACHED, "the operator asked the run to stop; it keeps its last checkpoint")
INTERRUPTED = StopCause(Reason.INTERRUPTED, "the pod was told to end; the run goes on from its last checkpoint")
OUT_OF_MEMORY = (
    "the kernel killed the process for want of memory; "
    "lower spec.lora.microBatch or spec.lora.maxLength, or ask for a GPU class with more memory"
)

# What a role says of itself when it was merely stopped, or could not stop in order.
_SECONDARY = frozenset({Reason.INTERRUPTED, Reason.CRASHED})


@dataclass(frozen=True)
class RoleEnd:
    """How the role's process ended."""

    exit_code: int
    last_error_line: str
    oom_kills: int


def outcome_of(report: Report, end: RoleEnd, cause: StopCause | None) -> Outcome:
    """Return the outcome: a success or a specific failure is the role's own word, the rest is told from its end."""
    said = report.outcome
    if said is not None and said.reason not in _SECONDARY:
        return said
    checkpoint = report.checkpoints[-1] if report.checkpoints else None
    if cause is not None:
        return Outcome(result="Failed", reason=cause.reason, message=cause.message, checkpoint=checkpoint)
    if end.oom_kills:
        return Outcome(result="Failed", reason=Reason.OUT_OF_MEMORY, message=OUT_OF_MEMORY, checkpoint=checkpoint)
    return said or Outcome(result="Failed", reason=Reason.CRASHED, message=_crash(end), checkpoint=checkpoint)


def _crash(end: RoleEnd) -> str:
    if end.exit_code < 0:
        how = f"the process was killed by {signal.Signals(-end.exit_code).name}"
    else:
        how = f"the process ended with exit code {end.exit_code} and reported no outcome"
    return f"{how}; its last words: {end.last_error_line[:800]}" if end.last_error_line else how
