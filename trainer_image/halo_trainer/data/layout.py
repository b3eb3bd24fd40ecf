"""Layouts: rows, and trees of rows that share their beginnings, as one flat sequence of tokens for one forward pass. Pure.

A layout is made of spans. A span is a run of tokens that follows all of its parent, an earlier span, or nothing:

    token q sees token k  if and only if  k's span is q's own or one of its ancestors, and k stands no later than q

Rows side by side are spans without a parent (packing); steps of an agent run that fork are spans that share one. The position
of a token is how many tokens it sees before itself, as it would be in a row of its own. So each token has the inputs that it
has in its own row, and its loss and gradient are those of that row.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from halo_trainer.data.template import TokenRow


class Segment(Protocol):
    """A piece of a tree: tokens that follow all of `parent`, the place of an earlier one in the tree, or nothing.

    `trained[i]` is 1 where token i is an answer's; the first token of a piece without a parent has nothing that predicts it.
    """

    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def trained(self) -> Sequence[int]: ...
    @property
    def parent(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Span:
    """Where a segment lies in the flat sequence: `start` to `end`, and the place of its parent among the spans."""

    start: int
    end: int
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Queries that are attended together: they see all keys of the slices `before`, then each its own and the earlier of the run."""

    start: int
    end: int
    before: tuple[tuple[int, int], ...] = ()

    @property
    def keys(self) -> tuple[tuple[int, int], ...]:
        """The slices of the flat sequence that hold the keys, in their order; the last is the queries themselves."""
        return (*self.before, (self.start, self.end))


@dataclass(frozen=True, slots=True)
class Layout:
    """One flat sequence of T tokens, and K pairs of a place that predicts and the token that it predicts.

    The pairs are a list, as a token at a fork predicts several next tokens. They come in the order of the predicted tokens.
    """

    ids: array[int]
    positions: array[int]
    spans: tuple[Span, ...]
    predicts: array[int]
    targets: array[int]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that attention computes; they tile the sequence.

        A span that follows its parent at once goes on with its run: only the second child of a span needs keys from elsewhere.
        """
        found: list[Run] = []
        paths: list[tuple[tuple[int, int], ...]] = []
        for place, span in enumerate(self.spans):
            above = () if span.parent is None else paths[span.parent]
            if place > 0 and span.parent == place - 1:
                found[-1] = Run(found[-1].start, span.end, found[-1].before)
                paths.append((*above[:-1], (above[-1][0], span.end)))
            else:
                found.append(Run(span.start, span.end, above))
                paths.append((*above, (span.start, span.end)))
        return tuple(found)


def row_layout(row: TokenRow) -> Layout:
    """Lay out one row."""
    trained = row.trained[1:]
    return Layout(
        row.ids,
        array("i", range(len(row))),
        (Span(0, len(row)),),
        array("i", itertools.compress(range(len(row)), trained)),
        array("i", itertools.compress(row.ids[1:], trained)),
    )


def tree_layout(tree: Sequence[Segment]) -> Layout:
    """Lay out a tree, or several: each segment behind its parent, not necessarily at once. Raise ValueError if it is none."""
    ids, positions, predicts, targets = (array("i") for _ in range(4))
    spans: list[Span] = []
    for place, segment in enumerate(tree):
        parent = segment.parent
        if not segment.ids or len(segment.ids) != len(segment.trained):
            raise ValueError(f"segment {place} has {len(segment.ids)} tokens and marks {len(segment.trained)} of them")
        if parent is not None and not 0 <= parent < place:
            raise ValueError(f"segment {place} follows segment {parent}, which is not before it")
        start, length = len(ids), len(segment.ids)
        # The place before each token on its path.
        last = -1 if parent is None else spans[parent].end - 1
        depth = 0 if last < 0 else positions[last] + 1
        for at, (token, trains) in enumerate(zip(segment.ids, segment.trained, strict=True)):
            before = start + at - 1 if at else last
            if trains and before >= 0:
                predicts.append(before)
                targets.append(token)
        ids.extend(segment.ids)
        positions.extend(range(depth, depth + length))
        spans.append(Span(start, start + length, parent))
    return Layout(ids, positions, tuple(spans), predicts, targets)


def joined(layouts: Iterable[Layout]) -> Layout:
    """Lay out layouts side by side: no token sees another layout's."""
    ids, positions, predicts, targets = (array("i") for _ in range(4))
    spans: list[Span] = []
    for layout in layouts:
        shift, first = len(ids), len(spans)
        ids.extend(layout.ids)
        positions.extend(layout.positions)
        spans.extend(
            Span(span.start + shift, span.end + shift, None if span.parent is None else span.parent + first)
            for span in layout.spans
        )
        predicts.extend(place + shift for place in layout.predicts)
        targets.extend(layout.targets)
    return Layout(ids, positions, tuple(spans), predicts, targets)


def packed(rows: Iterable[TokenRow]) -> Layout:
    """Lay out rows side by side."""
    return joined(map(row_layout, rows))
