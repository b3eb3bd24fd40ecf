"""kubectl halo ledger: every number is added up again, and each that is wrong is one line with both numbers."""

from __future__ import annotations

import csv
import io
import json
import random
import stat
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest

from halo_api.ledger import Rate
from halo_cli.__main__ import main
from halo_cli.kubectl import CliError, Kubectl, NotThere, Object
from halo_cli.ledger import Asked, date, ledger
from halo_cli.ledger_book import Book, book_of, pages_of, read_book
from halo_cli.ledger_check import mismatches
from halo_cli.ledger_view import COLUMNS
from halo_operator.plan.metering import used, with_attempt
from halo_operator.plan.money import marked_up
from halo_operator.plan.wishes import Ended, Unit, Wanted
from tests.unit import builders_ledger as made
from tests.unit.builders_book import Books, wish
from tests.unit.builders_ledger import Body

# Two pages and what is in none yet: 7.000417 x 2 + 4 = 18.000834 USD and 0.111112 H100-hours; 12.5 USD are held.
PAGES = made.pages([made.usd(1), made.judged(2)], [made.usd(3)])
SETTLED = [made.hours(4)]
SHARE = {"granted": "1200", "held": "0", "spent": "0.111112", "balance": "1199.888888"}
WORKSPACE = made.workspace(
    PAGES, SETTLED, {"uid-9": made.hold("uid-9")}, held="12.5", balance="469.499166", allocation=SHARE
)


TABLE = Asked()


class Played(Kubectl):
    """kubectl in front of a cluster that has these objects; each call may find it further on."""

    def __init__(self, *workspaces: Body | None, pages: list[list[Body]]) -> None:
        super().__init__()
        self._workspaces, self._pages = list(workspaces), list(pages)

    def get(self, *arguments: str) -> Object:
        if arguments[0].startswith("ledgerpages"):
            return {"items": self._pages.pop(0) if len(self._pages) > 1 else self._pages[0]}
        found = self._workspaces.pop(0) if len(self._workspaces) > 1 else self._workspaces[0]
        if found is None:
            raise NotThere('workspaces.halo.training "workspace" not found')
        return found


def book(workspace: Body | None = WORKSPACE, pages: list[Body] = PAGES) -> Book:
    return book_of(workspace, pages_of(pages), "team")


def told(asked: Asked = TABLE, workspace: Body | None = WORKSPACE, pages: list[Body] = PAGES) -> tuple[int, str, str]:
    """The exit code, standard output and standard error."""
    out: list[str] = []
    notes: list[str] = []
    code = ledger(Played(workspace, pages=[pages]), "team", asked, out.append, notes.append)
    return code, "".join(out), "\n".join(notes)


def changed(change: Callable[[list[Body], Body], None], chained: bool = False) -> list[str]:
    """What is said of the book after a change of its pages or its Workspace; `chained`: its digests are made anew."""
    pages, workspace = deepcopy(PAGES), deepcopy(WORKSPACE)
    change(pages, workspace)
    if chained:
        pages[1]["spec"]["previous"] = made.digest(pages[0]["spec"])
        workspace["status"]["pageDigest"] = made.digest(pages[1]["spec"])
    return mismatches(book(workspace, pages))


def entry(index: int, **changes: object) -> Callable[[list[Body], Body], None]:
    return lambda pages, _: pages[0]["spec"]["entries"][index].update(changes)


def in_status(**changes: object) -> Callable[[list[Body], Body], None]:
    return lambda _, workspace: workspace["status"].update(changes)


