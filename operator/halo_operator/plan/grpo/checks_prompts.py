"""The facts about a GrpoRun's prompts: there are enough of them for training and the bake-off, by the real counts."""

from __future__ import annotations

from decimal import Decimal

from halo_api.conditions import Reason
from halo_api.grpo_status import FrozenGrpo
from halo_operator.plan.grpo.clamp import resolve
from halo_operator.plan.grpo.world import GrpoWorld, Prompts
from halo_operator.plan.refusal import Refusal


def tasks_are_enough(world: GrpoWorld) -> Refusal | None:
    """Tasks of the run's own replace logged prompts."""
    spec = world.spec
    if spec.tasks_inline is not None:
        return enough(world, "spec.tasksInline", "tasks", Prompts(len(spec.tasks_inline)))
    if spec.tasks_from is not None:
        return enough(world, "spec.tasksFrom", f"tasks in Dataset {spec.tasks_from}", world.catalog.tasks)
    return None


def candidates_are_enough(world: GrpoWorld) -> Refusal | None:
    """A candidate run trains on the queue of its criterion, but for the part that is mixed in."""
    frozen = resolve(world.spec)
    if not frozen.use_candidate_queue:
        return None
    name = world.spec.reward.criterion_id
    mixed = mixed_in(frozen)
    wanted = frozen.prompt_count - mixed + frozen.holdout_count
    words = f"{frozen.prompt_count - mixed} to train on and {frozen.holdout_count} held out"
    return short(
        "spec.useCandidateQueue", f"queued candidates of criterion {name}", world.catalog.candidates, wanted, words
    )


def traffic_is_enough(world: GrpoWorld) -> Refusal | None:
    """Everything else draws from logged traffic; a candidate run only the part that is mixed in."""
    frozen, spec = resolve(world.spec), world.spec
    if spec.tasks_inline is not None or spec.tasks_from is not None:
        return None
    if frozen.use_candidate_queue:
        mixed = mixed_in(frozen)
        if not mixed:
            return None
        return short("spec.curriculumMixRatio", "logged prompts", world.catalog.traffic, mixed, f"{mixed} to mix in")
    what = f"logged prompts with tag {spec.prompt_tag!r}" if spec.prompt_tag else "logged prompts"
    return enough(world, "spec.promptCount", what, world.catalog.traffic)


def mixed_in(frozen: FrozenGrpo) -> int:
    """Return how many of a candidate run's training prompts come from regular traffic: a whole number, never more than asked."""
    return int(frozen.prompt_count * Decimal(repr(frozen.curriculum_mix_ratio or 0.0)))


def enough(world: GrpoWorld, field: str, what: str, found: Prompts) -> Refusal | None:
    """Return a refusal unless there is one for each prompt of training and bake-off."""
    frozen = resolve(world.spec)
    words = f"promptCount {frozen.prompt_count} and a holdout of {frozen.holdout_count}"
    return short(field, what, found, frozen.prompt_count + frozen.holdout_count, words)


def short(field: str, what: str, found: Prompts, wanted: int, words: str) -> Refusal | None:
    """Return a refusal with the real counts if there are less than wanted; wait for what nobody has counted yet."""
    if found.counted is None:
        return Refusal(
            Reason.DATASET_PENDING,
            f"{field}: found no {what} that are counted: {found.why}; {wanted} are needed ({words})",
            pending=True,
        )
    if found.counted >= wanted:
        return None
    return Refusal(
        Reason.NOT_ENOUGH_PROMPTS,
        f"{field}: found {found.counted} {what}{f' ({found.why})' if found.why else ''}, and {wanted} are needed ({words}); lower spec.promptCount or spec.holdoutCount, or log more",
    )
