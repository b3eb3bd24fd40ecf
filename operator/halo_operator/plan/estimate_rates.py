"""The constants of the roofline model, as one versioned table: an estimate records which table it was made with.

docs/estimate.md says where each comes from. Rates that were measured on finished runs will be further tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

H100_PEAK_TFLOPS = 989.0
H100_BANDWIDTH_TBS = 3.35


@dataclass(frozen=True)
class Rates:
    """How far from the physical limit real work stays, and what time goes by outside of it."""

    version: str = "roofline-1"
    # Share of the peak that training reaches: rows up to 16k tokens, and from 64k on; in between by the logarithm.
    mfu_dense: tuple[float, float] = (0.20, 0.30)
    mfu_moe: tuple[float, float] = (0.13, 0.27)
    prefill_efficiency: float = 0.5
    decode_efficiency: float = 0.5
    # The trainer itself generates without paged attention, continuous batching or CUDA graphs.
    plain_decode_efficiency: float = 0.1
    context_parallel_efficiency: float = 0.85
    # The slowest episodes of a round are waited for.
    tail: float = 1.25
    # Kernel launches of forward and backward, a layer: what short rows cost whatever the GPU.
    launch_seconds: float = 0.002
    optimizer_seconds: float = 0.05
    # Image pull, imports, process groups; with a rollout server also its compilation and CUDA graphs.
    start_seconds: float = 240.0
    engine_start_seconds: float = 60.0
    weights_bytes_per_second: float = 1e9
    sync_seconds: float = 5.0
    unmerged_sync_seconds: float = 2.0
    save_seconds: float = 3.0
    saved_bytes_per_second: float = 5e8
    publish_seconds: float = 30.0
    # Share of a token limit that answers use on average.
    answer_share: float = 0.6
    # Groups of equal rewards are sampled anew (dynamic sampling).
    refill: float = 1.4
    slots: int = 64
    # Share of a rollout GPU's memory that weights and keys and values may take.
    memory_share: float = 0.85
    # What is unmeasured may take half or twice its centre.
    low: float = 0.5
    high: float = 2.0

    def mfu(self, moe: bool, row_tokens: float) -> float:
        """Return the share of the peak that training on rows of that length reaches."""
        short, long = self.mfu_moe if moe else self.mfu_dense
        way = min(1.0, max(0.0, math.log2(max(row_tokens, 1.0) / 16384) / 2))
        return short + (long - short) * way


ROOFLINE = Rates()