def test_a_right_book_adds_up() -> None:
    assert mismatches(book()) == []
    assert told(Asked(form="check")) == (0, "adds up: 4 entries, 2 pages and 1 open hold\n", "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (entry(0, used="7.000416", charged="7.000416"), [
            "page 1, entry 1 (run-1): found used 7.000416, computed 7.000417 USD",
            "page 1, totals: found spentUsd 11.000417, computed 11.000416",
            "page 2, totals: found spentUsd 18.000834, computed 18.000833",
            "Workspace status: found spent 18.000834, computed 18.000833",
            "Workspace status: found balance 469.499166, computed 469.499167",
        ]),
        (entry(0, gpuSeconds="8400.6"), ["page 1, entry 1 (run-1): found used 7.000417, computed 7.0005 USD"]),
        (entry(1, overrun="0"), ["page 1, entry 2 (run-2): found overrun 0, computed 0.25 USD"]),
        (entry(1, judgeUsd="1.2"), ["page 1, entry 2 (run-2): found used 4.25, computed 4.2 USD"]),
        (entry(0, rate=made.RATE | {"markup": "1.3"}), ["page 1, entry 1 (run-1): found used 7.000417, computed 7.583785 USD"]),
        (entry(0, sequence=2), ["page 1, entry 2: found sequence 2, expected 1: an entry is missing or there twice"]),
        (entry(1, run=made.usd(1)["run"]), ["page 1, entry 2: found run run-1 (uid-1), settled before on page 1, entry 1"]),
        (lambda p, _: p[0]["spec"]["totals"].update(entries=3), ["page 1, totals: found entries 3, counted 2"]),
        (in_status(held="12"), ["Workspace status: found held 12, computed 12.5"]),
        (in_status(entries=5), ["Workspace status: found entries 5, counted 4"]),
        (in_status(pages=1), ["Workspace status: found pages 1, counted 2"]),
        (in_status(allocation=SHARE | {"spent": "0"}), ["Workspace status: found allocation.spent 0, computed 0.111112"]),
    ],
)  # fmt: skip
def test_a_wrong_number_is_named_with_the_right_one(
    change: Callable[[list[Body], Body], None], said: list[str]
) -> None:
    assert changed(change, chained=True) == said


def test_more_charged_than_held_is_wrong_even_where_the_sums_are_right() -> None:
    pages = made.pages([made.judged(1, charged="4.25", overrun="0")])
    found = mismatches(book(None, pages))
    assert found == ["page 1, entry 1 (run-1): found charged 4.25, computed 4 USD"]


def test_a_page_that_was_changed_breaks_the_chain() -> None:
    """Also where every sum is right: another run's name."""
    found = changed(entry(0, run=made.usd(1)["run"] | {"name": "other"}))
    assert len(found) == 1
    assert found[0].startswith(f"page 2: found previous {PAGES[1]['spec']['previous']}, computed sha256:")
    last = changed(lambda pages, _: pages[1]["spec"].update(workspaceUid="other"))
    assert [line.split(" sha256")[0] for line in last] == ["Workspace status: found pageDigest"]


def test_a_page_that_is_gone_is_missed() -> None:
    assert "page 2: found it after 0 pages, expected page 1: one is missing or there twice" in mismatches(
        book(None, PAGES[1:])
    )
    renamed = deepcopy(PAGES)
    renamed[1]["metadata"]["name"] = "copy"
    assert mismatches(book(None, renamed)) == ["page 2: found the name copy, expected page-000000002"]


def test_a_page_is_made_before_its_entries_leave_the_status() -> None:
    """The operator may die between the two writes: the entries are counted once."""
    between = deepcopy(WORKSPACE)
    between["status"] |= {
        "settled": [made.usd(3), made.hours(4)],
        "pages": 1,
        "pageDigest": made.digest(PAGES[0]["spec"]),
    }
    assert mismatches(book(between)) == []
    assert [line.entry.sequence for line in book(between).lines()] == [1, 2, 3, 4]
    other = deepcopy(between)
    other["status"]["settled"][0]["outcome"] = "Failed"
    assert "status.settled, entry 3: found sequence 3, expected 4: an entry is missing or there twice" in mismatches(
        book(other)
    )


def test_several_workspaces_are_one_book() -> None:
    """The first was deleted; its successor goes on from the last page, and what it has not looked at yet is not compared."""
    pages = made.pages([made.usd(1)], [made.usd(2)], uids=("workspace-0", "workspace-1"))
    assert mismatches(book(None, pages)) == []
    again = made.workspace(pages, [], {}, held="0", balance="485.999166")
    assert mismatches(book(again, pages)) == []
    assert mismatches(book(again | {"status": {}}, pages)) == []
    raised = again | {"metadata": again["metadata"] | {"generation": 2}, "spec": {"wallet": {"creditUsd": 600}}}
    assert mismatches(book(raised, pages)) == []


def test_a_book_that_is_written_while_it_is_read_is_read_again() -> None:
    behind = made.workspace(PAGES[:1], [], {}, held="0")
    ahead = made.workspace(PAGES, [], {}, held="0")
    found = read_book(Played(behind, ahead, pages=[PAGES]))
    assert found.status is not None
    assert found.status.entries == 3
    # One that stays behind is wrong.
    assert "Workspace status: found entries 2, counted 3" in mismatches(read_book(Played(behind, pages=[PAGES])))


