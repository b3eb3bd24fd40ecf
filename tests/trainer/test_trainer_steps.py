"""One optimizer step: which rows it sees, and that nothing but they decide its gradient."""

from __future__ import annotations

import collections
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trainer_support import colour_rows

from halo_api.run_file import BaseRef
from halo_api.run_status import FrozenLora
from halo_trainer.data.batches import micro_batches, rank_share, step_rows
from halo_trainer.data.collate import collate, trained_tokens
from halo_trainer.data.load import load_template
from halo_trainer.data.rows import chat_row
from halo_trainer.data.template import TokenRow
from halo_trainer.model import answer_logits, attach_lora, load_base, trained_parameters
from halo_trainer.objectives.sft import sft_loss
from halo_trainer.schedule import learning_rate

CPU = torch.device("cpu")
BASE = BaseRef(name="tiny", source="pvc://models/tiny", revision="abcdef0", dtype="fp32", context_length=512)


@given(rows=st.integers(1, 40), batch=st.integers(1, 20), seed=st.integers(0, 3), step=st.integers(0, 60))
def test_an_epoch_is_every_row_once(rows: int, batch: int, seed: int, step: int) -> None:
    stream = [index for each in range(step + 1) for index in step_rows(rows, batch, seed, each)]
    for start in range(0, len(stream) - rows + 1, rows):
        assert sorted(stream[start : start + rows]) == list(range(rows))


def test_epochs_and_seeds_have_their_own_order() -> None:
    orders = {tuple(step_rows(30, 30, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=20),
    world=st.integers(1, 5),
    size=st.integers(1, 6),
)
def test_ranks_and_micro_batches_share_a_step_without_loss(lengths: list[int], world: int, size: int) -> None:
    indices = list(range(len(lengths)))[::-1]
    shares = [rank_share(indices, lengths, rank, world) for rank in range(world)]
    parts = [part for share in shares for part in micro_batches(share, size)]
    assert collections.Counter(index for part in parts for index in part) == collections.Counter(indices)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert all(len(part) <= size for part in parts)


def test_the_learning_rate_is_what_the_spec_says() -> None:
    rates = [learning_rate(1.0, step, 10, 2, "cosine") for step in range(10)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[6] == pytest.approx(0.5)
    assert rates[9] == pytest.approx(0.5 * (1 + math.cos(math.pi * 7 / 8)))
    linear = [learning_rate(1.0, step, 4, 0, "linear") for step in range(4)]
    assert linear == [1.0, 0.75, 0.5, 0.25]
    assert [learning_rate(1.0, step, 3, 3, "constant") for step in range(3)] == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_the_loss_by_hand() -> None:
    logits = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]]))
    targets = torch.tensor([[0, 1, 2]])
    trained = torch.tensor([[True, False, True]])
    loss = sft_loss(logits, targets, trained, 2)
    assert loss.item() == pytest.approx(-(math.log(0.5) + math.log(0.6)) / 2)
    infinite = torch.tensor([[[0.0, -math.inf], [0.0, 0.0]]])
    assert sft_loss(infinite, torch.tensor([[1, 0]]), torch.tensor([[False, True]]), 1).item() == pytest.approx(
        math.log(2)
    )


@pytest.fixture(scope="module")
def step(tiny_base: Path) -> tuple[object, list[TokenRow]]:
    """A model whose adapter is not the identity, and the rows of a step."""
    template = load_template(BASE, tiny_base)
    rows = [template.token_row(chat_row(i, row)) for i, row in enumerate(colour_rows(8))]
    model = attach_lora(load_base(BASE, tiny_base), FrozenLora(dataset="chat", rank=4, alpha=8), 0)
    torch.manual_seed(1)
    for parameter in trained_parameters(model).values():
        torch.nn.init.normal_(parameter, std=0.3)
    return model, rows


def gradient(step: tuple[object, list[TokenRow]], parts: list[list[int]]) -> torch.Tensor:
    model, rows = step
    parameters = trained_parameters(model)  # type: ignore[arg-type]
    for parameter in parameters.values():
        parameter.grad = None
    denominator = trained_tokens([rows[index] for part in parts for index in part])
    for part in parts:
        micro = collate([rows[index] for index in part], 0, CPU)
        sft_loss(answer_logits(model, micro), micro.targets_BK, micro.trained_BK, denominator).backward()
    return torch.cat([p.grad.reshape(-1) for p in parameters.values() if p.grad is not None])


@pytest.mark.parametrize(
    "parts",
    [
        [[0, 1], [2, 3], [4, 5], [6, 7]],
        [[0], [1], [2], [3], [4], [5], [6], [7]],
        [[7, 6, 5, 4, 3, 2, 1, 0]],
        [[4, 0, 2], [6, 1], [7, 3, 5]],
        # The shares of three ranks, each in micro-batches of two.
        [[0, 3], [6], [1, 4], [7], [2, 5]],
    ],
)
def test_the_gradient_does_not_depend_on_how_the_step_is_cut(
    step: tuple[object, list[TokenRow]], parts: list[list[int]]
) -> None:
    whole = gradient(step, [list(range(8))])
    assert (gradient(step, parts) - whole).norm() / whole.norm() < 1e-5


def test_only_needed_logits_and_padding_change_nothing(step: tuple[object, list[TokenRow]]) -> None:
    """The loss of a row is transformers' own on that row alone."""
    model, rows = step
    for row in rows[:4]:
        ids = torch.tensor([list(row.ids)])
        labels = torch.where(torch.tensor([list(row.trained)], dtype=torch.bool), ids, -100)
        expected = model(input_ids=ids, labels=labels).loss.item()  # type: ignore[operator]
        micro = collate([row, rows[4]], 0, CPU)
        trained = micro.trained_BK.clone()
        trained[1] = False
        loss = sft_loss(answer_logits(model, micro), micro.targets_BK, trained, trained_tokens([row]))
        assert loss.item() == pytest.approx(expected, rel=1e-5)
