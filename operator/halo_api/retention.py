"""Which checkpoints of a run are kept, and when one may be deleted; operator, supervisor and trainer must agree.

The run's status decides: it names the last three and the one of the lowest loss. A trainer deletes a checkpoint only when no
status names it or can come to name it, so that whatever a status names is there, whoever reads it and whenever.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from halo_api.base import ApiModel

KEPT = 3
# Beside the report: what the supervisor knows of the fate of the role's checkpoints.
KNOWN_CHECKPOINTS_NAME = "known-checkpoints.json"


def kept_steps(losses: Mapping[int, float | None]) -> frozenset[int]:
    """Return the steps to keep: the last few, and of the lowest losses the last.

    One that is left out stays out whatever is added later, so that a status that dropped it never names it again.
    """
    known = [(loss, -step) for step, loss in losses.items() if loss is not None and math.isfinite(loss)]
    best = [-min(known)[1]] if known else []
    return frozenset(sorted(losses)[-KEPT:] + best)


class KnownCheckpoints(ApiModel):
    """What the supervisor knows of the fate of its role's checkpoints; it writes this beside the report."""

    named: Annotated[
        tuple[int, ...] | None,
        Field(description="The steps that the run's status names, as it was last answered; unset: nobody said."),
    ] = None
    told: Annotated[
        tuple[int, ...],
        Field(description="The steps that a push may have told, and that no status has decided about yet."),
    ] = ()

    def is_free(self, step: int) -> bool:
        """Whether no status names the checkpoint or ever will: it went on to a newer one, or nobody heard of this one."""
        named = self.named or ()
        return step not in named and (step < max(named, default=-1) or step not in self.told)

    def answered(self, named: tuple[int, ...]) -> KnownCheckpoints:
        """Return what is known once a status names these."""
        return KnownCheckpoints(named=named, told=tuple(step for step in self.told if step > max(named, default=-1)))
