"""The bench that proves the money sees each thing that must never be: a proof that can't fail shows nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hack.bench.money.book import Book, Life, cost, price

Object = dict[str, Any]
Spoil = Callable[[list[Object]], None]

RATE = {"gpuClass": "h100", "usdPerHour": "2.49", "markup": "1.17", "h100Equivalent": "1"}
BOUND = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def hold(uid: str) -> Object:
    return {"run": {"uid": uid}, "unit": "USD", "amount": "0.4", "rate": RATE}


def entry(sequence: int, uid: str, used: str, charged: str, overrun: str = "0") -> Object:
    amounts = {"held": "0.4", "used": used, "charged": charged, "overrun": overrun}
    return {"sequence": sequence, "run": {"uid": uid}, "unit": "USD", **amounts}


def version(held: tuple[str, ...], entries: list[Object], spent: str) -> Object:
    """The book with those runs holding 0.4 USD each, of a credit of 0.8."""
    sum_ = Decimal("0.4") * len(held)
    return {
        "holds": {uid: hold(uid) for uid in held},
        "settled": entries,
        "entries": len(entries),
        "held": str(sum_),
        "spent": spent,
        "balance": str(Decimal("0.8") - sum_ - Decimal(spent)),
    }


def history() -> list[Object]:
    """Two hold; one uses less, the other more than it held."""
    first, second = entry(1, "a", "0.1", "0.1"), entry(2, "b", "0.5", "0.4", "0.1")
    return [version(("a", "b"), [], "0"), version(("b",), [first], "0.1"), version((), [first, second], "0.5")]


def found(versions: list[Object]) -> set[str]:
    book = Book("n", Decimal("0.8"), Decimal("0.4"))
    for number, status in enumerate(versions):
        book.see({"metadata": {"resourceVersion": str(100 + number)}, "status": status})
    return {violation.kind for violation in book.violations}


def test_a_right_book_is_right() -> None:
    assert found(history()) == set()


def test_nothing_is_said_of_a_book_before_its_first_version() -> None:
    assert found([{}, *history()]) == set()


def more_than_the_credit(versions: list[Object]) -> None:
    versions[:] = [version(("a", "b", "c"), [], "0")]


def a_balance_that_is_wrong(versions: list[Object]) -> None:
    versions[0]["balance"] = "0.000001"


def a_run_that_is_held_again(versions: list[Object]) -> None:
    versions[2]["holds"] = {"a": hold("a")}


def a_hold_that_is_gone(versions: list[Object]) -> None:
    versions[1:] = [version(("b",), [], "0")]


def a_hold_that_grew(versions: list[Object]) -> None:
    versions[0]["holds"]["b"] = hold("b") | {"rate": RATE | {"usdPerHour": "3"}}


def an_amount_of_its_own(versions: list[Object]) -> None:
    versions[0]["holds"]["b"]["amount"] = "0.399999"


def charges_that_do_not_add_up(versions: list[Object]) -> None:
    versions[2]["spent"] = "0.500001"


def a_charge_above_the_hold(versions: list[Object]) -> None:
    versions[2] = version((), [versions[2]["settled"][0], entry(2, "b", "0.5", "0.5")], "0.6")


def an_overrun_that_is_not_said(versions: list[Object]) -> None:
    versions[2]["settled"][1]["overrun"] = "0"


def a_gap_in_the_sequence(versions: list[Object]) -> None:
    versions[2]["settled"][1]["sequence"] = 3


def an_entry_that_changed(versions: list[Object]) -> None:
    versions[2] = version((), [entry(1, "a", "0.2", "0.2"), versions[2]["settled"][1]], "0.6")


def a_run_that_is_settled_twice(versions: list[Object]) -> None:
    versions[2] = version((), [versions[2]["settled"][0], entry(2, "a", "0.1", "0.1")], "0.2")


def money_that_comes_back(versions: list[Object]) -> None:
    versions.append(version((), [], "0"))


SPOILT: list[tuple[Spoil, str]] = [
    (more_than_the_credit, "Overspent"),
    (a_balance_that_is_wrong, "WrongSum"),
    (a_run_that_is_held_again, "HeldAgain"),
    (a_hold_that_is_gone, "HoldLost"),
    (a_hold_that_grew, "HoldChanged"),
    (an_amount_of_its_own, "WrongHold"),
    (charges_that_do_not_add_up, "WrongEntry"),
    (a_charge_above_the_hold, "WrongEntry"),
    (an_overrun_that_is_not_said, "WrongEntry"),
    (a_gap_in_the_sequence, "WrongEntry"),
    (an_entry_that_changed, "EntryChanged"),
    (a_run_that_is_settled_twice, "WrongEntry"),
    (money_that_comes_back, "SpentFell"),
]


@pytest.mark.parametrize(("spoil", "kind"), SPOILT, ids=lambda value: getattr(value, "__name__", value))
def test_what_must_never_be_is_seen(spoil: Spoil, kind: str) -> None:
    versions = copy.deepcopy(history())
    spoil(versions)
    assert kind in found(versions)


def test_an_older_read_is_checked_by_itself_alone() -> None:
    book = Book("n", Decimal("0.8"), Decimal("0.4"))
    for number, status in reversed(list(enumerate(history()))):
        book.see({"metadata": {"resourceVersion": str(number + 1)}, "status": status})
    assert (book.violations, len(book.versions), book.held_once) == ([], 3, {"a", "b"})


@pytest.mark.parametrize(
    ("clock", "seconds"),
    # The kubelet saw the pod 4 s after it was bound. What a clock is off by is taken off with that, unless it may be a slow start.
    [(0, 100), (20, 120), (-300, 96), (300, 96)],
)
def test_a_node_s_clock_is_set_right(clock: int, seconds: int) -> None:
    started, finished = (BOUND + timedelta(seconds=clock + after) for after in (4, 100))
    assert Life(1, 1, BOUND, started, finished).gpu_seconds == seconds
    assert Life(1, 8, BOUND, started, finished).gpu_seconds == 8 * seconds


def test_a_pod_that_found_no_node_took_no_gpu() -> None:
    assert Life(1, 8).gpu_seconds == 0


@pytest.mark.parametrize(
    ("seconds", "usd"), [(0, "0"), (1, "0.00081"), (40, "0.03237"), (576, "0.466128"), (3600, "2.9133")]
)
def test_time_costs_what_is_rounded_up_once(seconds: int, usd: str) -> None:
    assert price(RATE) == Decimal("2.9133")
    assert cost(seconds, price(RATE)) == Decimal(usd)
