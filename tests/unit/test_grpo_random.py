"""Whatever the schema lets pass of a GrpoRun is refused, held or waited for, in a status that the schema takes; planning never fails."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

from hypothesis import HealthCheck, given, settings

from halo_api.conditions import Reason, condition_of
from halo_operator.plan import money
from halo_operator.plan.grpo.plan import grpo_answer, plan_grpo
from halo_operator.plan.grpo.world import GrpoWorld
from halo_operator.plan.wishes import Wanted
from halo_operator.plan.world import Plan
from tests.unit.builders_grpo import CREATED, granted
from tests.unit.random_grpo import worlds

EXAMPLES = 300


def outcome_of(world: GrpoWorld) -> str:
    """Plan the run, hold everything that must be true of what comes of it, and say what did."""
    plan = plan_grpo(world, CREATED)
    answer = grpo_answer(world)
    if plan.ask:
        assert answer.refusal.reason == Reason.NOT_YET_AVAILABLE
        assert plan == Plan(finalizer="add", ask=plan.ask, requeue_after=plan.requeue_after)
        assert isinstance(plan.ask, Wanted)
        held = granted(world)
        later = plan_grpo(held, CREATED)
        assert later.ask is None
        assert later.status
        assert later.status.hold
        assert later.status.frozen
        assert later.status.frozen.commitment
        # What is held is what is said, to the millionth.
        assert later.status.hold.usd == later.status.frozen.commitment.usd == money.usd(plan.ask.amount)
        assert later.status.hold.rate == later.status.frozen.commitment.usd_per_gpu_hour
        return f"held, {outcome_of(held)}"
    assert plan.status is not None
    # What was written is what the schema takes, and is read again as it was.
    stored = type(plan.status).model_validate(plan.status.to_json())
    assert stored == plan.status
    accepted = condition_of(stored.conditions, "Accepted")
    assert accepted is not None
    assert (accepted.status, accepted.reason) == (
        "Unknown" if answer.refusal.pending else "False",
        answer.refusal.reason,
    )
    assert Reason(answer.refusal.reason)
    assert len(answer.refusal.message) < 1500
    assert len(plan.notes) == len(answer.warnings) + (2 if plan.status.hold else 1)
    assert plan.first == plan.create == plan.delete == ()
    later = plan_grpo(replace(world, status=stored), CREATED + timedelta(hours=1))
    assert (later.status, later.notes) == (None, ())
    assert (later.requeue_after is not None) == answer.refusal.pending
    return "waits" if answer.refusal.pending else str(answer.refusal.reason)


def test_any_run_is_refused_or_waits_and_nothing_is_to_do_the_second_time() -> None:
    outcomes: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(worlds())
    def plans(world: GrpoWorld) -> None:
        outcomes[outcome_of(world)] += 1

    plans()
    assert outcomes.keys() >= {"waits", "held, waits"}, outcomes
