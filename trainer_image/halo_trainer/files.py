"""Writing files and folders so that they are there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from halo_trainer.failures import disk_full, is_disk_full

FILE_MODE = 0o644
FOLDER_MODE = 0o755


def write_durably(path: Path, data: bytes) -> None:
    """Write a file that others may read, and have it on the disk before returning."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(file.fileno(), FILE_MODE)
        os.fsync(file.fileno())


def copy_durably(source: Path, target: Path, device: int) -> None:
    """Copy a file, with the folders it needs, and have it on the disk before returning.

    Whoever else mounts the volumes may put links on them: what is read must lie on that device, since the pod's own files,
    such as its token, lie on another, and what is written must be new. Raises OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as read:
        if os.fstat(read.fileno()).st_dev != device:
            raise OSError(errno.EXDEV, "leads to another volume", str(source))
        with target.open("xb") as file:
            shutil.copyfileobj(read, file, 1 << 20)
            file.flush()
            os.fchmod(file.fileno(), FILE_MODE)
            os.fsync(file.fileno())


def replace_file(path: Path, text: str) -> None:
    """Put a small file in the place of the one a reader may be reading."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


@contextlib.contextmanager
def whole_folder(path: Path, writer: str = "", *, over: bool = True) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` at the end, in one step; after an error nothing of it is left.

    A full volume is told as what it is, and what lay at `path` and beside it stays as it was. Where several may write the
    same `path` at once, each names itself, so that none touches what another has not finished. Not `over`: an OSError if
    something is at `path` by then.
    """
    temporary, old = (path.with_name(f".{path.name}{writer}.{what}") for what in ("partial", "old"))
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        _settle(temporary)
        if over and os.path.lexists(path):
            # A folder can't replace one that is not empty; what is there is damaged, or of the same attempt, run again by hand.
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        temporary.rename(path)
        sync_folder(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and is_disk_full(error):
            raise disk_full(path, error) from error
        raise


def _settle(folder: Path) -> None:
    """Have every folder entry on the disk; the files were synced as they were written."""
    for inner, _, _ in os.walk(folder, topdown=False):
        os.chmod(inner, FOLDER_MODE)
        sync_folder(Path(inner))


def sync_folder(folder: Path) -> None:
    """Have a folder's entries on the disk before returning."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
