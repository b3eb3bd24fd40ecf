"""Money and GPU time are exact: read by their shortest decimal, added as integers, written without loss."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_operator.plan import money


@pytest.mark.parametrize(
    ("hours", "milliseconds"),
    [(12.5, 45_000_000), (0.001, 3_600), ("0.1", 360_000), (0.3, 1_080_000), (1e6, 3_600_000_000_000), (7, 25_200_000)],
)
def test_hours_are_read_exactly(hours: money.Amount, milliseconds: int) -> None:
    assert money.gpu_milliseconds(hours) == milliseconds


@pytest.mark.parametrize("bad", [0.0001, 12.3456, "0.12345", 1 / 3, 0.1 + 0.2, 1e-9])
def test_finer_hours_are_refused(bad: money.Amount) -> None:
    with pytest.raises(money.TooFine, match="more than 3 decimals"):
        money.gpu_milliseconds(bad)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "much", "-inf"])
def test_what_is_no_number_is_refused(bad: money.Amount) -> None:
    with pytest.raises(money.TooFine, match="found"):
        money.micro_usd(bad)


@given(st.integers(0, 10**13))
def test_usd_come_back_as_they_were(micro: int) -> None:
    assert money.micro_usd(money.usd(micro)) == micro
    if micro < 10**12:
        assert money.micro_usd(float(money.usd(micro))) == micro


@given(st.integers(0, 10**10))
def test_hours_come_back_as_they_were(milli_hours: int) -> None:
    milliseconds = milli_hours * money.MILLI_HOUR_MS
    assert money.gpu_milliseconds(money.hours(milliseconds)) == milliseconds


@given(st.integers(0, 10**15))
def test_hours_are_written_rounded_up(milliseconds: int) -> None:
    written = Decimal(money.hours(milliseconds)) * money.HOUR_MS
    assert milliseconds <= written < milliseconds + money.MILLI_HOUR_MS


def test_a_rate_is_price_times_markup() -> None:
    assert money.marked_up(2.5, 1.2) == 3_000_000
    assert money.marked_up(1.0000001, 1) == 1_000_001
    assert money.charge(1_800_000, 3_000_000) == 1_500_000
    assert money.charge(1, 1) == 1


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30), st.integers(1, 10**8))
def test_a_charge_in_parts_is_never_less_than_in_whole(parts: list[int], rate: int) -> None:
    apart, whole = sum(money.charge(part, rate) for part in parts), money.charge(sum(parts), rate)
    assert whole <= apart < whole + len(parts)
