"""An episode as it was sampled: each assistant turn with its tokens, their log-probabilities and the policy that sampled them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Turn:
    """One sampled answer of T tokens behind a prompt; nothing of it is ever tokenised again."""

    prompt: array[int]
    answer: array[int]
    # T values: of the sampled token under the distribution that it was sampled from (after temperature), in nats.
    log_probs: array[float]
    # The policy that sampled it: its version and the name that the request had.
    policy: int
    model: str
    server: int
    finish: Literal["stop", "length"]
    # [prompt + answer - 1, layers, top_k] expert ids as .npy bytes, of a base that routes and a server that tells; else None.
    routes: bytes | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """One attempt at a task. `reward` is None where it was not scored, which is never a zero: `failure` says why."""

    task: str
    # Which episode of its task this is: with the run's seed and the round it decides every random draw.
    sample: int
    turns: tuple[Turn, ...]
    reward: float | None = None
    passed: bool | None = None
    # ServerFailed, EnvironmentFailed, TimedOut, ...: one word; `detail` is the sentence. Unset when it was scored.
    failure: str | None = None
    detail: str = ""
    # A token limit ended it: of a turn, or of the episode's context.
    truncated: bool = False
    # What the verifier checked, by name, and how it came out; with `reason` it is what a person reads.
    checks: dict[str, bool] = field(default_factory=dict)
    reason: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    seconds: float = 0.0

    @property
    def scored(self) -> bool:
        """Whether it has a reward."""
        return self.reward is not None

    @property
    def sampled_tokens(self) -> int:
        """Tokens of all its answers."""
        return sum(len(turn.answer) for turn in self.turns)
