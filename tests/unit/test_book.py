"""A Workspace's book, rule by rule: what is held, charged, paged and said, in one write."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from halo_api.conditions import condition_of
from halo_api.ledger import Rate, RunRef
from halo_api.workspace import WorkspaceHold, WorkspaceStatus
from halo_operator.plan.book.pages import digest_of_page
from halo_operator.plan.book.plan import plan_book
from halo_operator.plan.book.sums import MOST_HOLDS
from halo_operator.plan.wishes import Wanted
from tests.unit.builders import DIGEST, NOW, seconds
from tests.unit.builders_book import FINALIZER, RATE, Books, book_world, end, granted, run, wish

STAMP = "2026-11-29T12:00:00Z"


def names_of(runs: Any) -> list[str]:
    return [getattr(found, "run", found).name for found in runs]


def said(books: Books, type_: str) -> tuple[str, str] | None:
    found = condition_of(books.status.conditions, type_)
    return (found.status, found.reason) if found else None


def test_a_hold_is_placed_with_what_was_asked() -> None:
    books = Books(10)
    plan = books.look(wish("a", "2.000001", quoted=1_500_000))
    assert books.status.holds == {
        "uid-of-a": WorkspaceHold(run=run("a"), unit="USD", amount="2.000001", rate=RATE, quoted="1.5", placed_at=STAMP)
    }
    assert (books.status.balance, books.status.held, books.status.spent) == ("7.999999", "2.000001", "0")
    assert (plan.finalizer, names_of(plan.wake), plan.requeue_after) == ("add", ["a"], None)


@pytest.mark.parametrize(
    ("wishes", "held", "refused"),
    [
        ([wish("a", 10)], ["a"], []),
        ([wish("a", "10.000001")], [], ["a"]),
        ([wish("b", 6), wish("a", 6, age=1)], ["a"], ["b"]),
        ([wish("b", 6), wish("a", 6)], ["a"], ["b"]),
        ([wish("a", 6, age=3), wish("b", 5, age=2), wish("c", 4, age=1)], ["a", "c"], ["b"]),
        ([wish("a", 0), wish("b", 10), wish("c", 0)], ["a", "b", "c"], []),
        ([wish("a", 1, "H100Hours")], [], ["a"]),
        ([wish("a", 0, "H100Hours")], [], ["a"]),
    ],
    ids=["all", "a millionth too much", "oldest first", "then by name", "later ones pass", "nothing", "no fund", "no fund for 0"],
)  # fmt: skip
def test_wishes_are_placed_oldest_first_as_far_as_the_balance_goes(wishes: Any, held: Any, refused: Any) -> None:
    books = Books(10)
    plan = books.look(*wishes)
    assert (names_of(books.status.holds.values()), names_of(plan.refused)) == (held, refused)
    assert (names_of(plan.placed), sorted(names_of(plan.wake))) == (held, sorted(held + refused))


def test_wallet_and_allocation_are_counted_apart() -> None:
    books = Books(10, 5)
    books.look(wish("a", 10), wish("b", 4, "H100Hours"), wish("c", 2, "H100Hours"))
    books.look(end("b", 3))
    use = books.status.allocation
    assert use
    assert (use.granted, use.held, use.spent, use.balance) == ("5", "0", "3", "2")
    assert (books.status.balance, books.status.held, books.status.spent) == ("0", "10", "0")


@pytest.mark.parametrize(
    ("change", "amount", "raised_at"),
    [
        (wish("a", 4), "4", None),
        (wish("a", 3), "4", None),
        (wish("a", 10), "10", STAMP),
        (wish("a", "10.5"), "4", None),
        (wish("a", 9, "H100Hours"), "4", None),
        (wish("a", 5, rate=Rate(gpu_class="b200", h100_equivalent="2")), "5", STAMP),
    ],
    ids=["the same", "lower", "higher", "more than is free", "another unit", "another rate"],
)
def test_a_hold_is_raised_by_the_difference_at_its_own_rate(change: Any, amount: str, raised_at: Any) -> None:
    books = Books(10, 10)
    books.look(wish("a", 4))
    plan = books.look(change)
    hold = books.status.holds["uid-of-a"]
    assert (hold.amount, hold.raised_at, hold.rate) == (amount, raised_at, RATE)
    assert names_of(plan.wake) == ["a"]
    assert (plan.status is None) == (raised_at is None)


def test_an_end_charges_what_was_used_and_releases_the_rest() -> None:
    books = Books(10)
    books.look(wish("a", 4, quoted=3_000_000))
    books.now += seconds(60)
    plan = books.look(end("a", "1.25", judge_micro_usd=250_000, receipt=DIGEST, gpu_ms=1_500))
    (entry,) = books.status.settled
    assert entry.to_json() == {
        "sequence": 1,
        "run": run("a").to_json(),
        "unit": "USD",
        "rate": RATE.to_json(),
        "quoted": "3",
        "held": "4",
        "used": "1.25",
        "charged": "1.25",
        "overrun": "0",
        "judgeUsd": "0.25",
        "gpuSeconds": "1.5",
        "outcome": "Succeeded",
        "receipt": DIGEST,
        "placedAt": STAMP,
        "settledAt": "2026-11-29T12:01:00Z",
    }
    assert (books.status.holds, books.status.entries) == ({}, 1)
    assert (books.status.balance, books.status.held, books.status.spent) == ("8.75", "0", "1.25")
    assert (names_of(plan.wake), names_of(plan.charged)) == (["a"], ["a"])


def test_an_overrun_is_reported_and_never_charged() -> None:
    books = Books(10)
    books.look(wish("a", 4))
    books.look(end("a", "4.5"))
    (entry,) = books.status.settled
    assert (entry.used, entry.charged, entry.overrun, books.status.spent) == ("4.5", "4", "0.5", "4")


def test_what_an_end_releases_is_free_in_the_same_write() -> None:
    books = Books(10)
    books.look(wish("a", 10))
    books.look(wish("b", 9), end("a", 1))
    assert (list(books.status.holds), books.status.balance, books.writes) == (["uid-of-b"], "0", 2)


def test_an_end_without_a_hold_changes_nothing_but_is_answered() -> None:
    books = Books(10)
    books.look(wish("a", 4))
    books.look(end("a", 1))
    plan = books.look(end("a", 1), end("never", 1))
    assert (plan.status, names_of(plan.wake), plan.charged) == (None, ["a", "never"], ())


def test_the_end_wins_over_the_wish_of_the_same_run() -> None:
    books = Books(10)
    books.look(wish("a", 1))
    books.look(wish("a", 9), end("a", 4), wish("b", 1), end("b", 1))
    assert (books.status.holds, [entry.charged for entry in books.status.settled]) == ({}, ["1"])


def test_a_late_wish_of_a_charged_run_holds_nothing() -> None:
    books = Books(10)
    books.look(wish("a", 1))
    books.look(end("a", 1))
    plan = books.look(wish("a", 1))
    assert (plan.status, names_of(plan.wake), plan.refused) == (None, ["a"], ())


def test_a_hold_whose_run_is_gone_is_released_and_a_run_that_ended_is_charged() -> None:
    books = Books(10)
    books.look(wish("here", 1), wish("gone", 2), wish("over", 3))
    plan = books.look(end("over", 3), wish("ghost", 1), runs=frozenset({"uid-of-here"}))
    assert list(books.status.holds) == ["uid-of-here"]
    assert [(e.run.name, e.charged, e.outcome) for e in books.status.settled] == [
        ("over", "3", "Succeeded"),
        ("gone", "0", "RunGone"),
    ]
    assert [(note.type, note.reason) for note in plan.notes] == [("Warning", "HoldLost")]
    assert "TrainingJob gone" in plan.notes[0].message


def test_lowered_credit_is_overdrawn_and_holds_nothing_new_in_that_unit() -> None:
    books = Books(10, 10)
    books.look(wish("a", 6), wish("b", 2))
    books.look(end("b", 2))
    books.change(spec=granted(7, 10), generation=2)
    plan = books.look(wish("c", 0), wish("d", 1, "H100Hours"), wish("a", 7))
    assert (names_of(plan.placed), names_of(plan.refused), books.status.balance) == (["d"], ["a", "c"], "-1")
    assert said(books, "Ready") == ("False", "Overdrawn")
    assert said(books, "Overdrawn") == said(books, "Stalled") == ("True", "Overdrawn")
    assert [(note.type, note.reason, note.message) for note in plan.notes] == [
        (
            "Warning",
            "Overdrawn",
            "spec.wallet.creditUsd: found 7, less than the 2 USD that are spent and the 6 that are held, so nothing new is "
            "held; raise it to at least 8",
        )
    ]
    assert books.status.observed_generation == 2
    assert books.look().notes == ()
    books.look(end("a", 5))
    assert (said(books, "Ready"), said(books, "Overdrawn"), books.status.balance) == (("True", "Funded"), None, "0")


@pytest.mark.parametrize(
    ("usd", "hours", "reason", "message"),
    [
        (None, None, "Unfunded", "nothing is held; runs are metered"),
        (0, None, "Funded", "runs are held on the wallet"),
        (None, 5, "Funded", "TrainingJobs are held on the shared allocation"),
        (5, 5, "Funded", "TrainingJobs are held on the shared allocation and GrpoRuns on the wallet"),
    ],
)
def test_ready_says_on_what_runs_are_held(usd: Any, hours: Any, reason: str, message: str) -> None:
    books = Books(usd, hours)
    books.look()
    (ready,) = books.status.conditions
    assert (ready.type, ready.status, ready.reason, ready.message) == ("Ready", "True", reason, message)
    assert ready.observed_generation == books.status.observed_generation == 1
    assert (books.status.balance is None, books.status.allocation is None) == (usd is None, hours is None)


def test_a_fund_that_is_taken_away_is_still_spoken_of_and_owes_only_open_holds() -> None:
    books = Books(10, 10)
    books.look(wish("a", 4), wish("b", 3, "H100Hours"))
    books.look(end("b", 3))
    books.change(spec=granted())
    books.look()
    assert "spec.wallet.creditUsd: found none, less than the 0 USD" in (books.status.waiting or "")
    assert "allocation" not in (books.status.waiting or "")
    use = books.status.allocation
    assert (books.status.balance, use and (use.granted, use.spent, use.balance)) == ("-4", ("0", "3", "-3"))
    books.look(end("a", 4))
    assert (said(books, "Ready"), books.status.spent) == (("True", "Unfunded"), "4")


def test_a_workspace_that_goes_waits_for_its_holds_then_for_its_last_page() -> None:
    books = Books(10)
    books.look(wish("a", 4), wish("over", 1))
    books.look(end("over", 0))
    assert books.world.meta.finalizers == (FINALIZER,)
    books.change(deleting=True)
    plan = books.look(wish("b", 1), wish("a", 5))
    assert (plan.finalizer, plan.page, names_of(plan.refused)) == (None, None, ["a", "b"])
    assert (said(books, "Ready"), said(books, "Reconciling")) == (("False", "Waiting"), ("True", "Waiting"))
    plan = books.look(end("a", 2))
    assert (plan.finalizer, plan.page, plan.requeue_after) == (None, None, 0.0)
    plan = books.look()
    assert (plan.finalizer, [page.totals.spent_usd for page in books.pages]) == ("remove", ["2"])
    assert [(note.type, note.reason) for note in plan.notes] == [("Normal", "PageWritten")]
    assert books.world.meta.finalizers == ()


def test_the_finalizer_comes_with_the_first_hold_and_stays_until_the_workspace_goes() -> None:
    books = Books(10)
    assert books.look().finalizer is None
    assert books.look(wish("a", 99)).finalizer is None
    assert books.look(wish("b", 1)).finalizer == "add"
    assert [books.look(end("b", 1)).finalizer, books.look(wish("c", 1)).finalizer] == [None, None]
    empty = Books(10)
    empty.change(deleting=True)
    assert empty.look(wish("a", 1)).finalizer is None


def test_a_recreated_workspace_goes_on_from_the_newest_page() -> None:
    books = Books(10, 10)
    books.look(wish("a", 4), wish("b", 3, "H100Hours"))
    books.look(end("a", 4), end("b", "1.5"))
    books.change(deleting=True)
    books.look()
    books.recreate()
    plan = books.look(wish("a", 1), wish("c", 6), wish("d", 1))
    assert (names_of(plan.placed), names_of(plan.refused)) == (["c"], ["d"])
    use = books.status.allocation
    assert (books.status.spent, use and use.spent) == ("4", "1.5")
    assert (books.status.entries, books.status.pages) == (2, 1)
    assert books.status.page_digest == digest_of_page(books.pages[0])
    books.look(end("c", 6))
    books.change(deleting=True)
    books.look()
    first, second = books.pages
    assert (first.workspace_uid, second.workspace_uid) == ("workspace-1", "workspace-1+")
    assert (second.previous, second.entries[0].sequence) == (digest_of_page(first), 3)


def test_a_page_takes_the_hundred_oldest_and_comes_out_the_same_after_a_crash() -> None:
    books = Books(1000)
    runs = [f"run-{number:03d}" for number in range(150)]
    books.look(*(wish(name, 1) for name in runs))
    assert books.look(*(end(name, "0.01") for name in runs)).requeue_after == 0.0
    books.look(until=2)
    assert (len(books.pages), len(books.status.settled)) == (1, 150)
    books.now += seconds(5)
    plan = books.look(wish("new", 1))
    assert [e.sequence for e in books.pages[0].entries] == list(range(1, 101))
    assert books.pages[0].totals.to_json() == {"entries": 100, "spentUsd": "1", "spentH100Hours": "0"}
    assert (len(books.status.settled), books.status.pages, books.status.spent) == (50, 1, "1.5")
    assert books.status.page_digest == digest_of_page(books.pages[0])
    assert (names_of(plan.placed), plan.requeue_after) == (["new"], None)
    assert books.look().status is None


def test_more_ends_than_the_status_takes_wait_for_a_page() -> None:
    books = Books(1000)
    runs = [f"run-{number:03d}" for number in range(450)]
    books.look(*(wish(name, 1) for name in runs))
    ends = [end(name, "0.5") for name in runs]
    looks = 0
    while ends:
        plan = books.look(*ends, wish("run-449", 2))
        woken = {found.uid for found in plan.wake}
        assert plan.requeue_after == 0.0
        ends = [e for e in ends if e.run.uid not in woken]
        looks += 1
    assert (looks, books.status.entries, books.status.holds, books.status.spent) == (4, 450, {}, "225")


def test_the_thousand_and_first_waits_and_is_not_refused() -> None:
    books = Books(10_000)
    many = [wish(f"run-{number:04d}", 1, age=5) for number in range(MOST_HOLDS)]
    assert len(books.look(*many).placed) == MOST_HOLDS
    late = wish("late", 1)
    plan = books.look(late, wish("dear", 99_999), wish("run-0001", 2))
    assert (names_of(plan.placed), names_of(plan.refused)) == (["run-0001"], ["dear"])
    assert sorted(names_of(plan.wake)) == ["dear", "run-0001"]
    assert (books.status.waiting or "").startswith("status.holds: found 1000")
    plan = books.look(late, end("run-0002", 1))
    assert (names_of(plan.placed), books.status.waiting) == (["late"], None)


def test_a_page_is_known_by_the_digest_of_its_canonical_json() -> None:
    books = Books(10)
    books.look(wish("a", 1))
    books.look(end("a", 1))
    books.change(deleting=True)
    plan = books.look()
    assert plan.page is not None
    text = json.dumps(plan.page["spec"], sort_keys=True, separators=(",", ":"))
    assert text.startswith('{"entries":[{"charged":"1",')
    assert digest_of_page(books.pages[0]) == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def test_the_fullest_status_is_small_enough_for_an_object() -> None:
    """With the longest names that runs can have."""
    rate = RATE.model_copy(
        update={"gpu_class": "nvidia-h100-80gb-hbm3-sxm5", "region": "eu-central-1", "markup": "1.234567"}
    )
    books = Books(99_999_999)

    def thousand(prefix: str) -> list[RunRef]:
        uids = [f"{prefix}{number:05d}-1f2a-4b8e-8f3e-3f1b2c4d5e6f" for number in range(1000)]
        return [RunRef(kind="TrainingJob", name=uid.ljust(253, "x"), uid=uid) for uid in uids]

    def wishes(runs: list[RunRef]) -> list[Wanted]:
        return [wish("a", "12345.678901", run=r, rate=rate, quoted=12_345_678_901) for r in runs]

    runs = thousand("abc")
    books.look(*wishes(runs))
    ends = [end("a", "9999.9", run=r, judge_micro_usd=12_345_678_901, receipt=DIGEST) for r in runs[:200]]
    books.look(*ends, *wishes(thousand("def")[:200]))
    assert (len(books.status.holds), len(books.status.settled)) == (1000, 200)
    assert len(json.dumps(books.status.to_json()).encode()) < 1 << 20


def test_a_status_that_says_the_same_is_not_written() -> None:
    books = Books(10)
    books.look(wish("a", 4))
    again = plan_book(books.world, NOW + seconds(3600))
    assert (again.status, again.page, again.finalizer, again.wake, again.notes) == (None, None, None, (), ())
    assert plan_book(book_world(10), NOW).status != WorkspaceStatus()
