"""Digests that several parts must take alike: of some bytes, of a value as JSON, of a folder's files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from halo_api.adapter import AdapterFile


def bytes_digest(data: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def canonical(value: Any) -> str:
    """Return the one JSON text of a value: keys sorted, no spaces, ASCII, as Python's json writes it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def json_digest(value: Any) -> str:
    """Return the SHA-256 of a value as canonical JSON."""
    return bytes_digest(canonical(value).encode())


def files_digest(files: Iterable[AdapterFile]) -> str:
    """Return the digest over files, sorted by path, as `sha256sum` prints it: `cd FOLDER && sha256sum PATHS | sha256sum`."""
    ordered = sorted(files, key=lambda file: file.path)
    lines = "".join(f"{file.sha256.removeprefix('sha256:')}  {file.path}\n" for file in ordered)
    return bytes_digest(lines.encode())
