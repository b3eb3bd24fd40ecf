"""From scored episodes to the rows that train: the very tokens that were sampled, each with its log-probability. Pure.

A row holds a prompt and what was sampled behind it, and only sampled tokens train. Of layout `turn` each assistant turn is a
row, with the prompt that it was sampled from; of layout `trajectory` an episode is one row, in which all answers train. Where
a turn's prompt does not begin with all of the turn before, a trajectory goes on in a row of its own: no token ever trains
behind another prompt than it was sampled from.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from halo_api.recipe_settings import RecipeSettings
from halo_trainer.data.template import TokenRow
from halo_trainer.rollouts.episode import Episode, Turn


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """Where in a row a sampled answer stands, `start` to `end`, which turn of its episode it is, and what sampled it."""

    start: int
    end: int
    turn: int
    policy: int
    model: str


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """A row of an episode. `row` goes through the model as any row does; K of its tokens train.

    `log_probs` has K values, in nats, in the order of the trained tokens, which is that of a layout's targets: what the
    server sampled each with. `masked` says why K is 0: the row counts in its group and trains nothing.
    """

    row: TokenRow
    log_probs: array[float]
    answers: tuple[AnswerSpan, ...]
    # Which group of the round, and which place in it, its episode has.
    group: int
    episode: int
    advantage: float = 0.0
    masked: Literal["truncated", "overlength"] | None = None

    def __len__(self) -> int:
        return len(self.row)

    @property
    def trained_tokens(self) -> int:
        """K."""
        return len(self.log_probs)

    @property
    def policy(self) -> int:
        """The oldest policy that sampled something of it."""
        return min(answer.policy for answer in self.answers)


@dataclass(frozen=True)
class RowRules:
    """What the recipe says of rows; `max_tokens` None: none is too long."""

    layout: Literal["turn", "trajectory"]
    max_tokens: int | None
    truncated: Literal["train", "mask"]

    @classmethod
    def of(cls, settings: RecipeSettings) -> RowRules:
        """Take them from a recipe."""
        return cls(settings.rows.layout, settings.rows.max_tokens, settings.objective.truncated_answers)


def group_rows(episodes: Sequence[Episode], group: int, rules: RowRules) -> list[RolloutRow]:
    """Return the rows of a group's episodes, in their order."""
    return [row for place, episode in enumerate(episodes) for row in episode_rows(episode, group, place, rules)]


def episode_rows(episode: Episode, group: int, place: int, rules: RowRules) -> list[RolloutRow]:
    """Return the rows of an episode, none where it was not scored.

    `truncated: mask` is DAPO's overlong filtering (arXiv 2503.14476, 3.4): the reward of an episode that a token limit ended
    says little of any of its answers, so none of them trains.
    """
    if not episode.scored:
        return []
    chains = [[turn] for turn in enumerate(episode.turns)] if rules.layout == "turn" else _chains(episode.turns)
    return [_row(chain, episode, group, place, rules) for chain in chains]


def _chains(turns: Iterable[Turn]) -> list[list[tuple[int, Turn]]]:
    """Cut turns where a prompt does not begin with all of the turn before."""
    chains: list[list[tuple[int, Turn]]] = []
    for at, turn in enumerate(turns):
        if chains and _extends(turn, chains[-1][-1][1]):
            chains[-1].append((at, turn))
        else:
            chains.append([(at, turn)])
    return chains


def _extends(turn: Turn, before: Turn) -> bool:
    cut = len(before.prompt)
    end = cut + len(before.answer)
    return turn.prompt[:cut] == before.prompt and turn.prompt[cut:end] == before.answer


def _row(chain: list[tuple[int, Turn]], episode: Episode, group: int, place: int, rules: RowRules) -> RolloutRow:
    last = chain[-1][1]
    ids = last.prompt + last.answer
    masked: Literal["truncated", "overlength"] | None = None
    if rules.max_tokens is not None and len(ids) > rules.max_tokens:
        masked = "overlength"
    elif episode.truncated and rules.truncated == "mask":
        masked = "truncated"
    trained, log_probs = bytearray(len(ids)), array("d")
    answers = tuple(_spans(chain))
    if masked is None:
        for span, (_, turn) in zip(answers, chain, strict=True):
            trained[span.start : span.end] = b"\1" * len(turn.answer)
            log_probs.extend(turn.log_probs)
    return RolloutRow(TokenRow(ids, trained), log_probs, answers, group, place, masked=masked)


def _spans(chain: Iterable[tuple[int, Turn]]) -> Iterator[AnswerSpan]:
    for at, turn in chain:
        start = len(turn.prompt)
        yield AnswerSpan(start, start + len(turn.answer), at, turn.policy, turn.model)
