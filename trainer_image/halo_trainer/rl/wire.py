"""The rows of a step as bytes, from the process that sampled them to all others. Pure; no pickle, which would run code."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence

from halo_trainer.data.template import TokenRow
from halo_trainer.rl.scoring import Sampled

FLOATS = ("rollout", "advantages", "weights")


def rows_to_bytes(rows: Sequence[Sampled]) -> bytes:
    """Return rows as one header line of their sizes, and the numbers behind it."""
    sizes, parts = [], []
    for each in rows:
        assert isinstance(each.row, TokenRow)
        sizes.append((len(each.row), len(each.rollout)))
        parts += [each.row.ids.tobytes(), bytes(each.row.trained)]
        parts += [getattr(each, name).tobytes() for name in FLOATS]
    return json.dumps(sizes).encode() + b"\n" + b"".join(parts)


def rows_from_bytes(data: bytes) -> list[Sampled]:
    """Return the rows again."""
    header, _, body = data.partition(b"\n")
    view, at, rows = memoryview(body), 0, []

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        return bytes(view[at - count : at])

    for tokens, trained in json.loads(header):
        ids = array("i")
        ids.frombytes(take(tokens * ids.itemsize))
        marks = bytearray(take(tokens))
        values = [array("d") for _ in FLOATS]
        for each in values:
            each.frombytes(take(trained * each.itemsize))
        rows.append(Sampled(TokenRow(ids, marks), *values))
    return rows