def test_the_table_has_every_entry_the_open_holds_and_totals_by_unit() -> None:
    code, out, notes = told()
    assert (code, notes) == (0, "")
    assert out.splitlines() == [
        " SEQ  RUN                     UNIT       HELD      USED   CHARGED  GPU-SECONDS  OUTCOME    SETTLED",
        "   1  trainingjob/run-1       USD        12.5  7.000417  7.000417       8400.5  Succeeded  2026-11-03T13:30:00Z",
        "   2  grporun/run-2           USD           4      4.25         4         3600  Succeeded  2026-11-30T23:59:59Z",
        "   3  trainingjob/run-3       USD        12.5  7.000417  7.000417       8400.5  Succeeded  2026-11-03T13:30:00Z",
        "   4  trainingjob/run-4       H100Hours   0.5  0.111112  0.111112         1000  Succeeded  2026-12-01T00:00:00Z",
        "open  trainingjob/open-uid-9  USD        12.5                                              held since 2026-12-02T08:00:00Z",
        "",
        "USD: 3 entries, charged 18.000834 of 18.250834 used, overrun 0.25 not charged; 1 open hold of 12.5",
        "H100Hours: 1 entry, charged 0.111112 of 0.111112 used",
    ]


def test_a_month_ends_where_the_next_begins() -> None:
    def month(since: str, until: str) -> list[int]:
        _, out, _ = told(Asked("json", date(since), date(until)))
        found = json.loads(out)
        assert found["openHolds"] == []
        return [entry["sequence"] for entry in found["entries"]]

    assert month("2026-11-01", "2026-12-01") == [1, 2, 3]
    assert month("2026-12-01", "2027-01-01") == [4]
    # Midnight in Berlin is an hour before that of UTC.
    assert month("2026-11-30T00:00:00+01:00", "2026-12-01T00:00:00+01:00") == []
    code, out, notes = told(Asked(since=date("2027-01-01")))
    assert (code, out, notes) == (0, "", "none of 4 entries was settled in that time")


def test_csv_has_one_row_an_entry_with_the_amounts_as_they_are_written() -> None:
    code, out, notes = told(Asked("csv"))
    assert (code, notes) == (0, "")
    assert out.count("\r\n") == out.count("\n") == 6
    assert out.splitlines()[0] == ",".join(COLUMNS)
    first, second, *_, last = csv.DictReader(io.StringIO(out))
    assert first == {
        "state": "settled", "sequence": "1", "page": "1", "namespace": "team", "runKind": "TrainingJob", "runName": "run-1",
        "runUid": "uid-1", "unit": "USD", "gpuClass": "h100", "region": "eu-west", "usdPerHour": "2.5", "markup": "1.2",
        "h100Equivalent": "1", "quoted": "9.4", "held": "12.5", "used": "7.000417", "charged": "7.000417", "overrun": "0",
        "judgeUsd": "", "gpuSeconds": "8400.5", "outcome": "Succeeded", "receipt": made.DIGEST,
        "placedAt": "2026-11-03T10:00:00Z", "raisedAt": "", "settledAt": "2026-11-03T13:30:00Z",
    }  # fmt: skip
    assert (second["judgeUsd"], second["overrun"]) == ("1.25", "0.25")
    assert {name: last[name] for name in ("state", "sequence", "runUid", "held", "used", "settledAt")} == {
        "state": "open", "sequence": "", "runUid": "uid-9", "held": "12.5", "used": "", "settledAt": "",
    }  # fmt: skip


@pytest.mark.parametrize("text", ['=HYPERLINK("x")', "+1", "-1", "@SUM(A1)", "\t=1"])
def test_no_cell_is_a_formula(text: str) -> None:
    pages = made.pages([made.usd(1, outcome=text, rate=made.RATE | {"region": text})])
    (row,) = csv.DictReader(io.StringIO(told(Asked("csv"), None, pages)[1]))
    assert (row["outcome"], row["region"]) == (f"'{text}", f"'{text}")


def test_what_is_wrong_is_said_beside_every_form_and_is_the_exit_code() -> None:
    pages = made.pages([made.usd(1, gpuSeconds="1")])
    wrong = "page 1, entry 1 (run-1): found used 7.000417, computed 0.000834 USD"
    for asked in (TABLE, Asked("csv"), Asked("json"), Asked(since=date("2027-01-01"))):
        code, _, notes = told(asked, None, pages)
        assert (code, notes.splitlines()[-1]) == (1, f"does not add up: {wrong}")
    assert json.loads(told(Asked("json"), None, pages)[1])["mismatches"] == [wrong]
    assert told(Asked("check"), None, pages) == (1, f"{wrong}\n", "")


