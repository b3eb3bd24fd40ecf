"""How long episodes take: prefill is arithmetic, decoding is reading weights and keys and values, the rest is waiting."""

from __future__ import annotations

from dataclasses import dataclass

from halo_operator.plan.estimate_model import Gpu, Model
from halo_operator.plan.estimate_rates import Rates


@dataclass(frozen=True)
class Rollout:
    """One round of episodes: what each reads and writes in its turns, and what serves it."""

    episodes: float
    turns: float
    prompt_tokens: float
    answer_tokens: float
    added_tokens: float = 0.0
    gpus: int = 1
    replicas: int = 1
    environment_seconds: float = 0.0
    reward_seconds: float = 0.0
    reward_slots: int = 32
    # A vLLM server, or else the trainer itself generates.
    engine: bool = True

    @property
    def episode_tokens(self) -> float:
        """Tokens of a whole episode at its end."""
        return self.prompt_tokens + self.turns * (self.answer_tokens + self.added_tokens)

    @property
    def mean_context(self) -> float:
        """Tokens that are looked back at while an answer is written, on average."""
        return self.prompt_tokens + self.turns * (self.answer_tokens + self.added_tokens) / 2

    @property
    def turn_rows_tokens(self) -> float:
        """Tokens of all rows of an episode where each assistant turn is a row of its own, with all that came before it."""
        grown = self.turns * (self.turns + 1) / 2
        return self.turns * self.prompt_tokens + grown * (self.answer_tokens + self.added_tokens)


@dataclass(frozen=True)
class RolloutTimes:
    """Seconds of one round, a phase a member."""

    prefill: float
    decode: float
    environment: float
    reward: float

    @property
    def total(self) -> float:
        return self.prefill + self.decode + self.environment + self.reward


NO_ROLLOUT = RolloutTimes(0.0, 0.0, 0.0, 0.0)


def rollout_times(model: Model, gpu: Gpu, rollout: Rollout, rates: Rates) -> RolloutTimes:
    """Return how long one round takes on the servers that share it."""
    server_gpus = max(1, rollout.gpus // rollout.replicas)
    here = rollout.episodes / rollout.replicas
    slots = concurrent(model, gpu, rollout, rates, server_gpus)
    # Continuous batching refills slots as they come free: there are no whole waves, but never less than one.
    waves = max(1.0, here / slots)
    context = rollout.mean_context
    read = here * (rollout.prompt_tokens + rollout.turns * rollout.added_tokens)
    prefill = read * (2.0 * model.matmul + model.attention(context))
    prefill /= gpu.flops * rates.prefill_efficiency * server_gpus
    token = decode_seconds(model, gpu, min(here, slots), context, rates, server_gpus, rollout.engine)
    return RolloutTimes(
        prefill=prefill,
        decode=waves * rollout.turns * rollout.answer_tokens * token * rates.tail,
        environment=waves * rollout.turns * rollout.environment_seconds,
        reward=max(1.0, rollout.episodes / rollout.reward_slots) * rollout.reward_seconds,
    )


def decode_seconds(
    model: Model, gpu: Gpu, batch: float, context: float, rates: Rates, server_gpus: int = 1, engine: bool = True
) -> float:
    """Return how long one token of each of `batch` sequences takes: the slower of memory and arithmetic."""
    memory = (model.touched(batch) + batch * context * model.kv_bytes) / (gpu.bandwidth * server_gpus)
    arithmetic = batch * (2.0 * model.matmul + 2.0 * model.attention(context)) / (gpu.flops * server_gpus)
    return max(memory, arithmetic) / (rates.decode_efficiency if engine else rates.plain_decode_efficiency)


def concurrent(model: Model, gpu: Gpu, rollout: Rollout, rates: Rates, server_gpus: int) -> float:
    """Return how many episodes one server runs at a time: as many as are allowed and their keys and values fit."""
    if gpu.memory is None:
        return float(rates.slots)
    free = gpu.memory * server_gpus * rates.memory_share - model.weights
    fit = free / max(1.0, rollout.episode_tokens * model.kv_bytes)
    return max(1.0, min(float(rates.slots), fit))
