"""The facts about a TrainingJob's budget and money: where a budget is required, what it must cover, who can pay.

The webhook's answer is advice: only the Workspace's own reconcile places holds, and it counts again.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from halo_api.conditions import ConditionType, Reason, is_true
from halo_api.estimate import Estimate
from halo_operator.plan import money
from halo_operator.plan.estimate import estimate
from halo_operator.plan.estimate_runs import workload_of
from halo_operator.plan.quote import amounts, held_usd, quote, rate_of
from halo_operator.plan.refusal import Check, Refusal
from halo_operator.plan.world import RunWorld


def budget_is_countable(world: RunWorld) -> Refusal | None:
    """What has more decimals than hours are counted in would have to be rounded."""
    budget = world.spec.budget
    if budget is None:
        return None
    try:
        money.gpu_milliseconds(budget.h100_hours)
    except money.TooFine as error:
        return Refusal(Reason.INVALID_SPEC, f"spec.budget.h100Hours: {error}; round it")
    return None


def budget_is_where_it_belongs(world: RunWorld) -> Refusal | None:
    """A run takes its share of a shared allocation by name; a paid plan wants to know what an online run may cost."""
    spec, workspace, namespace = world.spec, world.catalog.workspace.spec, world.meta.namespace
    if spec.base == "halo_rlvr":
        if spec.budget is None and workspace.plan == "paid":
            return required(world, f"base halo_rlvr on the paid plan of namespace {namespace} needs one")
        return None
    if spec.budget is None and workspace.allocation is not None:
        return required(world, f"namespace {namespace} has a shared allocation, of which each run takes its share")
    if spec.budget is not None and workspace.allocation is None:
        return Refusal(
            Reason.BUDGET_NOT_ALLOWED,
            f"spec.budget: found {shown(spec.budget.h100_hours)} H100-hours, but namespace {namespace} has no shared allocation "
            f"that base {spec.base} could take a share of; remove it",
        )
    return None


def required(world: RunWorld, why: str) -> Refusal:
    """Say that a budget is missing, and what it must cover."""
    least = words_of_least(world)
    return Refusal(
        Reason.BUDGET_REQUIRED,
        f"spec.budget.h100Hours: found none, but {why}; set it" + (f" to at least {least}" if least else ""),
    )


def budget_covers_the_first_checkpoint(world: RunWorld) -> Refusal | None:
    """A run that is stopped before its first checkpoint would have cost something and left nothing."""
    budget, work = budget_ms(world), workload_of(world)
    if budget is None or work is None or budget >= amounts(estimate(work)).least:
        return None
    return Refusal(
        Reason.BUDGET_TOO_SMALL,
        f"spec.budget.h100Hours: found {money.hours(budget)}, less than {words_of_least(world)}; raise it, or lower spec.saveSteps",
    )


def words_of_least(world: RunWorld) -> str:
    """Say what a run takes until it leaves an adapter behind, with its three parts."""
    work = workload_of(world)
    if work is None:
        return ""
    exact = amounts(estimate(work))
    parts = (exact.start, exact.to_first_checkpoint, exact.publish)
    start, first, publish = (money.hours(part) for part in parts)
    return (
        f"the {money.hours(exact.least)} H100-hours that it takes to start ({start}), to reach the first checkpoint at step "
        f"{min(work.save_steps, work.steps)} ({first}) and to publish it ({publish})"
    )


def gpu_has_a_price(world: RunWorld) -> Refusal | None:
    """A wallet pays in USD, so what is billed to it has a price before it starts."""
    gpu, workspace = world.catalog.gpu, world.catalog.workspace
    if gpu is None or gpu.spec.byo or rate_of(gpu.spec) is not None:
        return None
    if workspace.free_usd is None or workspace.free_h100_hours is not None:
        return None
    return Refusal(
        Reason.NO_PRICE,
        f"spec.gpu.type: found {gpu.name!r}, a GpuClass with no active price, and the wallet of namespace {world.meta.namespace} pays in USD; "
        "use a class with a price (kubectl get gpuclasses), or set its prices",
    )


def funds_can_hold_it(world: RunWorld) -> Refusal | None:
    """The whole hold must be free, beside what this run holds already: a shared allocation is asked before a wallet."""
    workspace, hold = world.catalog.workspace, hold_of(world)
    if hold is None:
        return None
    where, how = (
        ("spec.budget.h100Hours", "lower it") if world.spec.budget else ("spec.steps", "train less, in fewer steps")
    )
    what = "its budget" if world.spec.budget else "the high end of its estimate"
    mine, namespace = workspace.status.holds.get(world.meta.uid), world.meta.namespace
    # What it holds goes on being counted in the unit that it is held in, whatever the Workspace has now.
    unit = mine.unit if mine else "H100Hours" if workspace.free_h100_hours is not None else "USD"
    found, needed = workspace.free_usd, hold.usd
    words, source = "USD", "wallet"
    if unit == "H100Hours":
        found, needed, words, source = workspace.free_h100_hours, hold.h100_hours, "H100-hours", "shared allocation"
    else:
        how += ", or top up the wallet"
    if found is None or needed is None:
        return None
    more = needed - Decimal(mine.amount if mine else 0)
    if more <= max(found, Decimal(0)):
        return None
    beside = f", {money.plain(more)} more than it does" if mine else ""
    return Refusal(
        Reason.INSUFFICIENT_FUNDS,
        f"{where}: the run would hold {what}, {money.plain(needed)} {words}{beside}, found {money.plain(found)} free in the {source} of namespace {namespace}; {how}",
        code=402,
    )


def run_is_not_over(world: RunWorld) -> Refusal | None:
    """A budget that is raised after the end would look as if the run went on."""
    over = [t for t in (ConditionType.COMPLETE, ConditionType.FAILED) if is_true(world.status.conditions, t)]
    if not over or world.spec.budget is None:
        return None
    return Refusal(
        Reason.BUDGET_NOT_ALLOWED,
        f"spec.budget.h100Hours: found {shown(world.spec.budget.h100_hours)}, but the run is over ({over[0]}) and its hold is settled; "
        "apply another run, under another name, to train more",
    )


def workspace_stays(world: RunWorld) -> Refusal | None:
    """A Workspace that is being deleted waits for its holds, and takes no new ones."""
    workspace = world.catalog.workspace
    if not workspace.deleting or world.meta.uid in workspace.status.holds:
        return None
    if workspace.spec.wallet is None and workspace.spec.allocation is None:
        return None
    return Refusal(
        Reason.HOLD_PENDING,
        f"metadata.namespace: found {world.meta.namespace}, whose Workspace is being deleted and holds nothing new; "
        "wait until it is gone, or make another one",
        pending=True,
    )


@dataclass(frozen=True)
class Needed:
    """What is held for a run; in USD only where its GPU has a price."""

    h100_hours: Decimal
    usd: Decimal | None


def hold_of(world: RunWorld) -> Needed | None:
    """Return the hold of a run: its budget where it has one, else the high end of its estimate; a judge's spend beside it."""
    work, gpu = workload_of(world), world.catalog.gpu
    if work is None or gpu is None:
        return None
    found, budget, rate = estimate(work), budget_ms(world), rate_of(gpu.spec)
    held = amounts(found).high if budget is None else budget
    usd = None if rate is None else held_usd(found, held, rate)
    return Needed(Decimal(money.hours(held)), None if usd is None else Decimal(money.usd(usd)))


def quote_of(world: RunWorld) -> Estimate | None:
    """Return the quote of a run that the checks accept, or None while something that it names is not there."""
    work, gpu = workload_of(world), world.catalog.gpu
    if work is None or gpu is None:
        return None
    return quote(estimate(work), rate_of(gpu.spec), budget_ms(world))


def budget_ms(world: RunWorld) -> int | None:
    """Return the budget in H100-milliseconds, if there is one that can be counted."""
    return (
        None if world.spec.budget is None or budget_is_countable(world) else money.gpu_milliseconds(budget_hours(world))
    )


def budget_hours(world: RunWorld) -> float:
    return world.spec.budget.h100_hours if world.spec.budget else 0.0


def shown(hours: float) -> str:
    """Write hours as they were asked for."""
    return money.plain(money.decimal_of(hours))


BUDGET: tuple[Check, ...] = (
    budget_is_countable,
    budget_is_where_it_belongs,
    budget_covers_the_first_checkpoint,
    gpu_has_a_price,
    funds_can_hold_it,
    workspace_stays,
)
# What a raised budget of a run that is there is held to.
RAISE: tuple[Check, ...] = (run_is_not_over, *BUDGET)
