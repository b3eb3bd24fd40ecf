"""Files through a pipe, between a command line and a pod: which they are, as one line, and a tar of them, both bounded."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import IO, BinaryIO, cast

from halo_api.adapter import AdapterFile

MAX_FILES = 64
MAX_BYTES = 64 << 30
# 64 files with paths of 256 characters, and room.
LINE_BYTES = 1 << 16
# Beside the bytes of the files: three blocks of 512 bytes a file at most, the end, and what is blocked together.
ROOM = 1 << 20


class BadStream(ValueError):
    """What came is not what was asked for."""


def line_of(files: Iterable[AdapterFile]) -> bytes:
    """Return the line that says which files are meant."""
    return json.dumps([file.to_json() for file in files], separators=(",", ":")).encode() + b"\n"


def read_line(stream: BinaryIO) -> list[AdapterFile]:
    """Read that line."""
    line = stream.readline(LINE_BYTES + 1)
    if len(line) > LINE_BYTES or not line.endswith(b"\n"):
        raise BadStream(f"the list of files: found no line of at most {LINE_BYTES} bytes")
    return bounded([AdapterFile.model_validate(file) for file in json.loads(line)])


def bounded(files: list[AdapterFile]) -> list[AdapterFile]:
    """Return the files, if they are few and small enough, and none of their paths leads out of a folder."""
    if not 0 < len(files) <= MAX_FILES:
        raise BadStream(f"found {len(files)} files; an adapter has 1 to {MAX_FILES}")
    if (total := sum(file.size for file in files)) > MAX_BYTES or min(file.size for file in files) < 0:
        raise BadStream(f"found {total} bytes in all; an adapter has at most {MAX_BYTES}")
    for file in files:
        if not inside(file.path):
            raise BadStream(f"found the path {file.path!r}, which leads out of the adapter's folder")
    if len({file.path for file in files}) < len(files):
        raise BadStream("found a path twice")
    return files


def inside(path: str) -> bool:
    """Whether a path stays below the folder that it is taken from, on any system."""
    parts = path.split("/")
    return not any(part in ("", ".", "..") for part in parts) and not any(c in "\\:\0\n" for c in path)


def pack(
    files: Iterable[AdapterFile], opened: Callable[[AdapterFile], AbstractContextManager[BinaryIO]], sink: BinaryIO
) -> None:
    """Write a tar of these files; each must have the size that it is said to have."""
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        for file in files:
            info = tarfile.TarInfo(file.path)
            info.size, info.mode = file.size, 0o644
            with opened(file) as data:
                tar.addfile(info, data)


def unpack(
    stream: BinaryIO, wanted: Sequence[AdapterFile], keep: Callable[[AdapterFile, IO[bytes]], None]
) -> list[AdapterFile]:
    """Hand over each file of a tar that was asked for, once, with its bytes, and return those that did not come.

    Raises BadStream for anything else; a tar that is cut between two files is told by what did not come alone.
    """
    left = {file.path: file for file in bounded(list(wanted))}
    source = cast(BinaryIO, Bounded(stream, sum(file.size for file in wanted) + ROOM))
    try:
        with tarfile.open(fileobj=source, mode="r|") as tar:
            for member in tar:
                file = left.pop(member.name, None)
                data = tar.extractfile(member) if member.isreg() else None
                if file is None or data is None or member.size != file.size:
                    raise BadStream(
                        f"found {member.name!r} of {member.size} bytes, which is no file that was asked for"
                    )
                keep(file, data)
    except tarfile.TarError as error:
        raise BadStream(f"the stream ended early: {error}") from None
    return list(left.values())


class Bounded:
    """A stream that gives at most so many bytes: what is larger was not asked for."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self._stream, self._left = stream, limit

    def read(self, size: int) -> bytes:
        """Read on."""
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise BadStream("found more bytes than were asked for")
        return data
