"""The trainer's client against real vLLM: what comes back is the policy's own, and a server that was killed and replaced has it too."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from guarded import ROOT, Guarded
from rollout_support import make_adapter, make_base, make_tokenizer, merged, policy_of

from halo_api.rollouts import Policy, ServerAddress, Servers
from halo_trainer.rollouts.client import RETRIES, Client
from halo_trainer.rollouts.completion import Ask, Sampling
from halo_trainer.rollouts.episode import Turn
from halo_trainer.rollouts.fleet import PATIENCE, Fleet
from halo_trainer.rollouts.guard import Guards
from halo_trainer.rollouts.lines import http_client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SAMPLING = Sampling(temperature=0.7, top_p=1.0, top_k=-1, min_p=0.0, stops=(1, 2), vocabulary=96)
# The largest difference of a log-probability, in nats: two orders of summation in fp32.
CLOSE = 5e-4


@pytest.fixture(scope="module")
def python() -> str:
    made = subprocess.run([ROOT / "hack" / "venv", "rollout"], check=True, stdout=subprocess.PIPE, text=True)
    return f"{made.stdout.splitlines()[-1]}/bin/python"


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    base = make_base(tmp_path / "volumes" / "models" / "base", "qwen3")
    make_tokenizer(base)
    for version in (1, 2):
        make_adapter(base, tmp_path / "volumes" / "artifacts" / f"s{version}", seed=version)
    return tmp_path / "volumes"


def address(pod: Guarded, incarnation: int) -> ServerAddress:
    return ServerAddress(server=0, incarnation=incarnation, host="127.0.0.1", serve_port=pod.serve, guard_port=pod.port)


def policy(volumes: Path, version: int, serving: str) -> Policy:
    return policy_of(volumes / "artifacts" / f"s{version}", f"pvc://artifacts/s{version}", version, serving)


@contextlib.asynccontextmanager
async def client_of(pod: Guarded, file: Path, first: Policy) -> AsyncIterator[Client]:
    async with http_client() as http:
        patience = replace(PATIENCE, alone=900.0, in_flight=16)
        async with Fleet([address(pod, 1)], Guards(http), 1, file, patience) as fleet:
            await fleet.publish(first)
            yield Client(fleet, http, SAMPLING, RETRIES)


def asks(count: int = 24) -> list[Ask]:
    return [Ask(array("i", [3 + (number + at) % 80 for at in range(20)]), 24, 1000 + number) for number in range(count)]


async def sampled(client: Client) -> list[Turn]:
    return await asyncio.gather(*(client.sample(ask, (str(number),)) for number, ask in enumerate(asks())))


def check(turns: list[Turn], model: Callable[..., object], version: int) -> None:
    """Every token has the log-probability that transformers gives it, and an answer ends with a stop or at its limit."""
    worst = 0.0
    for turn in turns:
        with torch.no_grad():
            logits = model(torch.tensor([turn.prompt.tolist() + turn.answer.tolist()])).logits[0].double()  # type: ignore[attr-defined]
        log_probs = (logits[len(turn.prompt) - 1 : -1] / SAMPLING.temperature).log_softmax(-1)
        expected = log_probs.gather(1, torch.tensor(turn.answer.tolist())[:, None])[:, 0]
        worst = max(worst, float((expected - torch.tensor(turn.log_probs.tolist())).abs().max()))
    print(f"policy {version}: max |dlogp| {worst:.1e} of {sum(len(turn.answer) for turn in turns)} tokens")
    assert worst < CLOSE
    assert {turn.policy for turn in turns} == {version}
    assert {turn.finish for turn in turns} == {"stop", "length"}


@pytest.mark.parametrize("serving", ["unmerged", "folded"])
async def test_a_killed_server_is_replaced_and_samples_the_current_policy(
    serving: str, volumes: Path, tmp_path: Path, python: str
) -> None:
    models = [merged(volumes / "models" / "base", volumes / "artifacts" / f"s{version}") for version in (1, 2)]
    file = tmp_path / "servers.json"
    first = start(tmp_path / "first", volumes, serving, python)
    second: Guarded | None = None
    try:
        async with client_of(first, file, policy(volumes, 1, serving)) as client:
            turns = await sampled(client)
            check(turns, models[0], 1)
            assert len({tuple(turn.answer) for turn in turns}) > 20
            await client.fleet.publish(policy(volumes, 2, serving))
            sampling = asyncio.create_task(sampled(client))
            while not any(server.in_flight for server in client.fleet.serving):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            os.kill(first.process.pid, signal.SIGKILL)
            second = start(tmp_path / "second", volumes, serving, python)
            told = Servers(attempt=1, servers=(address(second, 2),)).model_dump_json(by_alias=True)
            (tmp_path / "new").write_text(told)
            (tmp_path / "new").replace(file)
            check(await sampling, models[1], 2)
            assert second.get("/policy")[1].count(b"a1-s2") > 0
    finally:
        for pod in (first, second):
            if pod:
                pod.close()


def start(folder: Path, volumes: Path, serving: str, python: str) -> Guarded:
    folder.mkdir()
    (folder / "volumes").symlink_to(volumes)
    return Guarded.start(folder, serving, python)
