"""What a check says of a run that is not accepted, and the words that checks share."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from halo_api.conditions import Reason
from halo_operator.plan.world import RunWorld


@dataclass(frozen=True)
class Refusal:
    """Why a run is not accepted; `pending` when what is missing may still appear, `code` as the webhook answers it."""

    reason: Reason
    message: str
    pending: bool = False
    code: Literal[400, 402, 403, 404, 429] = 400


Check = Callable[[RunWorld], Refusal | None]


def listed(found: str, known: Sequence[str]) -> str:
    """Name what would do: the near names, else all of them, else how to make one."""
    near = difflib.get_close_matches(found, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"there are: {', '.join(sorted(known)[:10])}" if known else "there are none yet"


def unfit(message: str) -> Refusal:
    """Refuse a layout of GPUs, with its arithmetic."""
    return Refusal(Reason.UNFIT, message)


def part(world: RunWorld) -> str:
    """Return the part of the spec that belongs to the run's base: where its data and recipe stand."""
    return {"lora_trl": "spec.lora", "halo_rlvr": "spec.rlvr", "halo_rft": "spec.rft"}[world.spec.base]
