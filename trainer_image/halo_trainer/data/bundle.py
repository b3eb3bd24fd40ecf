"""Bundles: consecutive steps of one agent run as one row, in which each answer trains exactly as its own row would. Pure.

A token's loss depends on the tokens before it and on nothing else. So two rows may share their common beginning, as long as
every trained token still sees what it saw, and each row's answer has a place of its own:

    step rows   P1 A1 · P2 A2 · P3 A3,   where P2 begins with P1 A1, and P3 with P2 A2
    bundle      P3 A3, in which A1, A2 and A3 train

A linear bundle is an ordinary row, exact for any base that reads from left to right, recurrent ones too. Where a step does
not begin with all of the one before (a template that drops old thinking, a context that was cut), there is a fork: linear
bundles start a new row there; a tree goes on from the last common token, for bases that are packed.

An answer that is trained is never trained again where a later step repeats it as history, but identical steps are rows of
their own and so train as often as there are of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from halo_trainer.data.template import TokenRow


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens of a tree that follows all of `parent`, an earlier segment; None begins at position 0.

    `trained[i]` is 1 where token i is an answer's; as in a row, one that nothing stands before has no loss.
    """

    ids: array[int]
    trained: bytearray
    parent: int | None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Tree:
    """Steps of one agent run that share their beginnings: segments, each behind its parent."""

    segments: tuple[Segment, ...]
    run: str = ""

    def __len__(self) -> int:
        return sum(map(len, self.segments))

    @property
    def predicted(self) -> int:
        """The tokens that train; the first one of a segment without a parent has nothing that predicts it."""
        return sum(sum(each.trained[each.parent is None :]) for each in self.segments)

    @property
    def pairs(self) -> int:
        """Tokens with a token that they see, themselves among them."""
        ends: list[int] = []
        pairs = 0
        for segment in self.segments:
            before = 0 if segment.parent is None else ends[segment.parent]
            ends.append(before + len(segment))
            pairs += len(segment) * before + len(segment) * (len(segment) + 1) // 2
        return pairs

    @property
    def copies(self) -> float:
        """How often attention has each token as a key: a run of it gets the keys of its whole path, once it forks."""
        ends: list[int] = []
        keys = 0
        for place, segment in enumerate(self.segments):
            before = 0 if segment.parent is None else ends[segment.parent]
            ends.append(before + len(segment))
            # One that follows its parent at once goes on with its run.
            keys += len(segment) + (before if segment.parent not in (None, place - 1) else 0)
        return keys / len(self)


@dataclass(slots=True)
class Tally:
    """What bundling saves: the tokens of the steps' own rows against those of the rows that train."""

    steps: int = 0
    rows: int = 0
    step_tokens: int = 0
    row_tokens: int = 0

    @property
    def ratio(self) -> float:
        """Tokens without bundles for each with them."""
        return self.step_tokens / max(self.row_tokens, 1)

    def __str__(self) -> str:
        return (
            f"{self.steps} steps in {self.rows} rows: {self.step_tokens} tokens as rows of their own, "
            f"{self.row_tokens} bundled, {self.ratio:.2f} times less"
        )


def linear_bundles(steps: Iterable[TokenRow], most: int, tally: Tally, reach: int | None = None) -> Iterator[TokenRow]:
    """Yield rows of up to `most` consecutive steps of a run, each step beginning with all of the one before.

    `reach`: up to how many tokens a step has in a longer row the positions that it has alone; unset: of any length.
    """
    row: TokenRow | None = None
    count = 0
    for step in map(taught, steps):
        tally.steps += 1
        tally.step_tokens += len(step)
        fits = count < most and (reach is None or len(step) <= reach)
        if row is not None and fits and _extends(step, row):
            trained = bytearray(step.trained)
            trained[: len(row)] = row.trained
            row, count = TokenRow(step.ids, trained, step.run), count + 1
            continue
        if row is not None:
            yield _counted(row, tally)
        row, count = step, 1
    if row is not None:
        yield _counted(row, tally)


