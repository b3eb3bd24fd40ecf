"""Rollouts over peers that speak what a test says, in an environment that counts calls and fails when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollout_peer import VOCABULARY, Peer, policy
from test_trainer_rollout_chat import HERMES, TOOLS, template

from halo_trainer.environments.base import EnvironmentFailed, Observation, Opening, Score, Task
from halo_trainer.environments.workers import Workers
from halo_trainer.rollouts.background import Rollouts
from halo_trainer.rollouts.chat import Chat
from halo_trainer.rollouts.client import Retries
from halo_trainer.rollouts.completion import Sampling
from halo_trainer.rollouts.engine import Environments, EpisodeRules, Group, Wanted
from halo_trainer.rollouts.episode import Episode
from halo_trainer.rollouts.fleet import Patience

BASE = "qwen2_5"
QUICK = Patience(in_flight=8, again=(0.01, 0.05), look=0.02, alone=20.0)
RULES = EpisodeRules(group_size=4, max_turns=4, max_tokens_per_turn=40, context=2000, seconds=20.0)


class Counting:
    """Sessions of a task that counts calls: the reward is how many the answer's episode made, of three. Some are told to fail."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        # What befalls the next openings, calls and scorings.
        self.faults: dict[str, list[str]] = {"open": [], "call": [], "score": []}

    @contextlib.asynccontextmanager
    async def session(self, task: Task) -> AsyncIterator[CountingSession]:
        self.opened += 1
        try:
            yield CountingSession(self, task)
        finally:
            self.closed += 1

    async def befall(self, what: str) -> None:
        match self.faults[what].pop(0) if self.faults[what] else None:
            case "fail":
                raise EnvironmentFailed(f"the worker died in {what}")
            case "hang":
                await asyncio.Event().wait()


class CountingSession:
    def __init__(self, environments: Counting, task: Task) -> None:
        self._environments, self._task, self._calls = environments, task, 0

    async def open(self) -> Opening:
        await self._environments.befall("open")
        return Opening(({"role": "user", "content": self._task.payload["question"]},), tuple(TOOLS))

    async def call(self, name: str, arguments: dict[str, Any]) -> Observation:
        await self._environments.befall("call")
        self._calls += 1
        return Observation(f"{name} {json.dumps(arguments)}")

    async def score(self, answer: str) -> Score:
        await self._environments.befall("score")
        return Score(self._calls / 3, self._calls == 3, f"{self._calls} calls", {"called": self._calls > 0})


def spoken(*turns: str) -> Callable[[list[int]], list[int] | None]:
    """Return what a model says turn by turn, told from how often the assistant's turn began in the prompt."""
    begins = template(BASE).ids("<|im_start|>assistant")

    def say(prompt: list[int]) -> list[int] | None:
        text = template(BASE).decode(prompt)
        count = text.count(template(BASE).decode(begins)) - 1
        # In tokens of one character, which no tokenizer would choose.
        single = [token for character in turns[count] for token in template(BASE).ids(character)]
        return [*single, *template(BASE).ids("<|im_end|>")]

    return say


@contextlib.contextmanager
def rollouts(
    peers: list[Peer], environments: Counting | Workers, rules: EpisodeRules = RULES, file: Path | None = None
) -> Iterator[Rollouts]:
    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[Environments]:
        if isinstance(environments, Counting):
            yield environments
            return
        async with environments:
            yield environments

    stops = template(BASE).ids("<|im_end|>")
    sampling = Sampling(1.0, 1.0, -1, 0.0, tuple(stops), VOCABULARY)
    chat = Chat(template(BASE), stops, "trajectory")
    retries = Retries(attempts=3, pause=(0.001, 0.01), attempt_seconds=20.0)
    addresses = [peer.address for peer in peers]
    with Rollouts(addresses, 1, file, sampling, chat, opened, rules, 7, QUICK, retries, 5.0) as found:
        found.publish(policy(1))
        yield found
    if isinstance(environments, Counting):
        assert environments.opened == environments.closed


def wanted(count: int = 3, round: int = 1) -> list[Wanted]:
    return [Wanted(Task(f"task-{i}", "counting", {"question": f"How often? {i}"}), round, i) for i in range(count)]


def sampled(found: Rollouts, each: list[Wanted]) -> list[Group]:
    return sorted(found.sample(each), key=lambda group: group.wanted.place)


def same(episode: Episode) -> Episode:
    """Return what of an episode its seed decides: neither the time nor the server."""
    return replace(episode, seconds=0.0, turns=tuple(replace(turn, server=0) for turn in episode.turns))


CALLS = (f"Let me count. {HERMES}", f"{HERMES}{HERMES}", "Three.")
