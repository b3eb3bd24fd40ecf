"""What each rank of a gradient test does: random steps dealt out over all ranks, held to their rows alone; by torchrun's environment.

The base is on every rank, and then sharded over them. The first rank draws the steps, as a failure would have the others go on.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from random_layouts import GRADIENTS, runs
from tiny_models import VOCABULARY, difference, gradient_of, tiny_model

from halo_trainer.attention import install
from halo_trainer.data.batches import even_passes
from halo_trainer.data.bundle import Tally, tree_bundles
from halo_trainer.data.collate import collate, trained_tokens
from halo_trainer.data.template import TokenRow
from halo_trainer.methods import PackedSft
from halo_trainer.model import answer_logits, settle_torch, trained_parameters
from halo_trainer.objectives.sft import sft_loss
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.parallel.shard import shard

CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "fp64": torch.float64}


def drawn(count: int) -> list[tuple[list[TokenRow], int, int]]:
    """Draw steps of agent runs, how many are bundled, and how many rows a pass may have."""
    found = []

    @settings(GRADIENTS, max_examples=count, database=None)
    @given(runs(VOCABULARY), st.integers(1, 6), st.integers(1, 3))
    def draw(steps: list[TokenRow], most: int, size: int) -> None:
        if any(trained_tokens([step]) for step in steps):
            found.append((steps, most, size))

    draw()
    return found


def summed(method: PackedSft, model: Any, size: int, ranks: Ranks) -> torch.Tensor:
    """Return the gradient of a step of all the method's rows as each rank has it."""
    step = list(range(len(method.lengths)))
    parts, idle = even_passes(
        step, method.lengths, ranks.rank, ranks.world, functools.partial(method.passes, size=size)
    )
    for part in parts:
        method.share(part, step).loss.backward()
    for part in idle:
        (0.0 * method.share(part, step).loss).backward()
    ranks.sum_gradients(trained_parameters(model).values())
    return gradient_of(model)


def main(count: str, *bases: str) -> None:
    """Compare on each base, named by its kind, precision and bound; an assertion that fails ends this rank."""
    settle_torch()
    ranks = Ranks.of_environment()
    ranks.connect(CPU, 120)
    every: list[Any] = [drawn(int(count))] if ranks.writes else [None]
    dist.broadcast_object_list(every)
    for base in bases:
        kind, dtype, bound = base.split()
        compare(kind, DTYPES[dtype], float(bound), every[0], ranks)
    ranks.disconnect()


def compare(kind: str, dtype: torch.dtype, bound: float, cases: Any, ranks: Ranks) -> None:
    """Hold the gradient of each case to that of its rows, and the sharded base's to the bit."""
    alone, whole, sharded = (tiny_model(kind, dtype, num_hidden_layers=3) for _ in range(3))
    shard(sharded, CPU, ranks.world)
    for model in (whole, sharded):
        install(model.get_base_model())
    fewer = 0
    for steps, most, size in cases:
        kept = [step for step in steps if trained_tokens([step])]
        denominator = trained_tokens(kept)
        trees = list(tree_bundles(kept, most, 1 << 20, Tally()))
        fewer += len(trees) < ranks.world
        found = summed(PackedSft(trees, whole, CPU), whole, size, ranks)
        assert torch.equal(summed(PackedSft(trees, sharded, CPU), sharded, size, ranks), found), (kind, trees)
        expected = torch.zeros(())
        for step in kept:
            micro = collate([step], 0, CPU)
            sft_loss(answer_logits(alone, micro), micro.targets_BK, micro.trained_BK, denominator).backward()
            expected = expected + gradient_of(alone)
        assert difference(found, expected) <= bound, (kind, trees)
    assert fewer


if __name__ == "__main__":
    main(*sys.argv[1:])
