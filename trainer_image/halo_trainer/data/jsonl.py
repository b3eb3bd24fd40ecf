"""A JSONL file as rows with line numbers, streamed, with the digest of its bytes."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from halo_api.conditions import Reason
from halo_trainer.failures import RunFailure

# Two million tokens or more. Tokenising takes some 200 bytes of memory for each byte of a row, and an inspection has 2 GiB.
LONGEST_LINE = 8 << 20
# What some editors put before the text of a file that is UTF-8 anyway.
MARK = "\ufeff"


class JsonLines:
    """One pass over the file; `digest` is that of the whole file once the pass is over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hash = hashlib.sha256()
        self.digest = ""

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Yield (line number, value); the first line that is no JSON ends the run."""
        if not self._path.is_file():
            raise RunFailure(
                Reason.DATASET_MISSING,
                f"{self._path} is {'a folder' if self._path.is_dir() else 'not there'}; "
                "put the JSONL file there, or name another one in the Dataset's spec.source",
            )
        number = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), 1):
                if len(line) > LONGEST_LINE:
                    cure = "write one row a line, and cut what no base could read at once"
                    raise bad_row(number, f"has more than {LONGEST_LINE >> 20} MiB", cure)
                self._hash.update(line)
                yield number, _value(number, line)
        if number == 0:
            raise RunFailure(Reason.BAD_ROW, f"{self._path.name} is empty; write one row a line")
        self.digest = f"sha256:{self._hash.hexdigest()}"


def file_digest(path: Path) -> str:
    """Return the digest of a file's bytes."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def bad_row(number: int, found: str, cure: str) -> RunFailure:
    """Say what is wrong with a row."""
    return RunFailure(Reason.BAD_ROW, f"line {number} {found}; {cure}")


def _value(number: int, line: bytes) -> Any:
    try:
        text = line.decode("utf-8").removeprefix(MARK if number == 1 else "")
    except UnicodeDecodeError as error:
        raise bad_row(number, f"is not UTF-8 (byte {error.start + 1})", "save the file as UTF-8") from error
    if not text.strip():
        raise bad_row(number, "is blank", "remove the line")
    try:
        return json.loads(text.rstrip("\r\n"), object_pairs_hook=functools.partial(_object, number))
    except json.JSONDecodeError as error:
        found = f"is not JSON ({error.msg}, column {error.colno})"
        raise bad_row(number, found, "write one JSON object a line") from error
    except RecursionError as error:
        raise bad_row(number, "is nested too deeply to read", "flatten the row") from error
    except ValueError as error:
        # Python's own limit on the digits of a whole number.
        raise bad_row(number, "has a number of too many digits", "write it as a string") from error


def _object(number: int, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's pairs; of two with one key the first would be lost without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise bad_row(number, f"has the key {json.dumps(twice)[:40]} twice in one object", "keep one of the two")
    return found
