"""`publish`: an adapter is brought to where published ones lie, by a pod of its own; or, at the end of the budget, to where
training would have left it.

A checkpoint's `adapter/` is a folder like the published one, so that this needs neither torch nor a GPU.
"""

from __future__ import annotations

from pathlib import Path

from halo_api.adapter import AdapterFile
from halo_api.conditions import Reason
from halo_api.digests import files_digest
from halo_api.report import AdapterReport, CheckpointReport, Outcome
from halo_api.run_file import PublishPlan, ResumeFrom, RlvrPlan, RunFile, TrainPlan, volume_path
from halo_trainer.checkpoints.digest import check_checkpoint, corrupt, folder_files
from halo_trainer.failures import RunFailure
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.reporting import Reporting
from halo_trainer.store import Changed, FolderStore, Store, copy_whole

FOLDER = "adapter/"


def publish(run: RunFile, volumes: str, report: Reporting) -> Outcome:
    """Publish what the run file names."""
    plan = run.publish
    if plan is None:
        raise RunFailure(Reason.INVALID_SPEC, "the run file has no publish plan; the operator writes it")
    report.phase("Finishing")
    with report.spending("publish"):
        adapter = stored(plan, FolderStore(plan.store, volumes, run.run.uid), volumes)
    message = f"the adapter of step {adapter.step} is at {adapter.uri}"
    return Outcome(result="Succeeded", reason=Reason.SUCCEEDED, message=message, adapter=adapter)


def stored(plan: PublishPlan, store: Store, volumes: str) -> AdapterReport:
    """Have the store take an adapter whose bytes are still those that training left."""
    source = Path(volume_path(plan.source.uri, volumes))
    what = "checkpoint" if plan.folder else "adapter"
    files = adapter_files(source, plan.source, plan.folder, what)
    try:
        uri = store.put(files, source / plan.folder)
    except Changed as changed:
        raise corrupt(plan.source, f"{changed} after the check", what) from None
    return AdapterReport(uri=uri, digest=files_digest(files), step=plan.source.step, files=files)


def publish_at_budget(run: RunFile, volumes: str, report: Reporting, ranks: Ranks) -> Outcome:
    """Publish the last checkpoint of this attempt, else the one that it went on from."""
    plan = run.train or run.rlvr
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


def _ended(step: int, plan: TrainPlan | RlvrPlan) -> tuple[Reason, str]:
    """Return how a run ends whose published adapter is of that step: all its steps are all that was asked for."""
    if step == plan.steps:
        return Reason.SUCCEEDED, f"{step} steps"
    return Reason.BUDGET_REACHED, f"the budget was reached; the adapter is of step {step} of {plan.steps}"


def publish_checkpoint(checkpoint: ResumeFrom | CheckpointReport, output: str, volumes: str) -> AdapterReport:
    """Copy the adapter of a checkpoint to `output`, whole or not at all; one that is there already stays."""
    source = Path(volume_path(checkpoint.uri, volumes))
    target = Path(volume_path(output, volumes))
    files = adapter_files(source, checkpoint, FOLDER)
    if folder_files(target) != files:
        try:
            copy_whole(files, source / FOLDER, target)
        except Changed as changed:
            raise corrupt(checkpoint, f"{FOLDER} with {changed} after the check") from None
    return AdapterReport(uri=output, digest=files_digest(files), step=checkpoint.step, files=files)


def adapter_files(
    source: Path, checkpoint: ResumeFrom | CheckpointReport, folder: str, what: str = "checkpoint"
) -> tuple[AdapterFile, ...]:
    """Return the adapter's files in a folder whose every byte is as it was reported."""
    files = tuple(
        file.model_copy(update={"path": file.path.removeprefix(folder)})
        for file in check_checkpoint(source, checkpoint, what)
        if file.path.startswith(folder)
    )
    if not files:
        raise corrupt(checkpoint, f"no {folder}", what)
    return files
