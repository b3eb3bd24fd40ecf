"""What a run asks of its Workspace: to hold, and in the end to settle; amounts are whole millionths of their unit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from halo_api.ledger import Rate, RunRef

Unit = Literal["USD", "H100Hours"]


@dataclass(frozen=True)
class Wanted:
    """A hold that a run asks for; for a run that has one, the higher one of a raised budget."""

    run: RunRef
    created_at: datetime
    unit: Unit
    amount: int
    rate: Rate
    quoted: int | None = None


@dataclass(frozen=True)
class Ended:
    """A run that is over, with what it used in the unit of its hold: the hold becomes the charge."""

    run: RunRef
    used: int
    gpu_ms: int
    outcome: str
    # What it was stopped at, where it knows: a raise that is placed as it ends comes too late, and is released.
    held: int | None = None
    judge_micro_usd: int | None = None
    receipt: str | None = None
