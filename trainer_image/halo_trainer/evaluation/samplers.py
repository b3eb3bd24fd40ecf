"""Where an evaluation's answers come from: a model in this process, many at once, or a running server of vLLM's.

Both are asked as the episode engine asks rollout servers: tokens in, tokens out, and a seed that decides every draw.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import httpx
import torch

from halo_api.rollouts import Policy
from halo_trainer.rollouts.client import Clock
from halo_trainer.rollouts.completion import COMPLETIONS_PATH, Ask, Sampling, ServerFailed, request_body, turn_of
from halo_trainer.rollouts.episode import Turn

TRIES = 4
PAUSE_SECONDS = 0.5


class Homeless:
    """Stands where the engine expects a fleet: nothing is kept of who asked where."""

    def forget(self, keys: Iterable[str]) -> None:
        """Forget nothing."""


class ModelSampler:
    """Answers with a model in this process. Asks that come while it is busy are answered together."""

    fleet = Homeless()

    def __init__(self, model: Any, sampling: Sampling, padding: int, batch: int) -> None:
        self._model, self._sampling, self._padding, self._batch = model, sampling, padding, batch
        self._waiting: list[tuple[Ask, asyncio.Future[Turn]]] = []
        self._work: asyncio.Task[None] | None = None

    async def sample(self, ask: Ask, keys: tuple[str, ...], clock: Clock | None = None) -> Turn:
        """Return an answer."""
        future: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._waiting.append((ask, future))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._answer())
        return await future

    async def _answer(self) -> None:
        while self._waiting:
            part, self._waiting = self._waiting[: self._batch], self._waiting[self._batch :]
            try:
                turns = await asyncio.to_thread(self.answers, [ask for ask, _ in part])
            except Exception as error:
                for _, future in part:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), turn in zip(part, turns, strict=True):
                if not future.done():
                    future.set_result(turn)

    def answers(self, asks: Sequence[Ask]) -> list[Turn]:
        """Answer a few prompts together; padded on the left, so that every answer starts at the same place."""
        from transformers import LogitsProcessorList

        longest = max(len(ask.prompt) for ask in asks)
        pads = [longest - len(ask.prompt) for ask in asks]
        rows = [[self._padding] * pad + ask.prompt.tolist() for pad, ask in zip(pads, asks, strict=True)]
        mask = [[0] * pad + [1] * (longest - pad) for pad in pads]
        temperature = self._sampling.temperature
        noise = [Gumbel([ask.seed for ask in asks], temperature)] if temperature else []
        device = self._model.device
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=torch.tensor(rows, device=device),
                attention_mask=torch.tensor(mask, device=device),
                max_new_tokens=max(ask.most for ask in asks),
                do_sample=False,
                temperature=None,
                top_p=None,
                top_k=None,
                logits_processor=LogitsProcessorList(noise),
                eos_token_id=list(self._sampling.stops),
                pad_token_id=self._padding,
            )
        return [self._turn(ask, row[longest:].tolist()) for ask, row in zip(asks, output, strict=True)]

    def _turn(self, ask: Ask, sampled: list[int]) -> Turn:
        stops = self._sampling.stops
        end = next((place for place, token in enumerate(sampled) if token in stops), None)
        answer = array("i", sampled[: ask.most] if end is None or end >= ask.most else sampled[: end + 1])
        finish = "stop" if answer and answer[-1] in stops else "length"
        return Turn(ask.prompt, answer, array("d"), 0, "", 0, finish)  # type: ignore[arg-type]


class Gumbel:
    """Makes the highest logit a sample: adds Gumbel noise to logits over the temperature, each row's by its own seed.

    The argmax is then distributed as softmax(logits / temperature) (Gumbel 1954; Maddison et al. 2014, arXiv 1411.0030), and what
    a row draws does not depend on which others are answered beside it.
    """

    def __init__(self, seeds: Sequence[int], temperature: float) -> None:
        self._draws = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._temperature = temperature

    def __call__(self, ids: torch.Tensor, logits_BV: torch.Tensor) -> torch.Tensor:
        exponential = torch.stack(
            [torch.empty(logits_BV.shape[1]).exponential_(generator=draw) for draw in self._draws]
        ).to(logits_BV.device)
        return logits_BV.float() / self._temperature - exponential.log()


class Served(Policy):
    """A model that a server already has, under whatever name."""

    @property
    def model(self) -> str:
        """The name that requests name."""
        return self.name


class ServerSampler:
    """Answers by a running server of vLLM's at a URL, of one of its models."""

    fleet = Homeless()

    def __init__(self, http: httpx.AsyncClient, url: str, model: str, sampling: Sampling, seconds: float) -> None:
        self._http, self._url, self._sampling, self._seconds = http, url.rstrip("/"), sampling, seconds
        self._policy = Served(version=0, attempt=1, name=model, serving="unmerged")

    async def sample(self, ask: Ask, keys: tuple[str, ...], clock: Clock | None = None) -> Turn:
        """Return an answer; raises ServerFailed after a few tries."""
        for tried in range(TRIES):
            if tried:
                await asyncio.sleep(PAUSE_SECONDS * 2**tried)
            try:
                return await self._try(ask)
            except (httpx.HTTPError, ServerFailed) as error:
                failure = ServerFailed(f"{self._url}: {error or type(error).__name__}")
        raise failure

    async def _try(self, ask: Ask) -> Turn:
        body = request_body(ask, self._sampling, self._policy)
        response = await self._http.post(self._url + COMPLETIONS_PATH, json=body, timeout=self._seconds)
        if response.status_code != 200:
            raise ServerFailed(f"it answered {response.status_code}: {response.text[:300]}")
        return turn_of(ask, self._sampling, self._policy, 0, response.json())
