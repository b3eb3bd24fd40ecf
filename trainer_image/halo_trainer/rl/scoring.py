"""The log-probabilities of sampled tokens by the model that trains: packed, over ranks, and without ever holding all logits."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from halo_trainer.answers import Answers
from halo_trainer.attention import Varlen, install, takes_trees, why_padded
from halo_trainer.data.batches import packs
from halo_trainer.data.bundle import Tree
from halo_trainer.data.collate import collate, collate_flat, sent
from halo_trainer.data.template import TokenRow
from halo_trainer.flops import Work, summed
from halo_trainer.methods import own_layout, row_work, side_by_side, trial_row
from halo_trainer.parallel.context import Context


@dataclass(frozen=True, slots=True)
class Sampled:
    """A row, or several in a tree, whose K trained tokens a rollout server sampled; what is said of them is in their order."""

    row: TokenRow | Tree
    # log p of the server that sampled them, under the distribution that it sampled from, in nats.
    rollout: array[float]
    advantages: array[float]
    # What each weighs in the loss of the step.
    weights: array[float]

    def __len__(self) -> int:
        return len(self.row)


class StepRows:
    """The rows of a step, of all processes, in forward passes of at most `most` tokens on each."""

    def __init__(self, rows: Sequence[Sampled], scorer: Scorer, most: int) -> None:
        self.rows, self._scorer, self._most = rows, scorer, most
        self.lengths: Sequence[int] = [len(row) for row in rows]

    def passes(self, share: Sequence[int], size: int) -> list[list[int]]:
        """Cut a process's rows, longest first, into forward passes of at most `size` times the most tokens."""
        return self._scorer.passes(share, self.lengths, size * self._most)

    def work(self) -> Work:
        """Return what goes through the model in an update."""
        return summed(row_work(each.row) for each in self.rows)


class Scorer:
    """A model of which log-probabilities are asked, at a temperature; rows lie side by side where its architecture allows."""

    def __init__(self, model: Any, device: torch.device, temperature: float, context: Context | None = None) -> None:
        self.model = model
        self._device, self._temperature, self._context = device, temperature, context
        self._answers = Answers(model)
        config = model.get_base_model().config
        self.padded_since = why_padded(config)
        self.takes_trees = self.padded_since is None and takes_trees(config)
        if self.padded_since is None:
            install(model.get_base_model())

    def alone(self) -> Scorer:
        """Return the same model without a temperature, whose every process computes all tokens of a row."""
        other = copy.copy(self)
        other._temperature, other._context = 1.0, None
        return other

    def passes(self, share: Sequence[int], lengths: Sequence[int], most: int) -> list[list[int]]:
        """Cut rows, longest first, into forward passes of at most so many tokens, padding and all; a longer row has its own.

        Of ranks that split rows none has more than its part of a row of so many.
        """
        if self._context:
            return self._context.passes(share, lengths, self.pass_tokens(most))
        if self.padded_since is None:
            return packs(share, lengths, most)
        found: list[list[int]] = []
        for index in share:
            if not found or (len(found[-1]) + 1) * lengths[found[-1][0]] > most:
                found.append([])
            found[-1].append(index)
        return found

    def pass_tokens(self, most: int) -> int:
        """Return how many of a pass's tokens one process has: a group of them has its part of a longer row each."""
        return self._context.room(1, most) if self._context else most

    def log_probs(self, rows: Sequence[TokenRow | Tree]) -> tuple[Tensor, Tensor]:
        """Return log p (K) of those trained tokens of the rows that this process has, with a gradient, and each one's place.

        The places count the trained tokens of all the rows, one row behind the other.
        """
        if self.padded_since is not None:
            return self._padded([row for row in rows if isinstance(row, TokenRow)])
        layouts, first = [], 0
        targets = array("i")
        for layout in map(own_layout, rows):
            # Its targets' places go through the layout in their stead: a rank's part of split rows has them in an order of its own.
            places = array("i", range(first, first := first + len(layout.targets)))
            targets.extend(layout.targets)
            layouts.append(dataclasses.replace(layout, targets=places))
        part, varlen = side_by_side(layouts, self._context, self._device)
        batch = collate_flat(part, self._device)
        places_K = batch.targets_BK.squeeze(0)
        targets_K = sent(torch.tensor(targets, dtype=torch.long), self._device)[places_K]
        batch = dataclasses.replace(batch, targets_BK=targets_K.unsqueeze(0))
        return -self._answers.flat_nll(batch, varlen, self._temperature).squeeze(0), places_K

    def trial(self, length: int) -> Tensor:
        """Return a loss of a row of a length, all of whose tokens train; of a rank's part of a longer one, without its group."""
        if self.padded_since is not None:
            return self._padded([trial_row(length)])[0].sum()
        layout = own_layout(trial_row(length))
        attends = self._context.trial if self._context else Varlen.trial
        varlen = attends(layout, 1, self._device)
        return self._answers.flat_nll(collate_flat(layout, self._device), varlen, self._temperature).sum()

    def _padded(self, rows: Sequence[TokenRow]) -> tuple[Tensor, Tensor]:
        batch = collate(rows, 0, self._device)
        log_p_BK = -self._answers.padded_nll(batch, self._temperature)
        log_p_K = log_p_BK[batch.trained_BK]
        return log_p_K, torch.arange(len(log_p_K), device=self._device)


def pass_values(rows: Sequence[Sampled], name: str, places_K: Tensor) -> Tensor:
    """Return what the rows of a pass say of those tokens under that name: rollout, advantages or weights, in fp64."""
    every = list(itertools.chain.from_iterable(getattr(row, name) for row in rows))
    return torch.tensor(every, dtype=torch.float64).to(places_K.device)[places_K]


@contextmanager
def with_weights(parameters: dict[str, torch.nn.Parameter], others: dict[str, Tensor]) -> Iterator[None]:
    """Let a LoRA have other weights for a while, such as those of the parent that a run goes on from."""
    own = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(others[name])
    try:
        yield
    finally:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(own[name])
