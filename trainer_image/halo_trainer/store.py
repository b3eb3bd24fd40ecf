"""Where published adapters lie, each under the digest of its files: whole, or not there at all, whoever is killed meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from halo_api.adapter import AdapterFile
from halo_api.digests import files_digest
from halo_api.run_file import address, volume_path
from halo_trainer.checkpoints.digest import folder_files
from halo_trainer.files import copy_durably, sync_folder, whole_folder

# Another run with the same bytes may be first, or take damaged ones away, while this one writes.
TRIES = 3


class Changed(Exception):
    """The files are not those any more that were to be published."""


class Store(Protocol):
    """A place for adapters."""

    def put(self, files: Sequence[AdapterFile], source: Path) -> str:
        """Have these files, read from below `source`, in the store, and return their uri; raises Changed."""
        ...


class FolderStore:
    """A folder of a claim. What lies there with the right bytes stays, so that equal adapters share their folder."""

    def __init__(self, uri: str, volumes: str, owner: str) -> None:
        """`owner` is the run: what a killed process of it left half-written is its next one's to clear."""
        self._uri = uri
        self._root = Path(volume_path(uri, volumes))
        self._owner = owner

    def put(self, files: Sequence[AdapterFile], source: Path) -> str:
        """Copy the files, hash the copy, and let it appear in one step."""
        files, digest = tuple(files), files_digest(files)
        target = self._root / address(digest)
        self._root.mkdir(parents=True, exist_ok=True)
        self._clear()
        for more in reversed(range(TRIES)):
            if folder_files(target) == files:
                break
            try:
                # What was not there is not replaced: if it comes meanwhile, somebody may read it already.
                writer = f".{self._owner}.{secrets.token_hex(4)}"
                copy_whole(files, source, target, writer, over=os.path.lexists(target))
            except OSError as error:
                # Another run's rename was first: is what lies there now right?
                if not more or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        self._clear()
        for folder in (self._root, self._root.parent):
            sync_folder(folder)
        return f"{self._uri}/{address(digest)}"

    def _clear(self) -> None:
        """Remove what the run's earlier processes left; renamed first, so that none that still runs can publish it in part."""
        for left in self._root.glob(f".*.{self._owner}.*"):
            gone = self._root / f".gone.{self._owner}.{secrets.token_hex(4)}"
            with contextlib.suppress(OSError):
                left.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def copy_whole(
    files: tuple[AdapterFile, ...], source: Path, target: Path, writer: str = "", *, over: bool = True
) -> None:
    """Copy files from below `source` to a folder that appears in one step, with these bytes; raises Changed."""
    device = source.stat().st_dev
    with whole_folder(target, writer, over=over) as partial:
        for file in files:
            try:
                copy_durably(source / file.path, partial / file.path, device)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                raise Changed(f"{file.path}, which {error.strerror},") from None
        # The bytes were read twice, and only the first time against the digest.
        if (copied := folder_files(partial)) != files:
            raise Changed(files_digest(copied))
        if writer and folder_files(target) == files:
            raise FileExistsError(errno.EEXIST, "another writer was first", str(target))
