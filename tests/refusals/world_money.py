"""The money of a TrainingJob that nobody grants: where a budget belongs, what it must cover, who can pay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from halo_operator.plan.admission import RULES, first_refusal
from halo_operator.plan.refusal import Refusal
from halo_operator.plan.world import GpuEntry, RunWorld
from tests.refusals import InWorld
from tests.unit import builders as b

Row = InWorld[RunWorld]
PRICES = [{"region": "eu-west-1", "usdPerHour": 2.5, "markup": 1.2}]
H100 = GpuEntry("h100", b.gpu(prices=PRICES))


def refusal(world: RunWorld) -> Refusal | None:
    """Return what the checks say, but for what is only not built yet."""
    return first_refusal(world, RULES)


def sft(budget: float | None = None, gpu: GpuEntry = H100, **workspace: Any) -> RunWorld:
    spec = b.spec(**({"budget": {"h100Hours": budget}} if budget else {}))
    return b.world(spec=spec, catalog=b.catalog(gpu=gpu, workspace=b.workspace(**workspace)))


def rlvr(budget: float | None, plan: str = "paid") -> RunWorld:
    spec = b.rlvr_spec(**({"budget": {"h100Hours": budget}} if budget else {}))
    return b.of_tasks(spec, gpu=H100, workspace=b.workspace(plan=plan))


def rft(budget: float | None) -> RunWorld:
    spec = b.rft_spec(**({"budget": {"h100Hours": budget}} if budget else {}))
    return b.of_tasks(spec, gpu=H100, workspace=b.workspace(**SHARED))


def leaving() -> RunWorld:
    world = sft(**RICH)
    return replace(world, catalog=replace(world.catalog, workspace=replace(world.catalog.workspace, deleting=True)))


SHARED = {"allocation": {"h100Hours": 1000}}
RICH = {"wallet": {"creditUsd": 1000}}
ALLOCATED, BASE = "Workspace: allocation of 1000 H100-hours", ("spec.base",)

ROWS: list[Row] = [
    Row("no share of a shared allocation", sft(**SHARED), sft(5, **SHARED), "BudgetRequired", ("spec.budget.h100Hours: found none", "has a shared allocation", "set it to at least"), ALLOCATED, also=BASE),
    Row("no share of a shared allocation for halo_rft", rft(None), rft(50), "BudgetRequired", ("found none", "has a shared allocation"), ALLOCATED, also=BASE),
    Row("a share where nothing is shared", sft(5), sft(), "BudgetNotAllowed", ("spec.budget: found 5 H100-hours", "has no shared allocation", "remove it"), "Workspace: no allocation", also=BASE),
    Row("no budget on a paid plan", rlvr(None), rlvr(500), "BudgetRequired", ("found none", "on the paid plan of namespace team"), "Workspace: plan paid", also=BASE),
    Row("a budget that ends before the first checkpoint", rlvr(0.05), rlvr(500), "BudgetTooSmall", ("found 0.05, less than", "to start (", "to reach the first checkpoint at step", "to publish it (", "raise it"), "Workspace: plan paid", also=BASE),
    Row("a budget finer than is counted", sft(5.0001, **SHARED), sft(5.001, **SHARED), "InvalidSpec", ("found 5.0001, which has more than 3 decimals; round it",), "definitions of another version"),
    Row("a share of more than is free", sft(1000.001, **SHARED), sft(1000, **SHARED), "InsufficientFunds", ("the run would hold its budget, 1000.001 H100-hours", "found 1000 free in the shared allocation of namespace team; lower it"), ALLOCATED, 402),
    Row("a wallet short of the estimate", sft(wallet={"creditUsd": 0.1}), sft(**RICH), "InsufficientFunds", ("the high end of its estimate", "found 0.1 free in the wallet", "top up the wallet"), "Workspace: a wallet of 0.1 USD", 402),
    Row("a Workspace that is being deleted", leaving(), sft(**RICH), "HoldPending", ("found team, whose Workspace is being deleted", "wait until it is gone"), "a wallet; the Workspace has a deletionTimestamp", pending=True),
    Row("a GPU without a price", sft(gpu=GpuEntry("h100", b.gpu()), **RICH), sft(**RICH), "NoPrice", ("spec.gpu.type: found 'h100', a GpuClass with no active price", "use a class with a price"), "a wallet; GpuClass h100: no prices", also=("spec.gpu.type",)),
]  # fmt: skip
