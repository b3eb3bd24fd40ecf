"""Random rows, trees of rows and steps of agent runs, as hypothesis draws them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from halo_trainer.data.layout import Layout
from halo_trainer.data.template import TokenRow

# For gradients, which are held to a bound in floating point: the same draws each time, since a lone row's own rounding can be
# larger than the bound in one draw of a million.
GRADIENTS = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Segment:
    """A piece of a tree of rows."""

    ids: array[int]
    trained: bytearray
    parent: int | None


@st.composite
def segments(draw: st.DrawFn, most: int = 7) -> list[Segment]:
    """Trees of random shapes, with several roots; tokens are few, so that paths often have the same text."""
    tree = []
    for place in range(draw(st.integers(1, most))):
        row = draw(token_rows(5))
        parent = draw(st.none() | st.integers(0, place - 1)) if place else None
        tree.append(Segment(row.ids, row.trained, parent))
    return tree


@st.composite
def token_rows(draw: st.DrawFn, longest: int = 12) -> TokenRow:
    """Rows of any marks, also of none."""
    length = draw(st.integers(1, longest))
    ids = draw(st.lists(st.integers(0, 3), min_size=length, max_size=length))
    trained = draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
    return TokenRow(array("i", ids), bytearray(trained))


def path(tree: list[Segment], place: int) -> list[Segment]:
    """Return the segments from the root to this one: its own row."""
    found = [tree[place]]
    while (parent := found[0].parent) is not None:
        found.insert(0, tree[parent])
    return found


def rows_of(tree: list[Segment]) -> list[TokenRow]:
    """Return the rows whose union the tree is: one for each segment in which something trains, and only that trains."""
    found = []
    for place, segment in enumerate(tree):
        ids = array("i", [token for part in path(tree, place) for token in part.ids])
        trained = bytearray(len(ids) - len(segment.ids)) + segment.trained
        if any(trained[1:]):
            found.append(TokenRow(ids, trained))
    return found


def seen(layout: Layout) -> list[list[int]]:
    """The places that each place sees, by the rule of spans."""
    found = []
    for place, span in enumerate(layout.spans):
        above: list[int] = []
        parent = span.parent
        while parent is not None:
            above = [*range(layout.spans[parent].start, layout.spans[parent].end), *above]
            parent = layout.spans[parent].parent
        assert place == 0 or span.start == layout.spans[place - 1].end
        found += [[*above, *range(span.start, at + 1)] for at in range(span.start, span.end)]
    assert len(found) == len(layout)
    return found


def row(run: str, prompt: Sequence[int], answer: Sequence[int], tail: Sequence[int] = ()) -> TokenRow:
    trained = bytearray(len(prompt)) + bytearray([1] * len(answer)) + bytearray(len(tail))
    return TokenRow(array("i", [*prompt, *answer, *tail]), trained, run)


# Two forks from one prompt, of which the second goes on; a step that trains twice; and a run of one step.
FORKS = [
    row("a", [5, 6, 7], [8, 9]),
    row("a", [5, 6, 7, 9, 10], [11]),
    row("a", [5, 6, 7, 9, 10, 11], [12, 13]),
    row("a", [5, 6, 7, 9, 10, 11], [12, 13]),
    row("b", [5, 6], [7, 8, 9]),
]


@st.composite
def runs(draw: st.DrawFn, most_tokens: int = 8) -> list[TokenRow]:
    """Steps of a few runs: most see all that was said; some forget or rewrite a part, some are the step before once more."""
    tokens = st.integers(0, most_tokens - 1)
    steps: list[TokenRow] = []
    for run in draw(st.lists(st.sampled_from("ab"), min_size=1, max_size=3)):
        history = draw(st.lists(tokens, min_size=1, max_size=4))
        for _ in range(draw(st.integers(1, 5))):
            kind = draw(st.sampled_from(("extends", "extends", "empty observation", "forgets", "again", "repeats")))
            if kind == "again" and steps and steps[-1].run == run:
                steps.append(steps[-1])
                continue
            if kind == "forgets":
                history = history[: draw(st.integers(1, len(history)))]
            if kind == "repeats":
                # The answer that was trained before is history in a conversation that began otherwise.
                history = [*draw(st.lists(tokens, min_size=1, max_size=2)), *history[-2:]]
            if kind != "empty observation":
                history = history + draw(st.lists(tokens, max_size=3))
            answer = draw(st.lists(tokens, min_size=1, max_size=4))
            tail = draw(st.lists(tokens, max_size=1))
            steps.append(row(run, history, answer, tail))
            history = history + answer + tail
    return steps
