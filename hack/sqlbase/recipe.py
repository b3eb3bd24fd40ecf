"""The numbers that decide the small base."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Every number that decides the base."""

    seed: int = 0
    rows: int = 12_000
    # Choices in an answer that are made anew: what makes the base careless, and reinforcement learning worth its while.
    carelessness: float = 0.12
    vocabulary: int = 1024
    hidden: int = 256
    intermediate: int = 768
    layers: int = 3
    heads: int = 4
    key_value_heads: int = 2
    # vLLM on a CPU has kernels of few sizes; 32 and 64 are among them.
    head_dim: int = 64
    context: int = 1024
    batch: int = 16
    learning_rate: float = 3e-3
    warmup: int = 40
    threads: int = 1
