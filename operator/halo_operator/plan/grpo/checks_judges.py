"""The facts about a GrpoRun's judges: each must be there, be calibrated for what it judges, and still agree with people."""

from __future__ import annotations

from datetime import datetime

from halo_api.conditions import Reason
from halo_operator.plan.grpo.world import GrpoWorld
from halo_operator.plan.refusal import Refusal, listed
from halo_operator.plan.world import CriterionEntry


def criteria_are_there(world: GrpoWorld) -> Refusal | None:
    """Every criterion must exist."""
    for field, name in named(world):
        if name not in world.catalog.criteria:
            return Refusal(
                Reason.UNKNOWN_CRITERION,
                f"{field}: found {name!r}, but there is no such Criterion in namespace {world.meta.namespace}; "
                f"{listed(name, world.catalog.criterion_names)}",
            )
    return None


def criteria_fit_the_run(world: GrpoWorld) -> Refusal | None:
    """A run without tools is judged by the request, an agentic one by the whole episode."""
    wanted = "trace" if world.spec.environment else "request"
    for field, entry in known(world):
        if entry.spec.unit != wanted:
            kind = "an agentic run (spec.environment)" if wanted == "trace" else "a run without spec.environment"
            return Refusal(
                Reason.CRITERION_WRONG_UNIT,
                f"{field}: found {entry.name}, a criterion of unit {entry.spec.unit}, and {kind} needs unit {wanted}; name one of that unit",
            )
    return None


def criteria_are_calibrated(world: GrpoWorld) -> Refusal | None:
    """A judge that was never held to people's grades is no reward."""
    for field, entry in known(world):
        if entry.calibrated.status != "True":
            why = f": {entry.calibrated.message}" if entry.calibrated.message else ""
            return Refusal(
                Reason.CRITERION_NOT_CALIBRATED,
                f"{field}: found {entry.name}, which is not calibrated{why}; calibrate it against people's grades (Calibrated=True), then start the run",
            )
    return None


def criteria_have_not_drifted(world: GrpoWorld) -> Refusal | None:
    """A judge that agrees with people no longer is no reward any more."""
    for field, entry in known(world):
        if entry.drifted.status == "True":
            why = f": {entry.drifted.message}" if entry.drifted.message else ""
            return Refusal(
                Reason.CRITERION_DRIFTED,
                f"{field}: found {entry.name}, which is flagged as drifted{why}; calibrate it again, then start the run",
            )
    return None


def grades_are_newer_than_the_policy(world: GrpoWorld) -> Refusal | None:
    """A policy that was trained against a judge is not trained on its own traffic until people have graded again.

    Grades from before it can't say whether it learnt the task or the judge.
    """
    for field, entry in known(world):
        found = entry.status.calibration
        graded = datetime.fromisoformat(found.newest_grade) if found and found.newest_grade else None
        for adapter in world.catalog.served_by:
            if graded is None or graded <= adapter.published_at:
                when = graded.isoformat() if graded else "no grade"
                return Refusal(
                    Reason.GRADES_TOO_OLD,
                    f"{field}: found {entry.name}, whose newest grade is of {when}, but the traffic was served by Adapter "
                    f"{adapter.name} of GrpoRun {adapter.run}, published {adapter.published_at.isoformat()}; grade some of its "
                    "answers, then start the run",
                )
    return None


def named(world: GrpoWorld) -> list[tuple[str, str]]:
    """Return each criterion of the reward with the field that names it."""
    reward = world.spec.reward
    if reward.criterion_ids is None:
        return [("spec.reward.criterionId", name) for name in reward.criteria]
    return [(f"spec.reward.criterionIds[{index}]", name) for index, name in enumerate(reward.criteria)]


def known(world: GrpoWorld) -> list[tuple[str, CriterionEntry]]:
    """Return those of them that exist."""
    found = world.catalog.criteria
    return [(field, found[name]) for field, name in named(world) if name in found]
