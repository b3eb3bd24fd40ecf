"""Which checkpoints of a run are kept, and when one may be deleted; operator, supervisor and trainer must agree.

The run's status decides: it names the last three and the one of the lowest loss. A trainer deletes a checkpoint that it told
only when a written status went on to a newer one without it. Since it tells all that are there, that status has seen it, and
what is left out once stays out: no write that is late or repeated names it again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

KEPT = 3
# Of those that no status has decided about a trainer tells no more: while no operator answers, that bounds the disk.
MOST_UNDECIDED = 8
# Beside the report: the steps of this attempt that the run's status names, as it was last answered; a JSON list.
NAMED_STEPS_NAME = "named-steps.json"


def kept_steps(losses: Mapping[int, float | None]) -> frozenset[int]:
    """Return the steps to keep: the last few, and of the lowest losses the last.

    One that is left out stays out whatever is added later, so that a status that dropped it never names it again.
    """
    known = [(loss, -step) for step, loss in losses.items() if loss is not None and math.isfinite(loss)]
    best = [-min(known)[1]] if known else []
    return frozenset(sorted(losses)[-KEPT:] + best)


def undecided(step: int, named: Collection[int]) -> bool:
    """Whether a status that names these steps has not seen the checkpoint: what it names is told in the order of the steps."""
    return step > max(named, default=-1)


def left_out(step: int, named: Collection[int]) -> bool:
    """Whether a status that names these steps has seen the checkpoint and gone on without it."""
    return step not in named and not undecided(step, named)
