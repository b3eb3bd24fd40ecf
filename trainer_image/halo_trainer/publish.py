"""`publish`: the adapter of a checkpoint is copied to its place: by a pod of its own, or at the end of the budget.

A checkpoint's `adapter/` is a folder like the published one, so that this needs neither torch nor a GPU.
"""

from __future__ import annotations

from pathlib import Path

from halo_api.conditions import Reason
from halo_api.digests import files_digest
from halo_api.report import AdapterReport, CheckpointReport, Outcome
from halo_api.run_file import ResumeFrom, RunFile, TrainPlan, volume_path
from halo_trainer.checkpoints.digest import check_checkpoint, corrupt, folder_files
from halo_trainer.failures import RunFailure
from halo_trainer.files import copy_durably, whole_folder
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.reporting import Reporting

FOLDER = "adapter/"


def publish(run: RunFile, volumes: str, report: Reporting) -> Outcome:
    """Publish the checkpoint that the run file names."""
    plan = run.publish
    if plan is None:
        raise RunFailure(Reason.INVALID_SPEC, "the run file has no publish plan; the operator writes it")
    report.phase("Finishing")
    with report.spending("publish"):
        adapter = publish_checkpoint(plan.checkpoint, plan.output, volumes)
    message = f"the adapter of step {adapter.step} is at {adapter.uri}"
    return Outcome(result="Succeeded", reason=Reason.SUCCEEDED, message=message, adapter=adapter)


def publish_at_budget(run: RunFile, volumes: str, report: Reporting, ranks: Ranks) -> Outcome:
    """Publish the last checkpoint of this attempt, else the one that it went on from."""
    plan = run.train
    if plan is None or not ranks.writes:
        message = "the budget was reached; the run's first process publishes"
        return Outcome(result="Succeeded", reason=Reason.BUDGET_REACHED, message=message)
    report.phase("Finishing")
    kept = report.last_checkpoint
    last = kept or plan.resume
    if last is None:
        raise RunFailure(
            Reason.BUDGET_BEFORE_FIRST_CHECKPOINT,
            f"spec.saveSteps: found {plan.save_steps}, and the budget was reached after step {report.step} of "
            f"{plan.steps}, before the first checkpoint; raise spec.budget.h100Hours or lower spec.saveSteps",
        )
    with report.spending("publish"):
        adapter = publish_checkpoint(last, f"{plan.output}/adapter", volumes)
    reason, message = _ended(adapter.step, plan)
    return Outcome(result="Succeeded", reason=reason, message=message, checkpoint=kept, adapter=adapter)


def _ended(step: int, plan: TrainPlan) -> tuple[Reason, str]:
    """Return how a run ends whose published adapter is of that step: all its steps are all that was asked for."""
    if step == plan.steps:
        return Reason.SUCCEEDED, f"{step} steps"
    return Reason.BUDGET_REACHED, f"the budget was reached; the adapter is of step {step} of {plan.steps}"


def publish_checkpoint(checkpoint: ResumeFrom | CheckpointReport, output: str, volumes: str) -> AdapterReport:
    """Copy the adapter of a checkpoint to `output`, whole or not at all; one that is there already stays."""
    source = Path(volume_path(checkpoint.uri, volumes))
    target = Path(volume_path(output, volumes))
    checked = check_checkpoint(source, checkpoint)
    files = tuple(
        file.model_copy(update={"path": file.path.removeprefix(FOLDER)})
        for file in checked
        if file.path.startswith(FOLDER)
    )
    if not files:
        raise corrupt(checkpoint, f"no {FOLDER}")
    if folder_files(target) != files:
        with whole_folder(target) as partial:
            for file in files:
                copy_durably(source / FOLDER / file.path, partial / file.path)
            # The bytes were read twice, and only the first time against the digest.
            if (copied := folder_files(partial)) != files:
                raise corrupt(checkpoint, f"{FOLDER} with {files_digest(copied)} after the check")
    return AdapterReport(uri=output, digest=files_digest(files), step=checkpoint.step, files=files)
