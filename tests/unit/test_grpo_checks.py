"""Whether a GrpoRun may start: every fact alone, their order, the rate of starts, and what would be held."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta

import pytest

from halo_api.conditions import Reason
from halo_operator.plan.grpo import checks
from halo_operator.plan.grpo.commitment import committed
from halo_operator.plan.grpo.plan import grpo_answer, plan_grpo
from halo_operator.plan.grpo.world import GrpoWorld, Prompts, Start
from tests.refusals import InWorld
from tests.refusals.world_grpo import ROWS, refusal
from tests.unit.builders_grpo import CREATED, catalog, gpu, granted, spec, starts, workspace, world


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_a_fact_is_refused_and_its_good_counterpart_passes(row: InWorld[GrpoWorld]) -> None:
    found = refusal(row.bad)
    assert found is not None
    assert (found.reason, found.code, found.pending) == (row.reason, row.code, row.pending)
    assert all(words in found.message for words in row.words), found.message
    assert found.message.partition(": ")[0].startswith(("spec.", "metadata."))
    assert refusal(row.good) is None


def test_a_run_of_which_all_checks_hold_is_not_trained_yet() -> None:
    answer = grpo_answer(world())
    assert (answer.refusal.reason, answer.refusal.code, answer.warnings) == (Reason.NOT_YET_AVAILABLE, 400, ())
    assert answer.refusal.pending


def test_what_is_wrong_for_good_is_said_before_what_is_waited_for() -> None:
    pending = catalog(traffic=Prompts(None, "x"), workspace=workspace(wallet=None))
    assert grpo_answer(world(pending)).refusal.reason == Reason.NO_WALLET


MONEY = [
    # changes of the spec, classes, reward, gpu, rate, basis
    ({}, (gpu(),), 25_000_000, 30_000_000, 3_000_000, "platformGpu"),
    ({"platformGpu": None}, (gpu(),), 25_000_000, 0, None, "byo"),
    ({"gpuHourBudget": 0.001, "rewardBudgetUsd": 0.000001}, (gpu(),), 1, 3000, 3_000_000, "platformGpu"),
    ({"platformGpu": {"gpuType": "h100", "region": "eu-west", "gpuCount": 8}}, (gpu(),), 25_000_000, 30_000_000, 3_000_000, "platformGpu"),
    ({"rewardBudgetUsd": 0.1 + 0.2 - 4e-17}, (gpu(),), 300_000, 30_000_000, 3_000_000, "platformGpu"),
    ({"platformGpu": None, "autoProvision": True}, (gpu(), gpu("b", prices=[{"region": "x", "usdPerHour": 10}])), 25_000_000, 800_000_000, 10_000_000, "autoProvision"),
    ({"platformGpu": None, "autoProvision": True}, (gpu(), gpu("b", prices=[{"region": "x", "usdPerHour": 10, "active": False}])), 25_000_000, 240_000_000, 3_000_000, "autoProvision"),
    ({"gpuHourBudget": 0.007}, (gpu(prices=[{"region": "eu-west", "usdPerHour": 1.234567, "markup": 1.1}]),), 25_000_000, 9507, 1_358_024, "platformGpu"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "gpus", "reward", "time", "rate", "basis"), MONEY)
def test_the_whole_commitment_is_exact(changes, gpus, reward, time, rate, basis) -> None:  # type: ignore[no-untyped-def]
    found = committed(spec(**changes), gpus)
    assert found is not None
    assert (found.reward, found.gpu, found.rate, found.basis) == (reward, time, rate, basis)
    assert found.total == reward + time


def at(age: float, uid: str, **facts: bool) -> Start:
    return Start(uid, CREATED - timedelta(seconds=age), **facts)


RATE = [
    # the others, whether one more may start
    (starts(*range(19)), True),
    (starts(*range(20)), False),
    (starts(*[60] * 40), True),
    (starts(*[59.9] * 20), False),
    (starts(*[1] * 40, limited=True, decided=True), True),
    # Made in the same second: those that were looked at hold their place, of the others the lower uid goes first.
    ([at(0, f"zz-{i}", decided=True) for i in range(20)], False),
    ([at(0, f"zz-{i}") for i in range(20)], True),
    ([at(0, f"aa-{i}") for i in range(20)], False),
    # Clocks of API servers differ: one that seems to come later is no start before.
    (starts(*[-1] * 40), True),
]


@pytest.mark.parametrize(("others", "may"), RATE)
def test_the_rate_counts_what_was_made_before(others: list[Start], may: bool) -> None:
    assert (checks.starts_keep_their_rate(replace(world(), starts=tuple(others))) is None) == may


@pytest.mark.parametrize("seed", range(200))
def test_no_more_than_the_rate_start_in_any_order(seed: int) -> None:
    """Runs of one second are looked at in any order, each with what is known by then: never more than 20 pass, never fewer."""
    chance = random.Random(seed)
    uids = [f"uid-{chance.random()}" for _ in range(chance.choice((19, 20, 21, 40)))]
    decided: dict[str, bool] = {}
    for uid in chance.sample(uids, len(uids)):
        there = [at(0, other, decided=other in decided, limited=decided.get(other) is False) for other in uids]
        one = replace(world(), starts=tuple(there))
        one = replace(one, meta=replace(one.meta, uid=uid))
        decided[uid] = checks.starts_keep_their_rate(one) is None
    assert sum(decided.values()) == min(20, len(uids))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_planning_again_writes_nothing(row: InWorld[GrpoWorld]) -> None:
    plan = plan_grpo(row.bad, CREATED)
    assert plan.status is not None
    assert plan.notes
    later = replace(row.bad, status=plan.status, starts=())
    again = plan_grpo(later, CREATED + timedelta(hours=1))
    assert (again.status, again.notes) == (None, ())
    assert (again.requeue_after is not None) == row.pending


def test_the_status_says_what_is_used_and_each_clamp_is_an_event() -> None:
    plan = plan_grpo(granted(world(maxSteps=9000, groupSize=1)), CREATED)
    assert plan.status is not None
    assert plan.status.frozen is not None
    assert plan.status.frozen.commitment is not None
    assert (plan.status.frozen.max_steps, plan.status.frozen.group_size) == (5000, 2)
    assert plan.status.frozen.commitment.usd == "55"
    assert [note.reason for note in plan.notes] == ["Clamped", "Clamped", "BudgetHeld", "NotYetAvailable"]


def test_a_refusal_is_final_and_a_seen_suspend_is_the_only_thing_written() -> None:
    plan = plan_grpo(world(catalog(workspace=workspace(wallet=None))), CREATED)
    assert plan.status is not None
    seen = replace(world(), status=plan.status)
    seen = replace(seen, meta=replace(seen.meta, generation=2))
    again = plan_grpo(seen, CREATED)
    assert again.status is not None
    assert again.status.observed_generation == 2
    assert {c.type: c.status for c in again.status.conditions} == {c.type: c.status for c in plan.status.conditions}


def test_one_that_waits_goes_on_when_the_prompts_are_counted() -> None:
    waits = plan_grpo(world(catalog(traffic=Prompts(None, "not yet"))), CREATED).status
    assert waits is not None
    assert waits.waiting
    counted = replace(world(), status=waits, starts=starts(*[0] * 40, decided=True))
    assert plan_grpo(counted, CREATED).ask
    plan = plan_grpo(granted(counted), CREATED)
    assert plan.status is not None
    assert plan.status.waiting == grpo_answer(counted).refusal.message
    assert [note.reason for note in plan.notes] == ["BudgetHeld", "NotYetAvailable"]
