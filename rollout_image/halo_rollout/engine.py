"""vLLM's own server, as the guard talks to it inside the pod: sample, take a policy, count tokens."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import aiohttp

# vLLM writes this in the place of minus infinity.
NO_LOG_PROB = -9999.0
COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
SAMPLED = 2
RESET_TRIES = 20


class EngineFailed(Exception):
    """vLLM did not do what it was asked; the sentence says what it answered."""


class Engine:
    """One vLLM server."""

    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._session = session

    async def up(self) -> bool:
        """Whether the server answers at all, which it does once its model is loaded."""
        try:
            async with self._session.get(f"{self._url}/health", timeout=aiohttp.ClientTimeout(10)) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def sample(self, model: str, seconds: float, routes: bool = False) -> None:
        """Have the model generate: sampled, not greedily; raises EngineFailed unless log-probabilities come back.

        vLLM's own health check passes while its engine hangs, and while every sampled request would end it.
        """
        body = {
            "model": model,
            "prompt": [0],
            "max_tokens": SAMPLED,
            "temperature": 1.0,
            "logprobs": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        answer = await self._post("/v1/completions", seconds, json=body)
        if problem := unsampled(answer, routes):
            raise EngineFailed(f"a sampled request of {model} was answered {problem}")

    async def tokens(self) -> float:
        """Return how many tokens have gone through the engine; while it works, that grows. Raises EngineFailed."""
        try:
            async with self._session.get(f"{self._url}/metrics", timeout=aiohttp.ClientTimeout(10)) as response:
                return counted(await response.text())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineFailed(f"its metrics can't be read: {type(error).__name__}") from error

    async def load(self, name: str, folder: Path, seconds: float) -> None:
        """Load an adapter beside the base, under a name that had no other before."""
        await self._post("/v1/load_lora_adapter", seconds, json={"lora_name": name, "lora_path": str(folder)})

    async def unload(self, name: str, seconds: float) -> None:
        """Forget an adapter; requests that name it from now on get 404."""
        await self._post("/v1/unload_lora_adapter", seconds, json={"lora_name": name})

    async def fold(self, base: Path, dtype: str, adapter: Path | None, seconds: float) -> str | None:
        """Serve the base with an adapter folded in, or none; return why its weights were left as they are, or None.

        What is still being generated is aborted: its tokens would be of two policies. Raises EngineFailed, after which the
        weights are in no known state.
        """
        await self._post("/pause", seconds, params={"mode": "abort"})
        arguments = {"base": str(base), "dtype": dtype, "adapter": str(adapter or "")}
        results = await self._post("/collective_rpc", seconds, json={"method": "halo_fold", "kwargs": arguments})
        problem: str | None = next((each["problem"] for each in results["results"] if each["problem"]), None)
        await self._reset_prefix_cache(seconds)
        await self._post("/resume", seconds)
        return problem

    async def _reset_prefix_cache(self, seconds: float) -> None:
        """Forget the keys and values of the old weights. Blocks may be held for a moment: it says so, and is asked again."""
        for _ in range(RESET_TRIES):
            if (await self._post("/reset_prefix_cache", seconds)).get("success") is True:
                return
            await asyncio.sleep(0.1)
        raise EngineFailed("its prefix cache, which is of the old weights, could not be reset")

    async def _post(self, path: str, seconds: float, **what: Any) -> Any:
        """Post and return the answer, as JSON where it is that; raises EngineFailed for any but 200."""
        try:
            async with self._session.post(
                f"{self._url}{path}", timeout=aiohttp.ClientTimeout(total=seconds), **what
            ) as response:
                text = await response.text()
                if response.status != 200:
                    raise EngineFailed(f"{path} was answered {response.status}: {' '.join(text.split())[:500]}")
                return await response.json() if response.content_type == "application/json" else text
        except TimeoutError:
            raise EngineFailed(f"{path} was not answered in {seconds:.0f} s") from None
        except (aiohttp.ClientError, ValueError) as error:
            raise EngineFailed(f"{path}: {type(error).__name__}: {error}") from error


def unsampled(answer: Any, routes: bool = False) -> str | None:
    """Return what is wrong with the answer to a sampled request; None when tokens and finite log-probabilities are there."""
    try:
        choice = answer["choices"][0]
        ids, log_probs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
    except (LookupError, TypeError):
        return "without token ids and log-probabilities"
    if len(ids) != SAMPLED or len(log_probs) != SAMPLED:
        return f"with {len(ids)} tokens and {len(log_probs)} log-probabilities in the place of {SAMPLED}"
    if not all(isinstance(value, int | float) and math.isfinite(value) and value > NO_LOG_PROB for value in log_probs):
        return f"with log-probabilities {log_probs}"
    if routes and not choice.get("routed_experts"):
        return "without the experts that its tokens were routed to"
    return None


def counted(metrics: str) -> float:
    """Return the sum of the token counters in Prometheus' text."""
    lines = (line.rpartition(" ") for line in metrics.splitlines() if line.startswith(COUNTERS))
    return sum(float(value) for _, _, value in lines)
