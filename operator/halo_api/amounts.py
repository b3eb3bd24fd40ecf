"""Amounts of money and hours: plain numbers in a spec, decimal strings in a status, exact integers in between."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, Field

# As everything that was counted is written: never a float, so that anybody can add it up again.
Amount = Annotated[str, Field(max_length=32, pattern=r"^-?[0-9]+([.][0-9]+)?$")]

USD_DECIMALS = 6
HOURS_DECIMALS = 3


def decimals_of(value: float) -> int:
    """Return how many decimals the shortest decimal of a number has: 12.5 has one."""
    exponent = Decimal(repr(value)).normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def at_most(decimals: int) -> AfterValidator:
    """Refuse a number that would have to be rounded; a schema can't say it, since 0.3 is no multiple of 0.001 in floats."""

    def check(value: float) -> float:
        if (found := decimals_of(value)) > decimals:
            raise ValueError(f"found {value!r} with {found} decimals; at most {decimals} are counted: round it")
        return value

    return AfterValidator(check)


Usd = Annotated[float, Field(ge=0, le=1e9), at_most(USD_DECIMALS)]
Hours = Annotated[float, Field(ge=0, le=1e7), at_most(HOURS_DECIMALS)]
