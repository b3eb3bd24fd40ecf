"""The hold of a GrpoRun: asked for once, taken at the terms that were frozen with it, kept while the run waits, and let go of."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from halo_api.conditions import Reason, condition_of
from halo_operator.plan import money
from halo_operator.plan.claim import micro_rate
from halo_operator.plan.grpo.commitment import committed
from halo_operator.plan.grpo.hold import wanted_of
from halo_operator.plan.grpo.plan import grpo_answer, plan_grpo
from halo_operator.plan.grpo.world import GrpoWorld, Prompts
from halo_operator.plan.names import HOLD_FINALIZER
from halo_operator.plan.wishes import Ended, Wanted
from halo_operator.plan.world import GpuEntry, Plan, Verdict, WorkspaceEntry
from tests.unit.builders_grpo import CREATED, catalog, criterion, gpu, granted, starts, workspace, world

LATER = CREATED + timedelta(hours=1)
DEAR = gpu("b200", prices=[{"region": "x", "usdPerHour": 10}])
TWO = (gpu(), DEAR, gpu("own", byo=True, prices=[]))


def with_gpus(found: GrpoWorld, *gpus: GpuEntry) -> GrpoWorld:
    return replace(found, catalog=replace(found.catalog, gpus=gpus))


def with_book(found: GrpoWorld, **facts: Any) -> GrpoWorld:
    entry = found.catalog.workspace
    changed = replace(entry, status=entry.status.model_copy(update=facts))
    return replace(found, catalog=replace(found.catalog, workspace=changed))


def drifted(found: GrpoWorld) -> GrpoWorld:
    judge = criterion("helpful", drifted=Verdict("True", "Drifted", "agreement fell"))
    return replace(found, catalog=replace(found.catalog, criteria={"helpful": judge}))


def after(found: GrpoWorld) -> GrpoWorld:
    """The world once what was planned is done."""
    plan = plan_grpo(found, CREATED)
    assert plan.status
    return replace(found, status=plan.status)


ASKED = [
    # changes of the spec, classes, amount, rate of an hour, class
    ({}, TWO, 55_000_000, 3_000_000, "h100"),
    ({"platformGpu": None, "autoProvision": True}, TWO, 825_000_000, 10_000_000, "b200"),
    ({"platformGpu": None}, TWO, 25_000_000, None, "any"),
]


@pytest.mark.parametrize(("changes", "gpus", "amount", "rate", "name"), ASKED)
def test_a_good_run_asks_for_all_of_its_commitment_and_does_nothing_else(
    changes: dict[str, Any], gpus: tuple[GpuEntry, ...], amount: int, rate: int | None, name: str
) -> None:
    found = world(catalog(gpus=gpus), **changes)
    plan = plan_grpo(found, CREATED)
    assert isinstance(plan.ask, Wanted)
    assert plan == Plan(finalizer="add", ask=plan.ask, requeue_after=plan.requeue_after)
    assert (plan.ask.amount, plan.ask.unit, plan.ask.created_at) == (amount, "USD", CREATED)
    assert (micro_rate(plan.ask.rate), plan.ask.rate.gpu_class) == (rate, name)
    priced = committed(found.spec, gpus)
    assert priced
    assert (priced.total, priced.rate) == (amount, rate)
    # Its finalizer is not put there twice.
    there = replace(found, meta=replace(found.meta, finalizers=(HOLD_FINALIZER,)))
    assert plan_grpo(there, CREATED) == replace(plan, finalizer=None)


def test_one_that_is_held_waits_with_its_budget_reserved() -> None:
    plan = plan_grpo(granted(world()), CREATED)
    assert plan.status
    assert plan.status.hold
    assert (plan.status.hold.usd, plan.status.hold.rate, plan.status.hold.id) == ("55", "3", "uid-1")
    is_ = {c.type: (c.status, c.reason) for c in plan.status.conditions}
    assert is_["Reserved"] == ("True", "BudgetHeld")
    assert is_["Accepted"] == ("Unknown", "NotYetAvailable")
    assert is_["Ready"] == ("False", "Waiting")
    assert is_["Failed"][0] == "False"
    assert "Stalled" not in is_
    assert [note.reason for note in plan.notes] == ["BudgetHeld", "NotYetAvailable"]
    assert (plan.ask, plan.finalizer) == (None, None)


@pytest.mark.parametrize(("changes", "amount"), [(changes, amount) for changes, _, amount, _, _ in ASKED])
@pytest.mark.parametrize(
    "gpus",
    [
        (gpu(prices=[{"region": "eu-west", "usdPerHour": 99}]), gpu("b200", prices=[{"region": "x", "usdPerHour": 1}])),
        (gpu(prices=[]), gpu("b200", prices=[])),
        (gpu(byo=True, h100Equivalent=9), gpu("b200", byo=True)),
    ],
    ids=["other prices", "no prices", "not billed"],
)
def test_prices_that_change_after_the_hold_change_nothing(
    changes: dict[str, Any], amount: int, gpus: tuple[GpuEntry, ...]
) -> None:
    """Before its status says the hold, and after."""
    held = granted(world(catalog(gpus=TWO), **changes))
    own = gpu("own", byo=True, prices=[])
    status, late = plan_grpo(held, CREATED).status, plan_grpo(with_gpus(held, own, *gpus), CREATED).status
    assert status
    assert late
    assert status.frozen
    assert status.frozen.commitment
    assert status.frozen.commitment.usd == money.usd(amount)
    assert (late.frozen, late.estimate, late.hold) == (status.frozen, status.estimate, status.hold)
    said = with_gpus(replace(held, status=status), own, *gpus)
    assert plan_grpo(said, LATER).status is None


def test_a_wallet_that_is_a_micro_usd_short_is_not_asked() -> None:
    for balance, reason in (("54.999999", "InsufficientFunds"), ("55", "NotYetAvailable")):
        found = world(catalog(workspace=workspace(balance)))
        plan = plan_grpo(found, CREATED)
        assert grpo_answer(found).refusal.reason == reason
        assert (plan.ask is None) == (reason == "InsufficientFunds")
        assert (plan.finalizer is None) == (reason == "InsufficientFunds")


def test_credit_counts_as_it_is_now_and_not_as_the_book_last_wrote_it() -> None:
    """A top-up and the run that needs it are often applied together."""
    entry = workspace(wallet={"creditUsd": 100})
    for held, spent, free in (("45", "0", True), ("45.000001", "0", False), ("20", "25.5", False)):
        status = entry.status.model_copy(update={"balance": "0", "held": held, "spent": spent})
        refusal = grpo_answer(world(catalog(workspace=replace(entry, status=status)))).refusal
        assert (refusal.reason == Reason.NOT_YET_AVAILABLE) == free


def test_a_slow_workspace_is_said_and_asked_again() -> None:
    found = replace(with_book(world(), waiting="1000 holds are open"), asked_seconds=6)
    plan = plan_grpo(found, CREATED)
    assert plan.status
    assert plan.status.waiting == "waits for 55 USD to be held by its Workspace: 1000 holds are open"
    reserved = condition_of(plan.status.conditions, "Reserved")
    assert reserved
    assert (reserved.status, reserved.reason) == ("False", "HoldPending")
    assert isinstance(plan.ask, Wanted)
    again = plan_grpo(replace(found, status=plan.status), LATER)
    assert (again.status, again.notes, again.ask) == (None, (), plan.ask)
    # Then it is held, and that is all that is said.
    held = plan_grpo(granted(replace(found, status=plan.status)), LATER)
    assert held.status
    assert [note.reason for note in held.notes] == ["BudgetHeld", "NotYetAvailable"]


@pytest.mark.parametrize(
    "entry",
    [
        WorkspaceEntry(),
        workspace(wallet=None),
        workspace(wallet={"creditUsd": 1}),
        replace(workspace(), deleting=True),
    ],
    ids=["no spec", "no wallet", "overdrawn", "deleting"],
)
def test_what_is_held_stays_held_whatever_becomes_of_the_wallet(entry: WorkspaceEntry) -> None:
    held = granted(world())
    found = replace(
        entry,
        status=held.catalog.workspace.status,
        spec=entry.spec.model_copy(update={"storage": workspace().spec.storage}),
    )
    found = replace(held, catalog=replace(held.catalog, workspace=found))
    assert grpo_answer(found).refusal.reason == Reason.NOT_YET_AVAILABLE


def test_a_run_that_asked_keeps_its_place_among_the_starts() -> None:
    full = starts(*[0] * 20, decided=True)
    assert grpo_answer(replace(world(), starts=full)).refusal.reason == Reason.RATE_LIMITED
    for found in (granted(world()), replace(world(), asked_seconds=0.1)):
        assert grpo_answer(replace(found, starts=full)).refusal.reason == Reason.NOT_YET_AVAILABLE


def test_one_that_is_refused_after_its_hold_was_placed_settles_with_nothing_and_goes_on() -> None:
    for found in (drifted(granted(world())), drifted(after(granted(world())))):
        plan = plan_grpo(found, LATER)
        assert plan.status
        is_ = {c.type: (c.status, c.reason, c.message) for c in plan.status.conditions}
        assert is_["Failed"][:2] == ("True", "CriterionDrifted")
        assert is_["Reserved"] == ("False", "Settled", "0 of 55 USD are charged, 55 released")
        # Said first, then settled.
        assert (plan.ask, plan.finalizer) == (None, None)
        over = replace(found, status=plan.status)
        ask = plan_grpo(over, LATER).ask
        assert isinstance(ask, Ended)
        assert (ask.used, ask.gpu_ms, ask.judge_micro_usd, ask.outcome) == (0, 0, 0, "CriterionDrifted")
        assert plan_grpo(over, LATER) == Plan(ask=ask, requeue_after=60)
        settled = with_book(over, holds={})
        assert plan_grpo(settled, LATER) == Plan(finalizer="remove")
        gone = replace(settled, meta=replace(settled.meta, finalizers=()))
        assert plan_grpo(gone, LATER) == Plan()


@pytest.mark.parametrize("over", [False, True], ids=["deleted", "refused"])
def test_what_was_asked_and_is_not_decided_is_taken_back_before_the_run_lets_go(over: bool) -> None:
    """Held after that, it would be held for as long as the refused run is kept."""
    asking = replace(world(), meta=replace(world().meta, finalizers=(HOLD_FINALIZER,)), asked_seconds=0.1)
    found = after(drifted(asking)) if over else replace(asking, meta=replace(asking.meta, deleting=True))
    ask = plan_grpo(found, LATER).ask
    assert isinstance(ask, Ended)
    assert ask.outcome == ("CriterionDrifted" if over else "Cancelled")
    assert plan_grpo(replace(found, asked_seconds=0), LATER) == Plan(finalizer="remove")


def test_a_hold_outlives_an_uninstall_that_takes_the_finalizer_off() -> None:
    held = granted(world())
    bare = replace(after(held), meta=replace(held.meta, finalizers=()))
    assert plan_grpo(bare, LATER) == Plan(finalizer="add", requeue_after=60)
    refused = replace(drifted(bare), status=after(drifted(bare)).status)
    assert isinstance(plan_grpo(refused, LATER).ask, Ended)


def test_deleting_one_that_waits_releases_all_of_it() -> None:
    found = after(granted(world()))
    found = replace(found, meta=replace(found.meta, deleting=True))
    plan = plan_grpo(found, LATER)
    assert isinstance(plan.ask, Ended)
    assert (plan.ask.used, plan.ask.outcome) == (0, "Cancelled")
    assert plan_grpo(with_book(found, holds={}), LATER) == Plan(finalizer="remove")
    bare = replace(found, meta=replace(found.meta, finalizers=()))
    assert plan_grpo(with_book(bare, holds={}), LATER) == Plan()


def test_one_that_waits_for_its_prompts_holds_nothing_yet_and_keeps_what_it_has() -> None:
    pending = catalog(traffic=Prompts(None, "not counted"))
    early = plan_grpo(world(pending), CREATED)
    assert early.status
    assert (early.ask, early.status.hold) == (None, None)
    held = granted(world())
    late = replace(held, catalog=replace(held.catalog, traffic=Prompts(None, "not counted")))
    plan = plan_grpo(late, CREATED)
    assert plan.status
    assert plan.status.hold
    assert [note.reason for note in plan.notes] == ["BudgetHeld", "DatasetPending"]


def test_planning_twice_changes_nothing() -> None:
    for found in (granted(world()), drifted(granted(world()))):
        plan = plan_grpo(found, CREATED)
        again = plan_grpo(replace(found, status=plan.status), LATER)  # type: ignore[arg-type]
        assert (again.status, again.notes) == (None, ())
    wanted = wanted_of(world())
    assert plan_grpo(world(), CREATED).ask == plan_grpo(world(), LATER).ask == wanted
