"""Processes that stay: the ranks of a run, which do one piece of work together after another."""

from __future__ import annotations

import functools
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from tiny_models import gradient_of, tiny_model

from halo_trainer.activations import compute_again
from halo_trainer.data.batches import lockstep, rank_share
from halo_trainer.data.bundle import Tree
from halo_trainer.data.template import TokenRow
from halo_trainer.methods import PackedSft
from halo_trainer.model import trained_parameters
from halo_trainer.parallel.context import Context
from halo_trainer.parallel.ranks import Group, Ranks
from halo_trainer.parallel.shard import idle_pass, shard

CPU = torch.device("cpu")
# Ranks that wait for each other for ever are a failure, and told so.
WAIT_SECONDS = 300


class Workers:
    """The ranks of a world, connected by gloo. `ask` lets each do the same piece of work, and returns what each makes of it."""

    def __init__(self, world: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        start = multiprocessing.get_context("spawn")
        self._ends, self._processes = [], []
        for rank in range(world):
            here, there = start.Pipe()
            process = start.Process(target=_serve, args=(there, rank, world, port), daemon=True)
            process.start()
            self._ends.append(here)
            self._processes.append(process)

    def ask(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return the answers by rank; `work` gets the rank's `Ranks` before the arguments."""
        for end in self._ends:
            end.send((work, arguments))
        answers = []
        for rank, end in enumerate(self._ends):
            if not end.poll(WAIT_SECONDS):
                # Its late answer must not be taken for that of another question.
                self.close()
                raise AssertionError(f"rank {rank} is stuck")
            answer, failure = end.recv()
            assert failure is None, failure
            answers.append(answer)
        return answers

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _serve(end: Connection, rank: int, world: int, port: int) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = Ranks(rank, world)
    ranks.connect(CPU, WAIT_SECONDS / 2)
    while True:
        try:
            work, arguments = end.recv()
        except EOFError:
            return
        try:
            end.send((work(ranks, *arguments), None))
        except Exception:
            end.send((None, traceback.format_exc()))


@functools.cache
def _group(ranks: Ranks, size: int) -> Group:
    return ranks.group(size)


@functools.cache
def _model(kind: str, dtype: torch.dtype, over: int) -> Any:
    """A model, sharded if it is to be over more than one rank."""
    model = tiny_model(kind, dtype)
    if over > 1:
        shard(model, CPU, over)
    return model


def step_gradient(
    ranks: Ranks,
    kind: str,
    dtype: torch.dtype,
    rows: Sequence[TokenRow | Tree],
    sharing: int,
    whole: int,
    size: int,
    again: int = 0,
    sharded: bool = False,
) -> tuple[torch.Tensor, float, int]:
    """Do a step of these rows as the loop does, `sharing` ranks a group; return its gradient, its loss, and this rank's passes.

    The first `again` layers are computed again in the backward pass; the base is whole on each rank, or sharded.
    """
    model = _model(kind, dtype, ranks.world if sharded else 1)
    compute_again(model, again)
    context = Context(_group(ranks, sharing), whole) if sharing > 1 else None
    method = PackedSft(rows, model, CPU, context=context)
    step = list(range(len(rows)))
    rank, world = ranks.rank // sharing, ranks.world // sharing
    passes: Sequence[list[int] | None]
    if sharded:
        passes = lockstep(step, method.lengths, rank, world, functools.partial(method.passes, size=size))
    else:
        passes = method.passes(rank_share(step, method.lengths, rank, world), size)
    loss = torch.zeros((), dtype=torch.float64)
    for part in passes:
        if part is None:
            idle_pass(model, CPU)
            continue
        added = method.share(part, step).loss
        added.backward()  # type: ignore[no-untyped-call]
        loss += added.detach()
    ranks.sum_gradients(trained_parameters(model).values())
    return gradient_of(model), float(ranks.sum_values(loss)), len(passes)
