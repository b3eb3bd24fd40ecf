"""The files of a folder with their digests, and a checkpoint held against its own."""

from __future__ import annotations

from pathlib import Path

from halo_api.adapter import AdapterFile
from halo_api.conditions import Reason
from halo_api.digests import files_digest
from halo_api.report import CheckpointReport
from halo_api.run_file import ResumeFrom
from halo_trainer.data.jsonl import file_digest
from halo_trainer.failures import RunFailure


def folder_files(folder: Path) -> tuple[AdapterFile, ...]:
    """Return every file below the folder, with digest and size, sorted by path."""
    paths = sorted((path.relative_to(folder).as_posix(), path) for path in folder.rglob("*") if path.is_file())
    return tuple(AdapterFile(path=name, sha256=file_digest(path), size=path.stat().st_size) for name, path in paths)


def check_checkpoint(
    folder: Path, checkpoint: ResumeFrom | CheckpointReport, what: str = "checkpoint"
) -> tuple[AdapterFile, ...]:
    """Return the checkpoint's files; refuse one that is not the one that was reported: nothing may be made of that."""
    files = folder_files(folder)
    digest = files_digest(files) if folder.is_dir() else "nothing there"
    if digest != checkpoint.digest:
        raise corrupt(checkpoint, digest, what)
    return files


def corrupt(checkpoint: ResumeFrom | CheckpointReport, found: str, what: str = "checkpoint") -> RunFailure:
    """Say that a checkpoint, or the adapter at the end, is not what was written."""
    return RunFailure(
        Reason.CHECKPOINT_CORRUPT,
        f"{what} of step {checkpoint.step} at {checkpoint.uri}: found {found}, it was written with "
        f"{checkpoint.digest}; restore it from a backup, or start the run anew under another name",
    )
