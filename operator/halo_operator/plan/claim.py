"""A run's claim on its Workspace: what it wants held, the terms that it was held on, and what is settled at its end."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

from halo_api.conditions import ConditionType, Reason, condition_of
from halo_api.estimate import Estimate
from halo_api.gpu_class import GpuClassSpec, Price
from halo_api.ledger import Rate, RunRef
from halo_api.run_status import Hold, Settlement
from halo_api.training_job import TrainingJobStatus
from halo_api.workspace import WorkspaceHold
from halo_operator.plan import money
from halo_operator.plan.budget import hold_of, quote_of
from halo_operator.plan.metering import closed_ms, rate_of, settled, used
from halo_operator.plan.names import HOLD_FINALIZER
from halo_operator.plan.quote import held_h100_usd, price_of
from halo_operator.plan.wishes import Ended, Unit, Wanted
from halo_operator.plan.world import GpuEntry, Meta, RunWorld, WorkspaceEntry

T = ConditionType
# As people say them.
UNIT_WORDS: dict[Unit, str] = {"USD": "USD", "H100Hours": "H100-hours"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def held_for(world: RunWorld) -> WorkspaceHold | None:
    """Return the hold that the Workspace has open for the run."""
    return world.catalog.workspace.status.holds.get(world.meta.uid)


def on_its_terms(world: RunWorld) -> RunWorld:
    """Return the world with the GPU at the price and weight that its hold froze: they may have changed since it was placed."""
    hold, gpu = held_for(world), world.catalog.gpu
    if hold is None or gpu is None:
        return world
    return replace(world, catalog=replace(world.catalog, gpu=GpuEntry(gpu.name, at_rate(gpu.spec, hold.rate))))


def at_rate(gpu: GpuClassSpec, rate: Rate) -> GpuClassSpec:
    """Return the GPU class at the price and weight of a rate."""
    prices = []
    if rate.usd_per_hour is not None:
        facts = {
            "region": rate.region or "any",
            "usdPerHour": float(rate.usd_per_hour),
            "markup": float(rate.markup or 1),
        }
        prices = [Price.model_validate(facts)]
    return gpu.model_copy(update={"h100_equivalent": float(rate.h100_equivalent), "prices": prices})


def wanted_of(world: RunWorld) -> Wanted | None:
    """Return the hold that a run needs before it starts: of the shared allocation where there is one, else of the wallet."""
    needed, gpu, workspace = hold_of(world), world.catalog.gpu, world.catalog.workspace.spec
    if needed is None or gpu is None:
        return None
    unit: Unit
    if workspace.allocation is not None:
        unit, amount = "H100Hours", money.micro(needed.h100_hours)
    elif workspace.wallet is not None and needed.usd is not None:
        unit, amount = "USD", money.micro(needed.usd)
    else:
        return None
    return Wanted(
        run=run_ref(world.meta),
        created_at=world.meta.created_at or EPOCH,
        unit=unit,
        amount=amount,
        rate=rate_terms(gpu.name, gpu.spec),
        quoted=quoted_in(unit, quote_of(world)),
    )


def quoted_in(unit: Unit, quote: Estimate | None) -> int | None:
    """Return the centre of a quote in that unit."""
    band = None if quote is None else quote.h100_hours if unit == "H100Hours" else quote.usd
    return None if band is None else money.micro(band.centre)


def why_nothing(world: RunWorld) -> str:
    """Say why nothing is held for a run: it is metered all the same."""
    gpu, workspace = world.catalog.gpu, world.catalog.workspace.spec
    if workspace.wallet is not None and gpu is not None and gpu.spec.byo:
        return f"GpuClass {gpu.name} is the team's own compute, which is metered and not billed"
    return "the namespace has neither a wallet nor an allocation; the run is metered"


def mark(meta: Meta) -> Literal["add"] | None:
    """Return what has the run's finalizer be there before anything is held."""
    return None if HOLD_FINALIZER in meta.finalizers else "add"


def pending_words(wanted: Wanted, workspace: WorkspaceEntry) -> str:
    """Say what a run waits for that asked for its hold a while ago."""
    why = workspace.status.waiting or "it has not decided yet"
    return f"waits for {money.usd(wanted.amount)} {UNIT_WORDS[wanted.unit]} to be held by its Workspace: {why}"[:1000]


