"""All checks of a TrainingJob in their order; what can never be right speaks before what may still come."""

from __future__ import annotations

from collections.abc import Iterable

from halo_operator.plan.budget import BUDGET
from halo_operator.plan.checks.available import everything_is_built
from halo_operator.plan.checks.catalog import CATALOG
from halo_operator.plan.checks.data import DATA
from halo_operator.plan.checks.environment import ENVIRONMENT
from halo_operator.plan.checks.layout import LAYOUT
from halo_operator.plan.checks.parent import PARENT
from halo_operator.plan.checks.recipe import RECIPE
from halo_operator.plan.checks.tasks import TASKS
from halo_operator.plan.refusal import Check, Refusal
from halo_operator.plan.world import RunWorld

RULES: tuple[Check, ...] = (*CATALOG, *RECIPE, *PARENT, *DATA, *TASKS, *LAYOUT, *ENVIRONMENT, *BUDGET)


def good_job_is_available(world: RunWorld) -> Refusal | None:
    """What is wrong with a job, or what it waits for, is said before what is not built."""
    found = everything_is_built(world)
    return None if found is None or any(check(world) for check in RULES) else found


ADMISSION: tuple[Check, ...] = (*RULES, good_job_is_available)


def first_refusal(world: RunWorld, checks: Iterable[Check] = ADMISSION) -> Refusal | None:
    """Return what is wrong with the run, else what it must wait for, or None when it is accepted.

    What can never be right is said at once: nobody should wait for a data set to hear of a typing error.
    """
    found = [refusal for check in checks if (refusal := check(world))]
    return next((refusal for refusal in found if not refusal.pending), found[0] if found else None)
