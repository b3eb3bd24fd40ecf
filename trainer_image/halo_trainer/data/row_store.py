"""The rows of a run on local disk: a row is in memory while it trains, so that memory does not grow with the data set's tokens."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Generic, TypeVar, cast

from halo_api.conditions import Reason
from halo_trainer.data.bundle import Segment, Tree
from halo_trainer.data.preference import TokenPair
from halo_trainer.data.template import TokenRow
from halo_trainer.failures import RunFailure, is_disk_full

Row = TypeVar("Row", TokenRow, Tree, TokenPair)
INT = array("i").itemsize


class RowStore(Sequence[Row], Generic[Row]):
    """Rows as a sequence, as they were given but for the id of their run; each is read anew whenever it is asked for.

    A row takes 8 bytes of memory; on disk 5 a token and 12 or more for itself. The file has no name, so that it goes with the
    process, however that ends.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        """Write the rows to a file of the folder for temporary files; a failure while they are made is the caller's."""
        self._ends = array("Q", [0])
        self._kind: type[Row] | None = None
        # Open as long as this is.
        self._file = cast(BinaryIO, tempfile.TemporaryFile(buffering=1 << 20))  # noqa: SIM115
        for row in rows:
            self._kind = type(row)
            try:
                size = self._file.write(packed(_segments(row)))
            except OSError as error:
                raise self._refused(error) from error
            self._ends.append(self._ends[-1] + size)
        try:
            self._file.flush()
        except OSError as error:
            raise self._refused(error) from error

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: Any) -> Any:  # Row; of a slice nobody asks
        if not 0 <= index < len(self):
            raise IndexError(index)
        start, end = self._ends[index], self._ends[index + 1]
        # Not by a memory map, whose pages would count as this process's.
        data = os.pread(self._file.fileno(), end - start, start)
        assert self._kind is not None
        return BUILDERS[self._kind](unpacked(data))

    def __iter__(self) -> Iterator[Row]:
        return (self[place] for place in range(len(self)))

    def _refused(self, error: OSError) -> OSError | RunFailure:
        """Say that the disk has no room for the rows, if it is that."""
        if not is_disk_full(error):
            return error
        folder = tempfile.gettempdir()
        return RunFailure(
            Reason.DISK_FULL,
            f"the data set's tokens, {self._ends[-1]} bytes so far, don't fit into {folder} "
            f"({shutil.disk_usage(folder).free} bytes free), where a run keeps them; "
            "give the node more ephemeral storage, or train on fewer rows",
        )


def packed(segments: Sequence[Segment]) -> bytes:
    """Return segments as bytes: how many, the length and parent of each (-1: none), all ids, and what trains."""
    head = array("i", [len(segments)])
    for segment in segments:
        head.extend((len(segment), -1 if segment.parent is None else segment.parent))
    return b"".join([head.tobytes(), *(each.ids.tobytes() for each in segments), *(each.trained for each in segments)])


def unpacked(data: bytes) -> list[Segment]:
    """Return the segments that `packed` was given."""
    (count,) = array("i", data[:INT])
    head = array("i", data[INT : INT * (1 + 2 * count)])
    lengths, parents = head[::2], head[1::2]
    tokens = sum(lengths)
    first = INT * (1 + 2 * count)
    ids, trained = array("i", data[first : first + INT * tokens]), bytearray(data[first + INT * tokens :])
    starts = itertools.accumulate(lengths, initial=0)
    return [
        Segment(ids[start : start + length], trained[start : start + length], None if parent < 0 else parent)
        for start, length, parent in zip(starts, lengths, parents, strict=False)
    ]


def _segments(row: TokenRow | Tree | TokenPair) -> Sequence[Segment]:
    if isinstance(row, Tree):
        return row.segments
    rows = (row,) if isinstance(row, TokenRow) else (row.chosen, row.rejected)
    return [Segment(each.ids, each.trained, None) for each in rows]


def _row(segment: Segment) -> TokenRow:
    return TokenRow(segment.ids, segment.trained)


BUILDERS: dict[type, Callable[[list[Segment]], TokenRow | Tree | TokenPair]] = {
    TokenRow: lambda segments: _row(segments[0]),
    Tree: lambda segments: Tree(tuple(segments)),
    TokenPair: lambda segments: TokenPair(*map(_row, segments)),
}
