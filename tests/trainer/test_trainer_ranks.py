"""Several ranks: a step has the gradient of its rows, and a run that loses one goes on to the bytes of a straight run.

With bundles, packing and dropout, on one node and on two that meet, with the base on every rank and sharded over them.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from agent_runs import THINKER, talk, tool_run
from gradients import alone_gradient
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from random_layouts import GRADIENTS, row, runs
from rank_workers import Workers, step_gradient
from tiny_models import HYBRID, VOCABULARY, difference, tiny_model
from trainer_support import adapter_bytes, make_base, run_file, start, write_rows

from halo_api.report import Outcome, Report
from halo_api.run_file import RunFile
from halo_trainer.data.bundle import Tally, tree_bundles
from halo_trainer.data.collate import trained_tokens
from halo_trainer.data.template import TokenRow
from halo_trainer.parallel.shard import measured

STEPS, SAVE = 30, 5
# Rows that need several passes, of which one rank has more than the other; and fewer than a batch at the end.
LORA = {"bundle": 2, "packing": True, "dropout": 0.1, "microBatch": 1}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@functools.cache
def lone_model(kind: str, dtype: torch.dtype) -> Any:
    """The same weights as the ranks', with transformers' own attention."""
    return tiny_model(kind, dtype)


def holds(workers: Workers, case: Any, steps: list[TokenRow], most: int, *how: int) -> None:
    """Hold the gradient that all ranks have of a step to that of its rows alone, and the sharded base's to it to the bit."""
    kind, dtype, bound = case
    kept = [step for step in steps if trained_tokens([step])]
    assume(kept)
    trees = list(tree_bundles(kept, most, 1 << 20, Tally()))
    whole = workers.ask(step_gradient, kind, dtype, trees, *how)
    # What is computed again in the backward pass is not inside what makes a tiny model compute in fp64.
    again = int(dtype == torch.float32)
    sharded = workers.ask(step_gradient, kind, dtype, trees, *how, again, True)
    for gradient, loss, _ in [*whole, *sharded]:
        assert torch.equal(gradient, whole[0][0])
        assert loss == whole[0][1]
    assert len({passes for _, _, passes in sharded}) == 1
    expected = alone_gradient(lone_model(kind, dtype), kept, trained_tokens(kept))
    assert difference(whole[0][0], expected) <= bound


CASES = [("llama", torch.float32, 1e-5), ("qwen3_moe", torch.float64, 1e-8)]
ONE = [row("a", [5, 6, 7], [8, 9])]


@pytest.mark.parametrize("case", CASES)
@settings(GRADIENTS, max_examples=8)
@given(
    steps=runs(VOCABULARY),
    most=st.integers(1, 4),
    sharing=st.sampled_from([1, 1, 2]),
    longest=st.integers(4, 20),
    size=st.integers(1, 2),
)
@example(ONE, 1, 1, 20, 1)
@example(ONE, 1, 2, 4, 1)
def test_a_step_of_two_ranks_has_the_gradient_of_its_rows_alone(
    two: Workers, case: Any, steps: list[TokenRow], most: int, sharing: int, longest: int, size: int
) -> None:
    """With fewer rows than ranks, and with rows that both have a part of; the base whole and sharded."""
    holds(two, case, steps, most, sharing, longest, size)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        *((kind, torch.float32, 1e-5) for kind in ("llama", "qwen2", "qwen3")),
        *((kind, torch.float64, 1e-8) for kind in ("qwen3", "qwen3_moe", "qwen3_next", "qwen3_5_text")),
    ],
)
@settings(GRADIENTS, max_examples=30)
@given(
    steps=runs(VOCABULARY),
    most=st.integers(1, 6),
    sharing=st.sampled_from([1, 1, 2, 4]),
    longest=st.integers(4, 20),
    size=st.integers(1, 3),
)
def test_a_step_of_four_ranks_has_the_gradient_of_its_rows_alone(
    four: Workers, case: Any, steps: list[TokenRow], most: int, sharing: int, longest: int, size: int
) -> None:
    if case[0] in HYBRID:
        # Neither split nor forked.
        most, sharing = 1, 1
    holds(four, case, steps, most, sharing, longest, size)


class Way(NamedTuple):
    """How an attempt lays its two ranks out, and whether the base is sharded over them."""

    nodes: int
    sharded: bool


