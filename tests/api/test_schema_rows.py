"""Every row of the tables of refusals, by the real API server and real kubectl: the bad one is refused in the row's words."""

from __future__ import annotations

import json

import pytest

from tests.api.client import Api, Object
from tests.api.kube import ROOT, Kubectl
from tests.refusals import Refused
from tests.refusals.answers import alone, among_others, refusals
from tests.refusals.page import page, schema_rows

pytestmark = pytest.mark.api

ROWS = schema_rows()
IDS = [f"{row.bad['kind']}: {row.what}" for row in ROWS]
KINDS = sorted({row.bad["kind"] for row in ROWS})
PAGE = ROOT / "docs" / "refusals.md"
CREATE = ("create", "--dry-run=server", "-f", "-")

Answers = dict[int, Object | None]


@pytest.fixture(scope="module")
def answers(api: Api) -> Answers:
    """What the API server says of each bad object, by its row."""
    found = refusals(api, [row.bad for row in ROWS])
    return dict(zip(map(id, ROWS), found, strict=True))


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_the_bad_one_is_refused_in_these_words(answers: Answers, row: Refused) -> None:
    answer = alone(answers[id(row)])
    assert answer, "it was taken"
    assert [word for word in row.words if word not in answer] == [], answer


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_it_is_about_one_field(answers: Answers, row: Refused) -> None:
    errors = [line.removeprefix("* ") for line in alone(answers[id(row)]).splitlines() if line.startswith("* ")]
    # Of a mistyped number the API server also says its bounds, and that it could check no further.
    fields = {line.split(":")[0] for line in errors if "some validation rules were not checked" not in line}
    assert len(fields) <= 1, errors


@pytest.mark.parametrize("kind", KINDS)
def test_kubectl_refuses_each_and_says_what_the_api_server_says(
    installed_chart: Kubectl, answers: Answers, kind: str
) -> None:
    rows = [row for row in ROWS if row.bad["kind"] == kind]
    done = installed_chart.run(*CREATE, stdin="\n".join(json.dumps(row.bad) for row in rows))
    assert done.stdout == ""
    assert done.stderr == "".join(among_others(answer) for row in rows if (answer := answers[id(row)]))


@pytest.mark.parametrize("kind", KINDS)
def test_kubectl_takes_the_good_counterparts(installed_chart: Kubectl, kind: str) -> None:
    good = {json.dumps(row.good, sort_keys=True) for row in ROWS if row.good["kind"] == kind}
    done = installed_chart.run(*CREATE, stdin="\n".join(sorted(good)))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(good)


def test_kubectl_says_it_of_one_object_as_the_page_does(installed_chart: Kubectl, answers: Answers) -> None:
    """A row of each shape of an answer: every reason, with one cause and with several."""
    shapes = {shape(answers[id(row)]): row for row in ROWS}
    assert {reason for reason, _ in shapes} == {"Invalid", "BadRequest"}
    for row in shapes.values():
        assert installed_chart.refused(*CREATE, stdin=row.bad) == alone(answers[id(row)]).strip(), row.what


def shape(answer: Object | None) -> tuple[str, int]:
    assert answer
    return answer["reason"], min(len(answer.get("details", {}).get("causes", [])), 2)


def test_the_page_says_the_same(answers: Answers) -> None:
    assert PAGE.read_text() == page(lambda row: alone(answers[id(row)])), "run hack/refusals"
