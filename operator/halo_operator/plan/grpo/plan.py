"""Plans a GrpoRun's next move, and answers whether one may start: for the reconciler and the webhook alike.

`grpo_answer(world)` is all that the webhook needs: `Answer(refusal, warnings, frozen, estimate)`. `refusal` says why the run can't start,
with the API's code (400, 402, 404, 429); where `refusal.pending` is true the run would wait, so that the webhook lets it pass with
that message as a warning. `warnings` has a sentence for each field that is not used as it was asked. The world comes from
`GrpoLooks.world_of(meta, created_at, spec, status)` of `halo_operator.grpo`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from halo_api.conditions import ConditionType, Reason, is_true
from halo_api.estimate import Estimate
from halo_api.grpo_status import FrozenGrpo, GrpoRunStatus
from halo_api.workspace import WorkspaceHold
from halo_operator.plan import conditions, money
from halo_operator.plan.claim import amount_of, as_held, words_of
from halo_operator.plan.grpo import checks, checks_judges, checks_money, checks_prompts
from halo_operator.plan.grpo.checks import Check
from halo_operator.plan.grpo.clamp import resolve, warnings
from halo_operator.plan.grpo.commitment import committed
from halo_operator.plan.grpo.estimate import grpo_quote
from halo_operator.plan.grpo.hold import held_for, on_its_terms, reserve, settle, wanted_of
from halo_operator.plan.grpo.state import GrpoPlan, state
from halo_operator.plan.grpo.world import GrpoWorld
from halo_operator.plan.names import HOLD_FINALIZER
from halo_operator.plan.refusal import Refusal
from halo_operator.plan.world import Meta, Note

T = ConditionType

# A run that waits looks again this often even if no watch wakes it.
RECHECK_SECONDS = 60.0
CLAMPED = "Clamped"

# In the order in which they speak: what the spec and the catalog decide, then money, then data.
ADMISSION: tuple[Check, ...] = (
    checks.fine_tuning_is_on,
    checks.starts_keep_their_rate,
    checks.model_is_known,
    checks.model_is_fine_tunable,
    checks.adapter_name_is_free,
    checks.schemas_are_json,
    checks.inline_tasks_are_few,
    checks_judges.criteria_are_there,
    checks_judges.criteria_fit_the_run,
    checks_judges.criteria_are_calibrated,
    checks_judges.criteria_have_not_drifted,
    checks.alias_is_there,
    checks_money.there_is_storage,
    checks_money.provisioning_is_configured,
    checks_money.gpu_class_is_known,
    checks_money.gpu_has_a_price,
    checks_money.there_is_a_wallet,
    checks_money.wallet_covers_it,
    checks_money.workspace_stays,
    checks_prompts.tasks_are_enough,
    checks_prompts.candidates_are_enough,
    checks_prompts.traffic_is_enough,
    checks_judges.grades_are_newer_than_the_policy,
)


@dataclass(frozen=True)
class Answer:
    """Whether a run may start, and what it would use."""

    refusal: Refusal
    warnings: tuple[str, ...]
    frozen: FrozenGrpo
    estimate: Estimate | None = None


def grpo_answer(world: GrpoWorld) -> Answer:
    """Return what is wrong for good if anything is, else what must be waited for, else that training is not built yet."""
    frozen = resolve(world.spec)
    found = [refusal for check in ADMISSION if (refusal := check(world))]
    wrong = next((refusal for refusal in found if not refusal.pending), None)
    priced = committed(world.spec, world.catalog.gpus)
    if priced:
        frozen = frozen.model_copy(update={"commitment": priced.words()})
    refusal = wrong or (found[0] if found else training_is_available())
    return Answer(refusal, warnings(frozen), frozen, grpo_quote(world, frozen))


def training_is_available() -> Refusal:
    """Training of GrpoRuns comes later; until then a good one waits, with its commitment held."""
    return Refusal(
        Reason.NOT_YET_AVAILABLE,
        "kind: found GrpoRun, all checks of which hold, but this version does not train GrpoRuns yet; its budgets stay held "
        "until a version does: delete it to have them released, and use a TrainingJob of base lora_trl",
        pending=True,
    )


def plan_grpo(world: GrpoWorld, now: datetime) -> GrpoPlan:
    """Return what to do next. Planning again on what that leads to changes nothing."""
    if world.meta.deleting or is_over(world.status):
        return close(world.meta, world.status, held_for(world), now, asked=world.asked_seconds > 0)
    world = on_its_terms(world)
    answer = grpo_answer(world)
    wanted, held = wanted_of(world), held_for(world)
    if wanted and held is None and answer.refusal.reason == Reason.NOT_YET_AVAILABLE:
        return reserve(world, wanted, now)
    hold = as_held(world.meta.uid, held) if held else None
    status = world.status.model_copy(update={"hold": hold, "waiting": None})
    if hold is None or hold != world.status.hold:
        # Frozen with the hold: neither prices nor another version of the clamps change it after.
        status = status.model_copy(update={"frozen": answer.frozen, "estimate": answer.estimate})
    refusal = answer.refusal
    if refusal.pending:
        plan = wait(world.meta, world.status, status, refusal, now)
    else:
        plan = refuse(world.meta, world.status, status, refusal, now)
    if hold and not world.status.hold:
        words = f"{words_of(hold)} are held: all that the run may cost"
        plan = replace(plan, notes=(Note("Normal", Reason.BUDGET_HELD, words), *plan.notes))
    clamped = () if world.status.frozen else tuple(Note("Warning", CLAMPED, words) for words in answer.warnings)
    # An uninstall takes the finalizer off; this may be the operator after it.
    lost = hold and HOLD_FINALIZER not in world.meta.finalizers
    return replace(plan, finalizer="add" if lost else None, notes=clamped + plan.notes)


def close(meta: Meta, status: GrpoRunStatus, held: WorkspaceHold | None, now: datetime, *, asked: bool) -> GrpoPlan:
    """Return what is left to do for a run that is over, or goes; nothing of it hangs on the spec."""
    settling = settle(meta, status, held, asked=asked)
    if meta.deleting:
        return settling
    # Only suspend can still change; that it was seen tells GitOps tools that there is nothing to wait for.
    seen = state(meta, status, status, conditions.abnormal(status.conditions), now)
    return replace(settling, status=seen.status)


def wait(meta: Meta, old: GrpoRunStatus, status: GrpoRunStatus, refusal: Refusal, now: datetime) -> GrpoPlan:
    """Say what the run waits for, and look again."""
    status = status.model_copy(update={"waiting": refusal.message})
    facts = conditions.waiting(refusal.reason, refusal.message)
    if status.hold:
        facts = facts | conditions.reserved(words_of(status.hold))
    plan = state(meta, old, status, facts, now, Note("Normal", refusal.reason, refusal.message))
    return replace(plan, requeue_after=RECHECK_SECONDS)


def refuse(meta: Meta, old: GrpoRunStatus, status: GrpoRunStatus, refusal: Refusal, now: datetime) -> GrpoPlan:
    """Say that the run can never be right."""
    facts = conditions.refused(refusal.reason, refusal.message)
    if status.hold:
        released = f"0 of {words_of(status.hold)} are charged, {money.usd(amount_of(status.hold)[1])} released"
        facts = facts | conditions.settled(released)
    return state(meta, old, status, facts, now, Note("Warning", refusal.reason, refusal.message))


def is_over(status: GrpoRunStatus) -> bool:
    """Whether the run is over; that is final."""
    return is_true(status.conditions, T.COMPLETE) or is_true(status.conditions, T.FAILED)