class Attempts:
    """A run on two ranks, each attempt's output in a folder of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        make_base(root / "models" / "tiny", THINKER, layers=8)
        write_rows(root / "data" / "chat.jsonl", [*talk("a", 3), *tool_run("b", 2), *talk("c", 2), *talk("d", 1)])
        (root / "artifacts").mkdir()
        run = self.file("any")
        assert run.train
        weights, _ = measured(run.base, root / "models" / "tiny", run.train)
        self.too_small = {"HALO_DEVICE_BYTES": str(weights.sharded(2))}
        _, outcomes, log = self.ended("straight", self.begun("straight", Way(1, False)))
        assert [outcome.result for outcome in outcomes] == ["Succeeded"], log

    def file(self, output: str, layout: Any = None, resume: Any = None) -> RunFile:
        return run_file(
            output=output, lora=LORA, steps=STEPS, saveSteps=SAVE, batch=3, layout=layout or {}, resume=resume
        )

    def begun(self, output: str, way: Way, resume: Any = None) -> list[subprocess.Popen[bytes]]:
        """Start an attempt; return each node's first process."""
        nodes = way.nodes
        memory = self.too_small if way.sharded else {}
        meet = {"rendezvous": f"127.0.0.1:{free_port()}"} if nodes > 1 else {}
        layouts = [{"nodes": nodes, "nodeRank": node, "gpusPerNode": 2 // nodes, **meet} for node in range(nodes)]
        return [
            start(
                "train", self.file(output, layout, resume), self.root, f"{output}-{node}.json",
                GLOO_SOCKET_IFNAME="lo", **memory,
            )
            for node, layout in enumerate(layouts)
        ]  # fmt: skip

    def ended(self, output: str, nodes: list[subprocess.Popen[bytes]]) -> tuple[list[Report], list[Outcome], str]:
        """Wait for an attempt's end; return each node's report and outcome, and the first one's log."""
        logs = [node.communicate(timeout=300)[0].decode() for node in nodes]
        reports = [
            Report.model_validate_json((self.root / f"{output}-{node}.json").read_bytes()) for node in range(len(nodes))
        ]
        outcomes = [report.outcome for report in reports if report.outcome]
        assert len(outcomes) == len(nodes), logs
        return reports, outcomes, "\n".join(logs)

    def kill(self, output: str, nodes: list[subprocess.Popen[bytes]], rank: int, step: int) -> None:
        """Kill a rank once that step is done."""
        history = self.root / "artifacts" / output / "metrics.jsonl"
        end = time.monotonic() + 240
        while not history.exists() or history.read_bytes().count(b"\n") < step:
            assert all(node.poll() is None for node in nodes)
            assert time.monotonic() < end
            time.sleep(0.005)
        ranks = [
            int(pid) for node in nodes for pid in Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
        ]
        assert len(ranks) == 2
        os.kill(ranks[rank], signal.SIGKILL)


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> Attempts:
    return Attempts(tmp_path_factory.mktemp("ranks"))


def lost_and_resumed(attempts: Attempts, name: str, first: Way, second: Way, rank: int, step: int) -> None:
    """Kill a rank at that step, and hold what all say of it, and the next attempt's adapter, to what they must be."""
    print(f"{name}: rank {rank} is killed at step {step}")
    begun = attempts.begun(f"{name}-a1", first)
    attempts.kill(f"{name}-a1", begun, rank, step)
    reports, outcomes, log = attempts.ended(f"{name}-a1", begun)
    assert all(outcome.retriable for outcome in outcomes), log
    node, process = (rank, 0) if first.nodes > 1 else (0, rank)
    which = f"rank {rank} (process {process} of node {node}) was "
    assert outcomes[node].message == f"{which}killed by SIGKILL"
    for outcome in outcomes[:node] + outcomes[node + 1 :]:
        assert outcome.reason == "RankLost"
        assert outcome.message.startswith(f"{which}lost")
    kept = reports[0].checkpoints[-1]
    # The last one before that step, or its own where it came to that.
    assert step - SAVE <= kept.step < STEPS
    assert outcomes[0].checkpoint == kept

    resume = {"step": kept.step, "uri": kept.uri, "digest": kept.digest}
    _, outcomes, log = attempts.ended(f"{name}-a2", attempts.begun(f"{name}-a2", second, resume))
    assert [outcome.result for outcome in outcomes] == ["Succeeded"] * second.nodes, log
    assert ("sharded over 2" in log) == second.sharded, log
    assert adapter_bytes(attempts.root, f"{name}-a2") == adapter_bytes(attempts.root, "straight")


def test_a_run_that_loses_a_rank_goes_on_to_the_bytes_of_a_straight_run(attempts: Attempts) -> None:
    """Lost on two nodes that met; the next attempt on one, with the base sharded."""
    rank, step = random.randrange(2), random.randrange(SAVE + 1, 15)
    lost_and_resumed(attempts, "lost", Way(2, sharded=False), Way(1, sharded=True), rank, step)


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("rank", [0, 1])
def test_whichever_rank_is_lost_wherever(attempts: Attempts, nodes: int, rank: int, sharded: bool) -> None:
    for step in random.sample(range(SAVE + 1, 20), 2):
        way = Way(nodes, sharded)
        lost_and_resumed(attempts, f"{nodes}-{rank}-{sharded}-{step}", way, way, rank, step)