def tree_bundles(steps: Iterable[TokenRow], most: int, max_length: int, tally: Tally) -> Iterator[Tree]:
    """Yield trees of up to `most` consecutive steps of a run and `max_length` tokens, unless one step alone has more."""
    tree = _Growing()
    for step in map(taught, steps):
        tally.steps += 1
        tally.step_tokens += len(step)
        fits = tree.steps < most and tree.run == step.run != "" and tree.tokens + tree.adds(step) <= max_length
        if tree.steps and not fits:
            yield _counted_tree(tree, tally)
            tree = _Growing()
        tree.add(step)
    if tree.steps:
        yield _counted_tree(tree, tally)


def taught(row: TokenRow) -> TokenRow:
    """Return the row up to its last trained token: nothing sees what follows."""
    end = row.trained.rfind(1) + 1
    return row if end == len(row) else row.truncated(end)


def _extends(step: TokenRow, row: TokenRow) -> bool:
    """Whether a step of the same run begins with all of the row, and trains nothing of that once more."""
    reach = len(row)
    return step.run == row.run != "" and step.ids[:reach] == row.ids and step.trained.find(1, 0, reach) < 0


def _counted(row: TokenRow, tally: Tally) -> TokenRow:
    tally.rows += 1
    tally.row_tokens += len(row)
    return row


def _counted_tree(tree: _Growing, tally: Tally) -> Tree:
    tally.rows += 1
    tally.row_tokens += tree.tokens
    return Tree(tree.segments(), tree.run)


def _trained(step: TokenRow, start: int, length: int) -> Iterator[int]:
    """Yield the places, counted from `start`, of the trained tokens among the next `length`."""
    at = start - 1
    while (at := step.trained.find(1, at + 1, start + length)) >= 0:
        yield at - start


@dataclass(slots=True, eq=False)
class _Node:
    ids: array[int]
    trained: bytearray
    children: list[_Node] = field(default_factory=list)

    def shares(self, step: TokenRow, start: int) -> int:
        """Return how many of this node's tokens the step from `start` on has too, and does not want to train again."""
        length = min(len(self.ids), len(step) - start)
        if self.ids[:length] != step.ids[start : start + length]:
            length = next(at for at in range(length) if self.ids[at] != step.ids[start + at])
        return next((at for at in _trained(step, start, length) if self.trained[at]), length)


class _Growing:
    """A tree that steps are added to: a radix tree over tokens, where an untrained token may begin to train, once."""

    def __init__(self) -> None:
        self._root = _Node(array("i"), bytearray())
        self.run = ""
        self.steps = self.tokens = 0

    def adds(self, step: TokenRow) -> int:
        """Return how many tokens the tree would get."""
        return len(step) - self._place(step)[1]

    def add(self, step: TokenRow) -> None:
        path, reach = self._place(step)
        start = 0
        for node, shared in path:
            for at in _trained(step, start, shared):
                node.trained[at] = 1
            start += shared
        node, shared = path[-1]
        self.run = step.run
        self.steps += 1
        self.tokens += len(step) - reach
        if reach == len(step):
            return
        if shared < len(node.ids):
            node.children = [_Node(node.ids[shared:], node.trained[shared:], node.children)]
            del node.ids[shared:], node.trained[shared:]
        elif not node.children and node is not self._root:
            node.ids += step.ids[reach:]
            node.trained += step.trained[reach:]
            return
        node.children.append(_Node(step.ids[reach:], step.trained[reach:]))

    def segments(self) -> tuple[Segment, ...]:
        """Return the nodes, each behind its parent, depth first."""
        found: list[Segment] = []
        waiting: list[tuple[_Node, int | None]] = [(child, None) for child in reversed(self._root.children)]
        while waiting:
            node, parent = waiting.pop()
            waiting += [(child, len(found)) for child in reversed(node.children)]
            found.append(Segment(node.ids, node.trained, parent))
        return tuple(found)

    def _place(self, step: TokenRow) -> tuple[list[tuple[_Node, int]], int]:
        """Return the nodes that the step shares, each with how many of its tokens, and how many tokens that is."""
        path, reach = [(self._root, 0)], 0
        while path[-1][1] == len(path[-1][0].ids):
            options = [(child, child.shares(step, reach)) for child in path[-1][0].children]
            node, shared = max(options, key=lambda option: option[1], default=(self._root, 0))
            if shared == 0:
                break
            path.append((node, shared))
            reach += shared
        return path, reach
