"""The digest of a folder: one line a file, `sha256  path`, sorted by path, hashed."""

from __future__ import annotations

import hashlib
from pathlib import Path

from halo_api.adapter import AdapterFile
from halo_trainer.data.jsonl import file_digest


def folder_files(folder: Path) -> tuple[AdapterFile, ...]:
    """Return every file below the folder, with digest and size, sorted by path."""
    paths = sorted((path.relative_to(folder).as_posix(), path) for path in folder.rglob("*") if path.is_file())
    return tuple(AdapterFile(path=name, sha256=file_digest(path), size=path.stat().st_size) for name, path in paths)


def files_digest(files: tuple[AdapterFile, ...]) -> str:
    """Return the digest over the files, as `sha256sum` would print them: `cd FOLDER && sha256sum PATHS | sha256sum`."""
    lines = "".join(f"{file.sha256.removeprefix('sha256:')}  {file.path}\n" for file in files)
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"
