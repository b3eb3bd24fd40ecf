"""The outcome: what the role's own word, its exit and the kernel's counters together mean. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from halo_api.conditions import Reason
from halo_api.report import CheckpointReport, Outcome, Report
from halo_api.run_file import RunFile
from halo_supervisor.stop import StopCause

OUT_OF_MEMORY = (
    "the kernel killed the process for want of memory; "
    "lower spec.lora.microBatch or spec.lora.maxLength, or ask for a GPU class with more memory"
)

# What a role says of itself when it was merely stopped, or could not stop in order, or a peer of it.
_SECONDARY = frozenset({Reason.INTERRUPTED, Reason.CRASHED, Reason.RANK_LOST})


@dataclass(frozen=True)
class RoleEnd:
    """How the role's process ended."""

    exit_code: int
    last_error_line: str
    oom_kills: int


def outcome_of(report: Report, end: RoleEnd, cause: StopCause | None, run: RunFile, at: str) -> Outcome:
    """Return the outcome: a success or a specific failure is the role's own word, the rest is told from its end at `at`."""
    said = report.outcome
    if said is not None and said.reason not in _SECONDARY:
        return said
    checkpoint = report.last_checkpoint
    if cause is not None and cause.reason == Reason.BUDGET_REACHED:
        return _at_budget(checkpoint or _resumed(run, at), cause, run)
    if cause is not None:
        return Outcome(result="Failed", reason=cause.reason, message=cause.message, checkpoint=checkpoint)
    if end.oom_kills:
        return Outcome(result="Failed", reason=Reason.OUT_OF_MEMORY, message=OUT_OF_MEMORY, checkpoint=checkpoint)
    return said or Outcome(result="Failed", reason=Reason.CRASHED, message=_crash(end), checkpoint=checkpoint)


def _at_budget(checkpoint: CheckpointReport | None, cause: StopCause, run: RunFile) -> Outcome:
    """Return what is left of a role that the end of the budget met and that did not publish by itself."""
    # Only the first pod writes checkpoints: that another one has none says nothing of the run.
    if checkpoint is None and run.training is not None and run.layout.node_rank == 0:
        message = (
            f"spec.saveSteps: found {run.training.save_steps}, and {cause.message} before the first checkpoint; "
            "raise spec.budget.h100Hours or lower spec.saveSteps"
        )
        return Outcome(result="Failed", reason=Reason.BUDGET_BEFORE_FIRST_CHECKPOINT, message=message)
    kept = f"; the checkpoint of step {checkpoint.step} stays" if checkpoint else ""
    message = f"{cause.message} and the role ended without publishing{kept}"
    return Outcome(result="Failed", reason=cause.reason, message=message, checkpoint=checkpoint)


def _resumed(run: RunFile, at: str) -> CheckpointReport | None:
    """Return the checkpoint that the role went on from."""
    resume = run.training.resume if run.training else None
    if resume is None:
        return None
    return CheckpointReport(step=resume.step, uri=resume.uri, digest=resume.digest, at=at)


def _crash(end: RoleEnd) -> str:
    if end.exit_code < 0:
        how = f"the process was killed by {signal.Signals(-end.exit_code).name}"
    else:
        how = f"the process ended with exit code {end.exit_code} and reported no outcome"
    return f"{how}; its last words: {end.last_error_line[:800]}" if end.last_error_line else how
