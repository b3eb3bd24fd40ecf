"""kubectl halo estimate and explain-refusal: what they read out of an answer, and what the documentation adds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from halo_api.conditions import Reason
from halo_cli.dry_run import Said, ask, documents, refused, split
from halo_cli.estimate import NO_QUOTE, lines
from halo_cli.explain import explained, told
from halo_cli.kubectl import Kubectl
from halo_cli.reasons import reasons

DENIAL = (
    'Error from server (BadRequest): error when creating "STDIN": admission webhook "runs.halo.training" denied the request: '
    "spec.gpu.count: found 9 (of 8 a node); use 8 (Unfit)"
)
INVALID = 'The TrainingJob "t" is invalid: spec.steps: Invalid value: 0: spec.steps in body should be greater than or equal to 1'


def test_every_reason_is_explained_by_the_documentation() -> None:
    assert reasons().keys() == set(Reason)
    assert all(row.meaning and row.cure and "|" not in row.meaning for row in reasons().values())


def test_a_denial_is_its_words_and_its_reason() -> None:
    assert refused((), DENIAL) == Said((), "spec.gpu.count: found 9 (of 8 a node); use 8", "Unfit")
    assert refused((), INVALID) == Said((), INVALID, None)


def test_warnings_are_sorted_from_errors_and_quotes_from_the_rest() -> None:
    warned, rest = split(["Warning: quote: 1 H100-hours", "Warning: waits: for a Dataset", "", "Error: no"])
    assert (Said(warned).quote, Said(warned).others, rest) == (
        ["1 H100-hours"],
        ["waits: for a Dataset"],
        ["Error: no"],
    )


@pytest.mark.parametrize(
    ("said", "last"),
    [
        (Said(("quote: 1 H100-hours",)), "1 H100-hours"),
        (Said(), NO_QUOTE),
        (Said(("waits: for it",)), "no quote yet: the run would wait"),
        (Said((), "spec.x: no", "Unfit"), "refused (Unfit): spec.x: no"),
        (Said((), INVALID), f"refused: {INVALID}"),
        (Said(exists=True), "a run of this name exists already; its own quote stands in its status.estimate"),
    ],
)
def test_an_answer_in_lines(said: Said, last: str) -> None:
    assert lines(said)[-1] == last


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("trainingjob.halo.training/t", Said(exists=True)),
        ("", Said((), "metadata.name: found 't'; choose another", "AdapterNameTaken")),
    ],
)
def test_a_run_that_is_over_is_not_refused_for_its_own_adapter(
    there: str, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    denial = "admission webhook \"w\" denied the request: metadata.name: found 't'; choose another (AdapterNameTaken)"
    (tmp_path / "kubectl").write_text(
        f"#!/bin/sh\ncat >/dev/null\nif [ $1 = get ]; then echo '{there}'; else cat >&2 <<'END'\n{denial}\nEND\nexit 1; fi\n"
    )
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert ask(Kubectl(), {"kind": "TrainingJob", "metadata": {"name": "t"}}) == said


def test_objects_that_follow_one_another_are_read() -> None:
    assert documents('{"a": 1}\n{"b": {}}\n') == [{"a": 1}, {"b": {}}]
    assert documents("") == []


def condition(type_: str, status: str, reason: str, message: str = "m") -> dict[str, Any]:
    return {"type": type_, "status": status, "reason": reason, "message": message}


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([], None),
        ([condition("Ready", "False", "Waiting"), condition("Accepted", "Unknown", "DatasetPending")], ("Waiting", "DatasetPending", "m")),
        ([condition("Ready", "False", "Refused"), condition("Failed", "True", "Unfit"), condition("Accepted", "False", "Unfit")], ("Refused", "Unfit", "m")),
        ([condition("Ready", "False", "Failed"), condition("Accepted", "True", "ChecksPassed"), condition("Failed", "True", "BadRow")], ("Failed", "BadRow", "m")),
        ([condition("Ready", "False", "Queued"), condition("Accepted", "True", "ChecksPassed"), condition("Scheduled", "False", "Unschedulable")], ("Queued", "Unschedulable", "m")),
        ([condition("Ready", "True", "Succeeded"), condition("Accepted", "True", "ChecksPassed")], ("Succeeded", "Succeeded", "m")),
        ([condition("Ready", "False", "BadRow"), condition("Stalled", "True", "BadRow")], ("BadRow", "BadRow", "m")),
    ],
)  # fmt: skip
def test_the_cause_speaks_before_the_state(
    conditions: list[dict[str, Any]], expected: tuple[str, str, str] | None
) -> None:
    assert told(conditions) == expected


def test_a_refusal_is_explained_in_three_parts() -> None:
    found = "\n".join(explained("BudgetTooSmall", "spec.budget.h100Hours: found 1"))
    assert found.startswith("  spec.budget.h100Hours: found 1\n  BudgetTooSmall: the budget ends before")
    assert "what to do: raise the budget" in found
    assert "not a reason of this version" in explained("NewReason", "m")[1]
    assert "schema" in explained(None, INVALID)[-1]
