"""How long optimizer updates, log-probabilities and checkpoints take: FLOPs over what the GPUs really reach."""

from __future__ import annotations

import math
from dataclasses import dataclass

from halo_operator.plan.estimate_model import Gpu, Model
from halo_operator.plan.estimate_rates import Rates


@dataclass(frozen=True)
class Training:
    """One optimizer update: `rows` of `row_tokens` on average, the longest of `longest`, over `gpus` trainer GPUs."""

    rows: float
    row_tokens: float
    longest: float = 0.0
    gpus: int = 1
    context_parallel: int = 1
    micro_batch: int = 1
    rank: int = 16
    full: bool = False
    # Forward passes without a gradient, before the first update of a round: old log-probabilities, DPO's reference.
    scorings: int = 0

    @property
    def attended(self) -> float:
        """The row length that stands for the square in attention's cost: between the mean and the longest."""
        return math.sqrt(self.row_tokens * max(self.longest, self.row_tokens))

    @property
    def rows_here(self) -> float:
        """Rows of one update on the GPU, or context-parallel group, that has most of them."""
        return float(math.ceil(self.rows / max(1, self.gpus // self.context_parallel)))


def update_seconds(model: Model, gpu: Gpu, training: Training, rates: Rates) -> float:
    """Return how long one optimizer update takes: a frozen base has no gradient of its own, so 4 N a token and not 6."""
    weights = (6.0 if training.full else 4.0) * model.matmul
    per_token = weights + 6.0 * model.adapter(training.rank) + 3.0 * model.attention(training.attended)
    return passes(model, gpu, training, rates, per_token, 1.0) + rates.optimizer_seconds


def scoring_seconds(model: Model, gpu: Gpu, training: Training, rates: Rates) -> float:
    """Return how long the forward passes of a round without a gradient take."""
    per_token = 2.0 * model.matmul + model.attention(training.attended)
    return training.scorings * passes(model, gpu, training, rates, per_token, 1 / 3)


def passes(model: Model, gpu: Gpu, training: Training, rates: Rates, per_token: float, share: float) -> float:
    """Return the time of all rows of one GPU: arithmetic, but never less than reading weights and starting kernels."""
    split = training.context_parallel
    reached = gpu.flops * rates.mfu(model.moe, training.attended)
    if split > 1:
        reached *= split * rates.context_parallel_efficiency
    if model.bytes_per_weight > 2:
        reached /= 2
    arithmetic = training.rows_here * training.row_tokens * per_token / reached
    times = math.ceil(training.rows_here / training.micro_batch)
    least = max(model.layers * rates.launch_seconds, 2.0 * model.weights / gpu.bandwidth) * share
    return max(arithmetic, times * least)


def save_seconds(model: Model, rank: int, rates: Rates) -> float:
    """Return how long a checkpoint holds the trainer up."""
    return rates.save_seconds + model.adapter_bytes(rank) / rates.saved_bytes_per_second


def publish_seconds(model: Model, rank: int, rates: Rates) -> float:
    """Return how long writing, hashing and naming the adapter takes: its weights are a third of its checkpoint."""
    return rates.publish_seconds + model.adapter_bytes(rank) / 3 / rates.saved_bytes_per_second
