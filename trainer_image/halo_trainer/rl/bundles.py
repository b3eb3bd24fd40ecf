"""Rows of a step that share their beginnings, computed once: a group's prompt, and the turns of an episode. Pure.

A token's log-probability depends on the tokens before it and on nothing else, and what it weighs is its own. So an episode whose every
prompt begins with all of the turn before is one row, in which each answer trains; and the episodes of a task are one tree on
bases that take trees (data/bundle.py says more of both). Loss and gradient are those of the rows; only the work is less.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

from halo_trainer.data.bundle import Segment, Tree
from halo_trainer.data.template import TokenRow
from halo_trainer.rl.scoring import Sampled


def bundled(rows: Sequence[Sampled], trees: bool, most: int) -> list[Sampled]:
    """Return rows of at most `most` tokens, in their order, or trees of such rows; a row that is longer stays as it is."""
    chained = list(_chains(rows))
    return list(_trees(chained, most)) if trees else chained


def _chains(rows: Iterable[Sampled]) -> Iterator[Sampled]:
    """Join rows of which each begins with all of the one before, and trains nothing of that once more."""
    before: Sampled | None = None
    for each in rows:
        if before is not None and _extends(_row(each), _row(before)):
            old, new = _row(before), _row(each)
            trained = old.trained + new.trained[len(old) :]
            before = _joined([before, each], TokenRow(new.ids, trained))
            continue
        if before is not None:
            yield before
        before = each
    if before is not None:
        yield before


def _trees(rows: Iterable[Sampled], most: int) -> Iterator[Sampled]:
    """Join rows that share a prompt."""
    together: list[Sampled] = []
    shared = tokens = 0
    for each in rows:
        row = _row(each)
        common = min(shared, _common(row, _row(together[0]))) if together else 0
        # Joined with fewer tokens in common the rows before would share less.
        fits = common > 0 and common == min(shared, _prompt(row)) and tokens + len(row) - common <= most
        if together and not fits:
            yield _tree(together, shared)
            together = []
        if together:
            shared, tokens = common, tokens + len(row) - common
        else:
            shared, tokens = _prompt(row), len(row)
        together.append(each)
    if together:
        yield _tree(together, shared)


def _tree(rows: list[Sampled], shared: int) -> Sampled:
    if len(rows) == 1:
        return rows[0]
    first = _row(rows[0])
    root = Segment(first.ids[:shared], bytearray(shared), None)
    branches = [Segment(_row(each).ids[shared:], _row(each).trained[shared:], 0) for each in rows]
    return _joined(rows, Tree((root, *branches)))


def _joined(rows: Iterable[Sampled], row: TokenRow | Tree) -> Sampled:
    """Return the rows as one: the trained tokens come in the same order."""
    values = [array("d"), array("d"), array("d")]
    for each in rows:
        for found, more in zip(values, (each.rollout, each.advantages, each.weights), strict=True):
            found.extend(more)
    return Sampled(row, *values)


def _extends(row: TokenRow, before: TokenRow) -> bool:
    reach = len(before)
    return len(row) > reach and row.ids[:reach] == before.ids and row.trained.find(1, 0, reach) < 0


def _prompt(row: TokenRow) -> int:
    """Return how many tokens stand before the first that trains."""
    return row.trained.index(1)


def _common(row: TokenRow, other: TokenRow) -> int:
    """Return with how many tokens both begin before either trains."""
    most = min(_prompt(row), _prompt(other))
    if row.ids[:most] == other.ids[:most]:
        return most
    return next(at for at in range(most) if row.ids[at] != other.ids[at])


def _row(sampled: Sampled) -> TokenRow:
    assert isinstance(sampled.row, TokenRow)
    return sampled.row
