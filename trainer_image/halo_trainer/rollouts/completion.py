"""One answer of a rollout server: what is asked of vLLM's `/v1/completions`, and what of its reply may be trained on. Pure.

Tokens go in and tokens come out: text is never sent, so that nothing is tokenised by anyone but us. A reply is taken only if
it says all that a row needs, and says it consistently; whatever else it is, the server failed.
"""

from __future__ import annotations

import base64
import io
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from halo_api.recipe_settings import Rollouts
from halo_api.rollouts import Policy
from halo_trainer.rollouts.episode import Turn

COMPLETIONS_PATH = "/v1/completions"
# vLLM writes this, or less, for a probability of 0, which no sampled token has.
IMPOSSIBLE = -9999.0
# Rounding may leave the logarithm of a probability of 1 a little above 0.
ROUNDING = 1e-3


class ServerFailed(Exception):
    """A server gave no answer that can be trained on, in one sentence; the episode that wanted it stays unscored."""


@dataclass(frozen=True)
class Sampling:
    """How every token of a run is sampled, and what an answer may consist of."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    # The tokens that end a turn.
    stops: tuple[int, ...]
    # Ids are below it.
    vocabulary: int
    # Answers carry the experts that each token was routed to.
    routes: bool = False

    @classmethod
    def of(cls, rollouts: Rollouts, stops: Sequence[int], vocabulary: int, routes: bool = False) -> Sampling:
        """Take it from a recipe and a base."""
        kept = (rollouts.temperature, rollouts.top_p, rollouts.top_k, rollouts.min_p)
        return cls(*kept, tuple(stops), vocabulary, routes)


@dataclass(frozen=True, slots=True)
class Ask:
    """An answer that is wanted: at most `most` tokens behind `prompt`. The seed is the same however often it is asked for."""

    prompt: array[int]
    most: int
    seed: int


def request_body(ask: Ask, sampling: Sampling, policy: Policy) -> dict[str, Any]:
    """Return the request. It says whatever a server could otherwise take from the model's own generation_config.json."""
    return {
        "model": policy.model,
        "prompt": ask.prompt.tolist(),
        "max_tokens": ask.most,
        "seed": ask.seed,
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "watermarking": False,
        # The stops are ours alone, as tokens; a stop string could cut an answer between two.
        "ignore_eos": True,
        "stop_token_ids": list(sampling.stops),
        "skip_special_tokens": False,
        "logprobs": 0,
        "return_token_ids": True,
        # Cached prefixes are another's for each policy, also of a server that forgot to drop them when it folded one.
        "cache_salt": policy.name,
    }


def turn_of(ask: Ask, sampling: Sampling, policy: Policy, server: int, reply: Any) -> Turn:
    """Return what was sampled, or raise ServerFailed with what is wrong with the reply."""
    if not isinstance(reply, dict) or not isinstance(reply.get("choices"), list) or len(reply["choices"]) != 1:
        raise ServerFailed("the reply is no completion with one choice")
    if reply.get("model") != policy.model:
        raise ServerFailed(f"asked model {policy.model}, and {reply.get('model')} answered")
    (choice,) = reply["choices"]
    if not isinstance(choice, dict):
        raise ServerFailed("the reply's choice is no object")
    if choice.get("prompt_token_ids") != ask.prompt.tolist():
        raise ServerFailed("the prompt that was answered is not the one that was sent")
    answer = _answer(ask, sampling, choice)
    log_probs = _log_probs(choice, len(answer))
    routes = _routes(choice, len(ask.prompt) + len(answer) - 1) if sampling.routes else None
    return Turn(ask.prompt, answer, log_probs, policy.version, policy.model, server, choice["finish_reason"], routes)


def _answer(ask: Ask, sampling: Sampling, choice: dict[str, Any]) -> array[int]:
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
        raise ServerFailed("the reply has no token ids")
    if len(ids) > ask.most:
        raise ServerFailed(f"asked for {ask.most} tokens, and {len(ids)} came")
    if not all(0 <= token < sampling.vocabulary for token in ids):
        raise ServerFailed(f"a token id is outside the base's vocabulary of {sampling.vocabulary}")
    finish = choice.get("finish_reason")
    if finish not in ("stop", "length"):
        raise ServerFailed(f"the answer ended for the reason {finish}")
    stops = set(sampling.stops)
    if not stops.isdisjoint(ids[:-1]) or (ids[-1] in stops) != (finish == "stop"):
        raise ServerFailed(f"the answer ended for the reason {finish}, and its end-of-turn tokens say otherwise")
    return array("i", ids)


def _log_probs(choice: dict[str, Any], length: int) -> array[float]:
    told = choice.get("logprobs")
    values = told.get("token_logprobs") if isinstance(told, dict) else None
    if not isinstance(values, list) or len(values) != length:
        found = len(values) if isinstance(values, list) else "no"
        raise ServerFailed(f"{length} tokens came with {found} log-probabilities")
    for value in values:
        if type(value) not in (float, int) or not math.isfinite(value) or not IMPOSSIBLE < value <= ROUNDING:
            raise ServerFailed(f"a sampled token has the log-probability {value}")
    return array("d", values)


def _routes(choice: dict[str, Any], length: int) -> bytes:
    import numpy

    try:
        data = base64.b64decode(choice["routed_experts"], validate=True)
        experts = numpy.load(io.BytesIO(data), allow_pickle=False)
    except (KeyError, TypeError, ValueError, EOFError) as error:
        raise ServerFailed(f"the reply has no routed experts that can be read ({type(error).__name__})") from error
    if experts.ndim != 3 or experts.shape[0] != length or experts.dtype.kind not in "iu":
        raise ServerFailed(f"routed experts of shape {experts.shape} came for {length} tokens")
    return data
