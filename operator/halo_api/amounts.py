"""Amounts of money and hours: plain numbers in a spec, decimal strings in a status, exact integers in between."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from halo_api.base import cel, rule

# As everything that was counted is written: never a float, so that anybody can add it up again.
Amount = Annotated[str, Field(max_length=32, pattern=r"^-?[0-9]+([.][0-9]+)?$")]

USD_DECIMALS = 6
HOURS_DECIMALS = 3


def decimals_of(value: float) -> int:
    """Return how many decimals the shortest decimal of a number has: 12.5 has one."""
    exponent = Decimal(repr(value)).normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def at_most(decimals: int) -> AfterValidator:
    """Refuse a number that would have to be rounded; JSON schema's multipleOf fails on 0.3 and 0.001, as floats do."""

    def check(value: float) -> float:
        if (found := decimals_of(value)) > decimals:
            raise ValueError(f"found {value!r} with {found} decimals; at most {decimals} are counted: round it")
        return value

    return AfterValidator(check)


def exactly(decimals: int, most: float) -> dict[str, Any]:
    """Return the schema's part of it: a rule that refuses what would have to be rounded."""
    scale = f"{10**decimals}.0"
    exact = rule(
        # A double has at most that many decimals if it is the nearest one to a whole number of them: its shortest decimal then,
        # too. What is beyond the bounds, an error of its own, is left to them: the integer would overflow.
        f"self < 0.0 || self > {most:.1f} || double(int(self * {scale} + 0.5)) / {scale} == self",
        f"'has more than {decimals} decimals, found %s; round it'.format([string(self)])",
    )
    return cel(exact)


def decimal(decimals: int, most: float) -> Any:
    """Return the type of a plain number that is counted exactly; the schema refuses what would have to be rounded, too."""
    return Annotated[float, Field(ge=0, le=most, json_schema_extra=exactly(decimals, most)), at_most(decimals)]


Usd = decimal(USD_DECIMALS, 1e8)
Hours = decimal(HOURS_DECIMALS, 1e7)
UsdPerMillion = decimal(USD_DECIMALS, 1e4)
