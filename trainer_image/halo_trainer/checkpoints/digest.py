"""The files of a folder with their digests, and a checkpoint held against its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from halo_api.adapter import AdapterFile
from halo_api.conditions import Reason
from halo_api.digests import bytes_digest, files_digest
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


def as_written(folder: Path, written: Mapping[str, str]) -> tuple[AdapterFile, ...]:
    """Return the folder's files, which must be those that were just written: what is vouched for is what was in memory."""
    files = folder_files(folder)
    found = {file.path: file.sha256 for file in files}
    if found != dict(written):
        differing = sorted(path for path in found | dict(written) if found.get(path) != written.get(path))
        words = f"{folder}: found {', '.join(differing[:3])} changed a moment after it was written; who else mounts the claim?"
        raise RunFailure(Reason.CRASHED, words)
    return files


@dataclass(frozen=True)
class Checked:
    """A checkpoint whose bytes are read again, long after the check: each must be as it was then."""

    folder: Path
    checkpoint: ResumeFrom
    files: tuple[AdapterFile, ...]

    def read(self, path: str) -> bytes:
        """Return the bytes of a file."""
        data = (self.folder / path).read_bytes()
        if (found := bytes_digest(data)) not in [file.sha256 for file in self.files if file.path == path]:
            raise corrupt(self.checkpoint, f"{path} of {found} after the check")
        return data


def corrupt(checkpoint: ResumeFrom | CheckpointReport, found: str, what: str = "checkpoint") -> RunFailure:
    """Say that a checkpoint, or the adapter at the end, is not what was written."""
    return RunFailure(
        Reason.CHECKPOINT_CORRUPT,
        f"{what} of step {checkpoint.step} at {checkpoint.uri}: found {found}, it was written with "
        f"{checkpoint.digest}; restore it from a backup, or start the run anew under another name",
    )
