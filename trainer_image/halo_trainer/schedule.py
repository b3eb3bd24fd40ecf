"""The learning rate of a step, as a pure function: a resumed run needs no scheduler state."""

from __future__ import annotations

import math


def learning_rate(peak: float, step: int, steps: int, warmup: int, schedule: str) -> float:
    """Return the rate of step `step` (from 0): linear to the peak at the end of the warm-up, then as the schedule says.

    Cosine and linear reach zero when the run is over, so that the last step still learns (as transformers' schedules do).
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    match schedule:
        case "constant":
            return peak
        case "linear":
            return peak * (1 - done)
        case "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * done))
    raise ValueError(f"no schedule {schedule}")
