"""Health: whether the server lives, and whether it can sample with the announced policy. Pure: times are given.

An engine under load answers a probe late, behind what is queued, and a hung one never. So what counts is that anything moves:
a probe was answered, or tokens went through.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# Loading a large base takes minutes; a server that has not come up by then never will.
START_SECONDS = 3600.0
LIVE_SECONDS = 120.0
READY_SECONDS = 30.0


@dataclass(frozen=True)
class Health:
    """What is known of the server; all times are of one monotonic clock."""

    begun: float
    # When something last moved in the engine.
    moved: float | None = None
    # The model whose sampled request was last answered as it should be.
    sampled: str | None = None
    tokens: float = 0.0
    # While a policy is taken nothing is generated; it may take until then.
    taking_until: float | None = None

    def answered(self, model: str, now: float) -> Health:
        """A sampled request was answered."""
        return replace(self, moved=now, sampled=model)

    def counted(self, tokens: float, now: float) -> Health:
        """So many tokens have gone through the engine by now."""
        moved = now if self.moved is not None and tokens > self.tokens else self.moved
        return replace(self, moved=moved, tokens=tokens)

    def taking(self, until: float) -> Health:
        """A policy is being taken, and what was sampled before says nothing of it."""
        return replace(self, taking_until=until, sampled=None)

    def taken(self, now: float) -> Health:
        """It was taken, or refused."""
        return replace(self, taking_until=None, moved=now)

    def live(self, now: float) -> bool:
        """Whether the engine moves, or has a reason not to."""
        if self.taking_until is not None:
            return now < self.taking_until
        if self.moved is None:
            return now - self.begun < START_SECONDS
        return now - self.moved < LIVE_SECONDS

    def ready(self, model: str, now: float) -> bool:
        """Whether it samples with the model that was announced."""
        fresh = self.moved is not None and now - self.moved < READY_SECONDS
        return fresh and self.taking_until is None and self.sampled == model
