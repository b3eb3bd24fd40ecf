"""Money and GPU time as exact integers: micro-USD and GPU-milliseconds, read and written by their shortest decimal.

A float never adds up: 0.1 + 0.2 is not 0.3. So an amount of a spec is read once, by the shortest decimal that means it,
and from then on it is an integer. What must be rounded is rounded up: a quote never says too little.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal, InvalidOperation

HOUR_MS = 3_600_000
MICRO = 1_000_000
HOURS_DECIMALS = 3
USD_DECIMALS = 6
# 0.001 hours: what a quote is rounded up to.
MILLI_HOUR_MS = HOUR_MS // 1000

Amount = int | float | str | Decimal


class TooFine(ValueError):
    """An amount with more decimals than its unit has, or no number at all."""


def decimal_of(amount: Amount) -> Decimal:
    """Return an amount as it was written: a float by the shortest decimal that means it."""
    try:
        found = amount if isinstance(amount, Decimal) else Decimal(str(amount))
    except InvalidOperation:
        raise TooFine(f"found {amount!r}, which is no number") from None
    if not found.is_finite():
        raise TooFine(f"found {amount}, which is no finite number")
    return found


def gpu_milliseconds(hours: Amount) -> int:
    """Return hours, of at most 3 decimals, as GPU-milliseconds."""
    return int(exact(hours, HOURS_DECIMALS) * HOUR_MS)


def micro_usd(usd: Amount) -> int:
    """Return USD, of at most 6 decimals, as micro-USD."""
    return int(exact(usd, USD_DECIMALS) * MICRO)


def exact(amount: Amount, decimals: int) -> Decimal:
    """Return the amount if it has at most that many decimals."""
    found = decimal_of(amount)
    exponent = found.normalize().as_tuple().exponent
    if isinstance(exponent, int) and -exponent > decimals:
        raise TooFine(f"found {plain(found)}, which has more than {decimals} decimals")
    return found


def hours(milliseconds: int) -> str:
    """Write GPU-milliseconds as hours: a decimal, exact where 3 decimals can say it, else rounded up to them."""
    return plain(Decimal(-(-milliseconds // MILLI_HOUR_MS)).scaleb(-HOURS_DECIMALS))


def usd(millionths: int) -> str:
    """Write micro-USD as USD, or millionths of an hour as hours: an exact decimal."""
    return plain(Decimal(millionths).scaleb(-USD_DECIMALS))


def plain(amount: Decimal) -> str:
    """Write a decimal without exponent and without zeros at its end."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def marked_up(usd_per_hour: Amount, markup: Amount) -> int:
    """Return the rate of one GPU hour in micro-USD: price times markup, rounded up to a micro-USD."""
    return ceiling(decimal_of(usd_per_hour) * decimal_of(markup) * MICRO)


def charge(milliseconds: int, rate: int) -> int:
    """Return what GPU-milliseconds cost at a rate in micro-USD an hour, rounded up to a micro-USD."""
    return -(-milliseconds * rate // HOUR_MS)


def most_milliseconds(micro: int, rate: int) -> int:
    """Return how many GPU-milliseconds an amount in micro-USD buys at a rate in micro-USD an hour, rounded down."""
    return micro * HOUR_MS // rate


def micro_hours(milliseconds: int) -> int:
    """Return GPU-milliseconds as millionths of an hour, in which hours are charged; rounded up to one."""
    return -(-milliseconds * MICRO // HOUR_MS)


def micro(amount: Amount) -> int:
    """Return an amount of at most 6 decimals, of USD or of hours, in millionths: the unit that a Workspace counts in."""
    return int(exact(amount, USD_DECIMALS) * MICRO)


def seconds(milliseconds: int) -> str:
    """Write GPU-milliseconds as seconds: an exact decimal."""
    return plain(Decimal(milliseconds).scaleb(-3))


def weighed(milliseconds: int, h100_equivalent: Amount) -> int:
    """Return GPU-milliseconds as H100-milliseconds, rounded up to one."""
    return ceiling(Decimal(milliseconds) * decimal_of(h100_equivalent))


def ceiling(amount: Decimal) -> int:
    """Return the next whole number that is not less."""
    return int(amount.to_integral_value(ROUND_CEILING))
