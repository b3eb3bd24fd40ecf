"""Budgets and money of a TrainingJob: required where they belong, never too small to leave an adapter, never above what is free."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from halo_api.conditions import Reason
from halo_api.workspace import WorkspaceSpec, WorkspaceStatus
from halo_operator.plan import budget, money
from halo_operator.plan.admission import first_refusal
from halo_operator.plan.budget import BUDGET, RAISE, hold_of, quote_of
from halo_operator.plan.estimate import estimate
from halo_operator.plan.estimate_runs import workload_of
from halo_operator.plan.quote import amounts
from halo_operator.plan.run import plan_run
from halo_operator.plan.world import GpuEntry, RunWorld, WorkspaceEntry
from halo_operator.recipes import RECIPES
from tests.unit import builders as b

HELD = {
    "run": {"kind": "TrainingJob", "name": "run", "uid": "uid-1"},
    "unit": "H100Hours",
    "amount": "900",
    "rate": {"gpuClass": "h100", "h100Equivalent": "1"},
    "placedAt": "2026-11-29T12:00:00Z",
}
PRICES = [{"region": "eu", "usdPerHour": 2.5, "markup": 1.2}]


def workspace(status: dict[str, Any] | None = None, **spec: Any) -> WorkspaceEntry:
    return WorkspaceEntry(True, WorkspaceSpec.model_validate(spec), WorkspaceStatus.model_validate(status or {}))


def priced(**changes: Any) -> GpuEntry:
    return GpuEntry("h100", b.gpu(**({"prices": PRICES} | changes)))


def world(
    budget: float | None = None, entry: WorkspaceEntry | None = None, gpu_class: GpuEntry | None = None, **changes: Any
) -> RunWorld:
    if budget is not None:
        changes["budget"] = {"h100Hours": budget}
    spec = b.spec(**changes)
    found = b.catalog(gpu=gpu_class or priced(), workspace=entry or WorkspaceEntry(), recipe=RECIPES["sql_v3"])
    if spec.base != "lora_trl":
        spec = spec.model_copy(update={"lora": None})
        found = replace(found, dataset=None)
    return b.world(spec=spec, catalog=found)


RLVR = {"base": "halo_rlvr", "gpu": {"type": "h100", "count": 2}, "rlvr": {"dataset": "tasks"}}
RFT = {"base": "halo_rft", "rft": {"dataset": "tasks"}}
ALLOCATION = workspace(allocation={"h100Hours": 1000})
PAID = workspace(plan="paid")
WALLET = workspace(wallet={"creditUsd": 1000})


CASES = [
    ("lora_trl without budget or allocation", world, {}, None),
    ("lora_trl with its share", world, {"budget": 5, "entry": ALLOCATION}, None),
    ("lora_trl without its share", world, {"entry": ALLOCATION}, Reason.BUDGET_REQUIRED),
    ("lora_trl with a budget but no allocation", world, {"budget": 5}, Reason.BUDGET_NOT_ALLOWED),
    ("lora_trl with a budget on a paid plan", world, {"budget": 5, "entry": PAID}, Reason.BUDGET_NOT_ALLOWED),
    ("halo_rft without its share", world, {"entry": ALLOCATION, **RFT}, Reason.BUDGET_REQUIRED),
    ("halo_rft with a budget but no allocation", world, {"budget": 50, **RFT}, Reason.BUDGET_NOT_ALLOWED),
    ("halo_rlvr on the free plan", world, RLVR, None),
    ("halo_rlvr with a budget on the free plan", world, {"budget": 500, **RLVR}, None),
    ("halo_rlvr on the paid plan", world, {"entry": PAID, **RLVR}, Reason.BUDGET_REQUIRED),
    ("halo_rlvr on the paid plan with a budget", world, {"budget": 500, "entry": PAID, **RLVR}, None),
    ("a budget that ends before the first checkpoint", world, {"budget": 0.05, **RLVR}, Reason.BUDGET_TOO_SMALL),
    ("a share that ends before the first checkpoint", world, {"budget": 0.05, "entry": ALLOCATION}, Reason.BUDGET_TOO_SMALL),
    ("a budget in decimals that are not counted", world, {"budget": 1.2345, "entry": ALLOCATION}, Reason.INVALID_SPEC),
    ("a wallet and a price", world, {"entry": WALLET}, None),
    ("a wallet, and a GPU without a price", world, {"entry": WALLET, "gpu_class": priced(prices=[])}, Reason.NO_PRICE),
    ("a wallet, and a GPU of one's own", world, {"entry": WALLET, "gpu_class": priced(prices=[], byo=True)}, None),
    ("a wallet that is too small for the estimate", world, {"entry": workspace(wallet={"creditUsd": 0.1})}, Reason.INSUFFICIENT_FUNDS),
    ("a wallet that is held already", world, {"entry": workspace({"held": "999.99"}, wallet={"creditUsd": 1000})}, Reason.INSUFFICIENT_FUNDS),
    ("a wallet that is too small for the budget", world, {"budget": 500, "entry": WALLET, **RLVR}, Reason.INSUFFICIENT_FUNDS),
    ("an allocation that is too small", world, {"budget": 1000.001, "entry": ALLOCATION}, Reason.INSUFFICIENT_FUNDS),
    ("an allocation that is just enough", world, {"budget": 1000, "entry": ALLOCATION}, None),
]  # fmt: skip


@pytest.mark.parametrize(("make", "changes", "reason"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_budgets(make: Any, changes: dict[str, Any], reason: Reason | None) -> None:
    refusal = first_refusal(make(**changes), BUDGET)
    assert (refusal.reason if refusal else None) == reason
    if refusal:
        assert re.match(r"^spec\.[A-Za-z0-9.]+: (found|the run would hold) .*; .*", refusal.message), refusal.message
        assert not refusal.pending
        assert refusal.code == (402 if reason == Reason.INSUFFICIENT_FUNDS else 400)


@pytest.mark.parametrize("changes", [{"entry": ALLOCATION}, RLVR], ids=["lora_trl", "halo_rlvr"])
def test_a_budget_just_covers_start_first_checkpoint_and_publishing(changes: dict[str, Any]) -> None:
    work = workload_of(world(**changes))
    assert work
    exact = amounts(estimate(work))
    least = exact.least / money.HOUR_MS
    assert first_refusal(world(budget=round(least, 3), **changes), BUDGET) is None
    refusal = first_refusal(world(budget=round(least - 0.001, 3), **changes), BUDGET)
    assert refusal
    assert refusal.reason == Reason.BUDGET_TOO_SMALL
    for part in (exact.start, exact.to_first_checkpoint, exact.publish, exact.least):
        assert money.hours(part) in refusal.message


def test_what_the_run_holds_already_is_free_for_it() -> None:
    """A raised budget is checked again, and replaces the hold."""
    short = world(budget=1000, entry=workspace({"allocation": {"granted": "1000", "held": "900", "spent": "0", "balance": "100"}}, allocation={"h100Hours": 1000}))  # fmt: skip
    assert first_refusal(short, BUDGET)
    book = short.catalog.workspace.status
    entry = replace(
        short.catalog.workspace, status=type(book).model_validate(book.to_json() | {"holds": {"uid-1": HELD}})
    )
    assert first_refusal(replace(short, catalog=replace(short.catalog, workspace=entry)), BUDGET) is None


def test_a_raise_says_how_much_more_it_takes_and_none_is_taken_of_a_run_that_is_over() -> None:
    used = {"granted": "1000", "held": "900", "spent": "0", "balance": "100"}
    book = {"holds": {"uid-1": HELD}, "allocation": used}
    more = world(budget=1000.5, entry=workspace(book, allocation={"h100Hours": 1000}))
    refusal = first_refusal(more, RAISE)
    assert refusal
    assert "its budget, 1000.5 H100-hours, 100.5 more than it does, found 100 free in the shared" in refusal.message
    done = [{"type": "Complete", "status": "True", "reason": "BudgetReached", "message": "", "lastTransitionTime": "2026-11-29T12:00:00Z"}]  # fmt: skip
    over = replace(more, status=type(more.status).model_validate({"conditions": done}))
    refusal = first_refusal(over, RAISE)
    assert refusal
    assert "found 1000.5, but the run is over (Complete)" in refusal.message


def test_the_hold_is_the_budget_or_the_high_end() -> None:
    quoted, hold = quote_of(world()), hold_of(world())
    assert quoted
    assert hold
    assert quoted.usd
    assert money.plain(hold.h100_hours) == quoted.h100_hours.high
    assert hold.usd == pytest.approx(hold.h100_hours * 3)
    budgeted = hold_of(world(budget=7.5, **RLVR))
    assert budgeted
    assert (budgeted.h100_hours, budgeted.usd) == (money.decimal_of(7.5), money.decimal_of(22.5))


def test_a_quote_is_no_more_than_the_budget() -> None:
    free, capped = quote_of(world(**RLVR)), quote_of(world(budget=0.7, **RLVR))
    assert free
    assert capped
    assert capped.usd
    assert not free.capped
    assert capped.capped
    assert (capped.h100_hours.high, capped.usd.high) == ("0.7", "2.1")
    assert float(free.h100_hours.high) > 0.7


def test_words_for_no_estimate_are_none() -> None:
    nothing = replace(world(), catalog=b.catalog(dataset=None))
    assert quote_of(nothing) is None
    assert budget.words_of_least(nothing) == ""


def test_admission_freezes_the_quote_and_tells_it_with_the_start() -> None:
    found = world()
    plan = plan_run(found, b.NOW)
    assert plan.status
    assert plan.status.estimate == quote_of(found)
    (note,) = plan.notes
    assert note.reason == "Started"
    assert "; quote: " in note.message
    later = replace(found, status=plan.status, catalog=b.catalog(gpu=priced(prices=[])))
    again = plan_run(later, b.NOW)
    assert (again.status or plan.status).estimate == plan.status.estimate