def run_ref(meta: Meta) -> RunRef:
    """Return the run as the book names it."""
    return RunRef.model_validate({"kind": meta.kind, "name": meta.name, "uid": meta.uid})


def rate_terms(name: str, gpu: GpuClassSpec, region: str | None = None) -> Rate:
    """Return a rate with what it is made of."""
    price = None if gpu.byo else price_of(gpu, region)
    return Rate(
        gpu_class=name,
        region=price.region if price else None,
        usd_per_hour=money.plain(money.decimal_of(price.usd_per_hour)) if price else None,
        markup=money.plain(money.decimal_of(price.markup)) if price else None,
        h100_equivalent=money.plain(money.decimal_of(gpu.h100_equivalent)),
    )


def micro_rate(rate: Rate) -> int | None:
    """Return what an hour of one GPU costs in micro-USD, markup included."""
    return None if rate.usd_per_hour is None else money.marked_up(rate.usd_per_hour, rate.markup or "1")


def as_held(uid: str, hold: WorkspaceHold, before: Hold | None = None) -> Hold:
    """Return the Workspace's hold as the run's status has it."""
    rate = micro_rate(hold.rate)
    return Hold(
        id=uid,
        h100_hours=hold.amount if hold.unit == "H100Hours" else None,
        usd=hold.amount if hold.unit == "USD" else None,
        rate=None if rate is None else money.usd(rate),
        frozen_at=hold.placed_at,
        raises=before.raises + 1 if before else 0,
    )


def amount_of(hold: Hold) -> tuple[Unit, int]:
    """Return what a run holds, in millionths."""
    return (
        ("USD", money.micro(hold.usd)) if hold.usd is not None else ("H100Hours", money.micro(hold.h100_hours or "0"))
    )


def words_of(hold: Hold) -> str:
    """Say what is held."""
    unit, amount = amount_of(hold)
    return f"{money.usd(amount)} {UNIT_WORDS[unit]}"


def raise_of(world: RunWorld) -> Wanted | None:
    """Return the higher hold that a raised budget needs, or None while the budget is what is held."""
    hold, budget, frozen = world.status.hold, world.spec.budget, world.status.frozen
    if hold is None or budget is None or frozen is None:
        return None
    hours = money.gpu_milliseconds(budget.h100_hours)
    unit, has = amount_of(hold)
    if unit == "H100Hours":
        amount = money.micro_hours(hours)
    else:
        amount = held_h100_usd(hours, frozen.gpu.h100_equivalent, money.micro(hold.rate or "0"))
    if amount <= has:
        return None
    rate = Rate(gpu_class=frozen.gpu.type, h100_equivalent=money.plain(money.decimal_of(frozen.gpu.h100_equivalent)))
    return Wanted(run_ref(world.meta), world.meta.created_at or EPOCH, unit, amount, rate)


def settlement_of(status: TrainingJobStatus) -> Settlement | None:
    """Return what is charged of the hold for what was used, and what is released; None where nothing is held."""
    if status.hold is None:
        return None
    unit, held = amount_of(status.hold)
    return settled(unit, held, used_of(status), quoted_in(unit, status.estimate))


def used_of(status: TrainingJobStatus) -> int:
    """Return what a run used, in millionths of the unit of its hold."""
    hold, frozen = status.hold, status.frozen
    if hold is None or frozen is None:
        return 0
    return used(status.usage, amount_of(hold)[0], frozen.gpu.h100_equivalent, rate_of(status))


def ended_of(meta: Meta, status: TrainingJobStatus) -> Ended:
    """Return what the Workspace must know to settle the hold of a run that is over, or goes."""
    return Ended(
        run=run_ref(meta),
        used=used_of(status),
        gpu_ms=closed_ms(status.usage),
        outcome=outcome_of(status),
        held=amount_of(status.hold)[1] if status.hold else None,
        receipt=status.receipt.digest if status.receipt else None,
    )


def outcome_of(status: TrainingJobStatus) -> str:
    """Return the reason that the run ended for; one that is deleted before its end was cancelled."""
    for type_ in (T.COMPLETE, T.FAILED):
        found = condition_of(status.conditions, type_)
        if found and found.status == "True":
            return found.reason
    return Reason.CANCELLED
