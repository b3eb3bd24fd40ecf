"""How a role can fail: a reason of the closed list and one sentence with what was found and what would do."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from halo_api.conditions import Reason

LONGEST_MESSAGE = 2000


class RunFailure(Exception):
    """The role can't go on; `reason` and the sentence become its outcome."""

    def __init__(self, reason: Reason, message: str) -> None:
        # Words of rows and templates are in it: what no report can carry would lose the reason too.
        super().__init__(message.encode("utf-8", "backslashreplace").decode()[:LONGEST_MESSAGE])
        self.reason = reason


def disk_full(path: Path, error: OSError) -> RunFailure:
    """Say that a write to `path` found no room."""
    folder = next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
    free = shutil.disk_usage(folder).free
    what = "the disk quota is used up" if error.errno == errno.EDQUOT else "the volume is full"
    return RunFailure(
        Reason.DISK_FULL,
        f"writing {path}: {what} ({free} bytes free); enlarge the volume or delete old checkpoints and adapters on it",
    )


def is_disk_full(error: BaseException) -> bool:
    """Whether the error says that there is no room left."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def permission_denied(error: OSError) -> RunFailure:
    """Say that the volume does not let this user in: another attempt would meet the same door."""
    found = "is mounted read-only" if error.errno == errno.EROFS else "is not open"
    return RunFailure(
        Reason.PERMISSION_DENIED,
        f"{error.filename} {found} to user {os.geteuid()} and group {os.getegid()} of the run's pods; "
        "let them read models and data, and write to the artifacts claim",
    )


def is_permission_denied(error: BaseException) -> bool:
    """Whether the error says that a file's owner and mode, or its mount, forbid what was tried."""
    return isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)


def failure_of(error: Exception) -> RunFailure:
    """Return what an exception means for the run."""
    if isinstance(error, RunFailure):
        return error
    if isinstance(error, OSError) and is_disk_full(error):
        return disk_full(Path(error.filename or "/"), error)
    if isinstance(error, OSError) and is_permission_denied(error) and error.filename:
        return permission_denied(error)
    if _is_out_of_memory(error):
        return RunFailure(
            Reason.OUT_OF_MEMORY,
            f"no memory left ({first_line(error)}); lower spec.lora.microBatch or spec.lora.maxLength",
        )
    return RunFailure(Reason.CRASHED, f"{type(error).__name__}: {first_line(error)}")


def _is_out_of_memory(error: Exception) -> bool:
    # torch raises OutOfMemoryError for a GPU and a plain RuntimeError for the CPU; neither name needs torch here.
    named = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
    return isinstance(error, MemoryError) or named or "can't allocate memory" in str(error)


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