def test_nothing_is_one_sentence() -> None:
    none = "namespace team has no Workspace and no ledger: nothing is held or charged here"
    assert told(workspace=None, pages=[]) == (0, "", none)
    empty = WORKSPACE | {"status": {}}
    assert told(workspace=empty, pages=[]) == (
        0,
        "",
        "the ledger of namespace team is empty: nothing was held or charged yet",
    )
    assert told(Asked("csv"), None, [])[1] == ",".join(COLUMNS) + "\r\n"
    assert json.loads(told(Asked("json"), None, [])[1])["entries"] == []


@pytest.mark.parametrize("seed", range(5))
def test_what_the_operator_writes_adds_up_at_every_look(seed: int) -> None:
    """Its arithmetic and ours are two: any use, worth and rate, crashes between its writes, a Workspace made again."""
    draw, books = random.Random(seed), Books(500, 500)
    opened: list[Wanted] = []
    for step in range(60):
        rate = Rate(
            gpu_class="a", usd_per_hour=draw.choice(("2.5", "1.999999")), markup=draw.choice(("1", "1.15")), h100_equivalent=draw.choice(("1", "0.37")),
        )  # fmt: skip
        unit: Unit = draw.choice(("USD", "H100Hours"))
        new = [wish(f"run-{step}-{n}", draw.randint(1, 9) / 8, unit, rate=rate) for n in range(draw.randint(0, 8))]
        over = [opened.pop(draw.randrange(len(opened))) for _ in range(draw.randint(0, min(8, len(opened))))]
        ends = [ended(run, draw.randint(0, 2_000_000)) for run in over]
        if draw.random() < 0.2:
            books.look(*new, *ends, until=2)  # The operator dies, and its successor is asked the same.
            assert mismatches(stored(books)) == []
        opened += books.look(*new, *ends).placed
        assert mismatches(stored(books)) == []
        if step == 40:
            books.change(deleting=True)
            books.look(*(ended(run, 1) for run in opened))
            while books.status.settled:
                books.look()
            opened = []
            books.recreate()
            assert mismatches(stored(books)) == []
    assert len(books.pages) > 1
    assert {line.entry.unit for line in stored(books).lines()} == {"USD", "H100Hours"}
    assert any(line.entry.overrun != "0" for line in stored(books).lines())


def ended(wanted: Wanted, milliseconds: int) -> Ended:
    usage, rate = with_attempt(None, 1, milliseconds), marked_up(wanted.rate.usd_per_hour or 0, wanted.rate.markup or 1)
    return Ended(wanted.run, used(usage, wanted.unit, wanted.rate.h100_equivalent, rate), milliseconds, "Succeeded")


def stored(books: Books) -> Book:
    """The book as kubectl would give it."""
    meta = {"name": "workspace", "namespace": "team", "uid": books.world.meta.uid, "generation": 1}
    workspace = {"metadata": meta, "spec": books.world.spec.to_json(), "status": books.status.to_json()}
    return book(workspace, [made.page(page.to_json()) for page in books.pages])


def test_ten_thousand_entries_are_added_up() -> None:
    entries = [made.usd(number) for number in range(1, 10_001)]
    pages = made.pages(*(entries[start : start + 100] for start in range(0, 10_000, 100)))
    code, out, _ = told(Asked("csv"), None, pages)
    assert (code, out.count("\r\n")) == (0, 10_001)
    assert told(Asked("check"), None, pages)[1] == "adds up: 10000 entries, 100 pages and 0 open holds\n"


def test_no_right_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl = tmp_path / "kubectl"
    said = 'Error from server (Forbidden): workspaces.halo.training "workspace" is forbidden: User "eve" cannot get it'
    kubectl.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert main(["ledger", "-n", "team", "--csv"]) == 1
    assert capsys.readouterr() == ("", f"kubectl halo: {said}\n")


@pytest.mark.parametrize("bad", [["--since", "last month"], ["--csv", "--json"], ["--check", "--csv"]])
def test_what_is_asked_wrongly_is_refused(bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["ledger", *bad])
    assert "error: argument" in capsys.readouterr().err


def test_a_page_of_another_version_is_one_sentence() -> None:
    broken = deepcopy(PAGES)
    broken[0]["spec"]["entries"][0]["used"] = "much"
    with pytest.raises(CliError, match=r"^LedgerPage page-000000001, spec\.entries\.0\.used: .* differ in version$"):
        book(pages=broken)
