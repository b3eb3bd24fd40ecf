"""Makes the quote of an estimate: H100-hours and USD, low, centre and high, at no more than the budget.

Seconds become whole GPU-milliseconds here, rounded up, and stay exact from here on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

from halo_api.estimate import Band, Estimate, EstimatedPhase
from halo_api.gpu_class import GpuClassSpec, Price
from halo_operator.plan import money
from halo_operator.plan.estimate import PHASES, Roofline

# 30 million years: the worst that a schema lets pass is a number that a status can hold.
LONGEST = 1e15


@dataclass(frozen=True)
class Amounts:
    """A quote in exact integers: what a budget and a wallet are held to."""

    low: int
    centre: int
    high: int
    start: int
    to_first_checkpoint: int
    publish: int

    @property
    def least(self) -> int:
        """H100-milliseconds that any run of this kind needs to leave an adapter behind."""
        return self.start + self.to_first_checkpoint + self.publish


def amounts(found: Roofline) -> Amounts:
    """Return the estimate in H100-milliseconds, in steps of 0.001 hours."""
    centre = max(h100_ms(found, found.total), 1)
    return Amounts(
        low=in_steps(centre * found.rates.low),
        centre=in_steps(centre),
        high=in_steps(centre * found.rates.high),
        start=in_steps(h100_ms(found, found.start)),
        to_first_checkpoint=in_steps(h100_ms(found, found.to_first_checkpoint)),
        publish=in_steps(h100_ms(found, found.publish)),
    )


def h100_ms(found: Roofline, seconds: float) -> int:
    """Return seconds on the clock as H100-milliseconds of all GPUs of the run."""
    return money.weighed(gpu_ms(found, seconds), found.h100_equivalent)


def gpu_ms(found: Roofline, seconds: float) -> int:
    """Return seconds on the clock as GPU-milliseconds."""
    return math.ceil(min(seconds, LONGEST) * 1000) * found.gpus


def in_steps(milliseconds: float) -> int:
    """Round up to a whole 0.001 hours."""
    return math.ceil(milliseconds / money.MILLI_HOUR_MS) * money.MILLI_HOUR_MS


def quote(found: Roofline, rate: int | None, budget: int | None = None, judges: int | None = None) -> Estimate:
    """Return the estimate as the status keeps it.

    `rate` in micro-USD a GPU hour; `budget` in H100-milliseconds and `judges` in micro-USD are the most that may be used.
    """
    exact = amounts(found)
    band = [exact.low, exact.centre, exact.high]
    capped = [amount if budget is None else min(amount, budget) for amount in band]
    return Estimate(
        h100_hours=Band(low=money.hours(capped[0]), centre=money.hours(capped[1]), high=money.hours(capped[2])),
        usd=None if rate is None else usd_band(found, rate, budget, judges),
        usd_per_gpu_hour=None if rate is None else money.usd(rate),
        start=money.hours(exact.start),
        to_first_checkpoint=money.hours(exact.to_first_checkpoint),
        publish=money.hours(exact.publish),
        first_checkpoint_seconds=math.ceil(min(found.start + found.to_first_checkpoint, LONGEST)),
        seconds=math.ceil(min(found.total, LONGEST)),
        capped=capped != band,
        basis="roofline",
        rates=found.rates.version,
        phases=[
            EstimatedPhase(name=name, seconds=number(seconds), h100_hours=money.hours(h100_ms(found, seconds)))
            for name in PHASES
            if (seconds := found.seconds[name]) > 0
        ],
        overlap_seconds=number(found.overlap) if found.overlap else None,
        inputs={name: number(value) for name, value in found.inputs.items()},
    )


def usd_band(found: Roofline, rate: int, budget: int | None, judges: int | None) -> Band:
    """Return the band in USD: GPU time at the rate, capped by the budget, and what judges take."""
    most = None if budget is None else plain_gpu_ms(budget, found.h100_equivalent)
    rates = found.rates
    times = [in_steps(gpu_ms(found, found.total) * share) for share in (rates.low, 1.0, rates.high)]
    judged = [math.ceil(found.judge_micro_usd * share) for share in (rates.low, 1.0, rates.high)]
    low, centre, high = (
        money.charge(time if most is None else min(time, most), rate)
        + (judge if judges is None else min(judge, judges))
        for time, judge in zip(times, judged, strict=True)
    )
    return Band(low=money.usd(low), centre=money.usd(centre), high=money.usd(high))


def held_usd(found: Roofline, h100_milliseconds: int, rate: int) -> int:
    """Return what holding so many H100-milliseconds takes in micro-USD, with the most that judges may."""
    judged = math.ceil(found.judge_micro_usd * found.rates.high)
    return held_h100_usd(h100_milliseconds, found.h100_equivalent, rate) + judged


def held_h100_usd(h100_milliseconds: int, h100_equivalent: float, rate: int) -> int:
    """Return what so many H100-milliseconds of a GPU cost in micro-USD."""
    return money.charge(plain_gpu_ms(h100_milliseconds, h100_equivalent), rate)


def plain_gpu_ms(h100_milliseconds: int, h100_equivalent: float) -> int:
    """Return how much time of this GPU a budget in H100-milliseconds buys."""
    return money.ceiling(h100_milliseconds / money.decimal_of(h100_equivalent))


def price_of(gpu: GpuClassSpec, region: str | None = None) -> Price | None:
    """Return the price of a GPU hour: that of the region, or else the highest active one, markup included."""
    found = [p for p in gpu.prices if p.active and region in (None, p.region)]
    return max(found, key=lambda p: money.marked_up(p.usd_per_hour, p.markup), default=None)


def rate_of(gpu: GpuClassSpec, region: str | None = None) -> int | None:
    """Return that price in micro-USD."""
    price = price_of(gpu, region)
    return None if price is None else money.marked_up(price.usd_per_hour, price.markup)


def number(value: float) -> str:
    """Write a number that was computed, with at most 3 decimals and never an exponent."""
    return money.plain(money.decimal_of(f"{min(value, LONGEST * 1e6):.3f}"))


def duration(seconds: float) -> str:
    """Write a time as people say it, in its two largest units."""
    left = math.ceil(seconds)
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if left >= size:
            rest = left % size // part
            return f"{left // size} {unit} {rest} {smaller}" if rest else f"{left // size} {unit}"
    return f"{left} s"


def whole_of(estimate: Estimate) -> Decimal:
    """Return the H100-hours of all its phases, whatever the budget; what overlaps counts once."""
    total = sum((money.decimal_of(phase.h100_hours) for phase in estimate.phases), Decimal(0))
    share = money.decimal_of(estimate.overlap_seconds or 0) / max(estimate.seconds, 1)
    return total * (1 - min(share, Decimal(1)))


def quote_lines(estimate: Estimate) -> list[str]:
    """Say the quote in a few lines, as the webhook's warnings and the event do."""
    hours, usd = estimate.h100_hours, estimate.usd
    head = f"quote: {hours.centre} H100-hours ({hours.low} to {hours.high})"
    if usd:
        head += f", {usd.centre} USD ({usd.low} to {usd.high})"
    if estimate.capped:
        head += ", no more than the budget"
    if estimate.capped and whole_of(estimate) > money.decimal_of(hours.centre):
        head += ", which ends it before its last step"
    unmeasured = f" (basis {estimate.basis}" + (", unmeasured)" if estimate.basis == "roofline" else ")")
    return [
        head + unmeasured,
        f"quote: first checkpoint after {duration(estimate.first_checkpoint_seconds)}, the whole run {duration(estimate.seconds)}; "
        f"H100-hours: start {estimate.start}, to the first checkpoint {estimate.to_first_checkpoint}, publish {estimate.publish}",
    ]
