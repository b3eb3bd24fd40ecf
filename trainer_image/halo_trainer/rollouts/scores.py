"""What a rollout server computes for tokens that it is given: the check of a policy that it has just taken. Pure but for the request."""

from __future__ import annotations

import asyncio
import json
import math
from array import array
from collections.abc import Sequence
from typing import Any

import httpx

from halo_api.rollouts import Policy, ServerAddress
from halo_trainer.rollouts.completion import COMPLETIONS_PATH, ServerFailed


def score_body(prompt: array[int], policy: Policy) -> dict[str, Any]:
    """Return the request: vLLM has no log-probabilities of a prompt without a token behind it, which nobody reads."""
    return {
        "model": policy.model,
        "prompt": prompt.tolist(),
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": 0,
        "ignore_eos": True,
        "cache_salt": policy.name,
    }


def scores_of(prompt: array[int], tokens: int, reply: Any) -> list[float]:
    """Return log p of the prompt's last tokens, before any temperature, or raise ServerFailed with what is wrong with the reply."""
    try:
        told = reply["choices"][0]["prompt_logprobs"]
        every = [each[str(token)]["logprob"] for token, each in list(zip(prompt, told, strict=True))[-tokens:]]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ServerFailed(f"the reply has no log-probabilities of the prompt ({type(error).__name__})") from error
    if not all(type(value) in (float, int) and math.isfinite(value) for value in every):
        raise ServerFailed("a token of the prompt has a log-probability that is no number")
    return [float(value) for value in every]


async def server_scores(
    http: httpx.AsyncClient,
    address: ServerAddress,
    policy: Policy,
    prompts: Sequence[array[int]],
    tokens: int,
    seconds: float,
) -> list[float]:
    """Return log p of the last tokens of each prompt, one prompt behind the other; a prompt's first token has none."""

    async def one(prompt: array[int]) -> list[float]:
        response = await http.post(address.url + COMPLETIONS_PATH, json=score_body(prompt, policy))
        if response.status_code != 200:
            raise ServerFailed(f"it answered {response.status_code}: {response.content[:200].decode(errors='replace')}")
        try:
            return scores_of(prompt, min(tokens, len(prompt) - 1), json.loads(response.content))
        except ValueError as error:
            raise ServerFailed("the reply is no JSON") from error

    try:
        async with asyncio.timeout(seconds):
            found = await asyncio.gather(*map(one, prompts))
    except TimeoutError as error:
        raise ServerFailed(f"it did not score {len(prompts)} prompts within {seconds:g} s") from error
    except httpx.HTTPError as error:
        raise ServerFailed(f"it can't be reached ({type(error).__name__}: {error})") from error
    return [value for each in found for value in each]
