"""Argo CD's health of every moment of a run, a data set, an adapter and a Workspace, by the chart's own script."""

from __future__ import annotations

from typing import Any

import pytest
from lupa.lua51 import LuaRuntime

from tests.chart.rendering import CHART

# Argo CD runs Lua 5.1 (gopher-lua), with the object as the global `obj`.
SCRIPT = (CHART / "files" / "health.lua").read_text()
LOOKED = {"observedGeneration": 2}


def health(kind: str, status: dict[str, Any] | None, *conditions: tuple[str, str, str]) -> tuple[str, str]:
    body: dict[str, Any] = {"kind": kind, "metadata": {"name": "x", "generation": 2}}
    if status is not None:
        listed = [{"type": t, "status": s, "message": m} for t, s, m in conditions]
        body["status"] = status | ({"conditions": listed} if listed else {})
    lua = LuaRuntime(unpack_returned_tuples=True)
    lua.globals().obj = lua.table_from(body, recursive=True)
    answer = lua.execute(SCRIPT)
    return answer["status"], answer["message"]


WAITING = ("Progressing", "waiting for the operator")


@pytest.mark.parametrize("kind", ["TrainingJob", "GrpoRun", "Dataset", "Adapter", "Workspace"])
@pytest.mark.parametrize(
    ("moment", "status", "conditions", "expected"),
    [
        ("no status", None, [], WAITING),
        ("nobody has looked", {"observedGeneration": -1}, [], WAITING),
        ("no conditions", LOOKED, [], WAITING),
        ("an older generation", {"observedGeneration": 1}, [("Ready", "True", "all is well")], WAITING),
        ("an older failure", {"observedGeneration": 1}, [("Failed", "True", "bad")], WAITING),
        ("not ready yet", LOOKED, [("Ready", "False", "queued")], ("Progressing", "queued")),
        (
            "refused",
            LOOKED,
            [("Ready", "False", "x"), ("Stalled", "True", "no such base")],
            ("Degraded", "no such base"),
        ),
    ],
)
def test_every_kind(
    kind: str,
    moment: str,
    status: dict[str, Any] | None,
    conditions: list[tuple[str, str, str]],
    expected: tuple[str, str],
) -> None:
    assert health(kind, status, *conditions) == expected, moment


@pytest.mark.parametrize(
    ("moment", "conditions", "expected"),
    [
        (
            "training",
            [("Ready", "False", "step 3 of 10"), ("Reconciling", "True", "x")],
            ("Progressing", "step 3 of 10"),
        ),
        ("published", [("Ready", "True", "x"), ("Complete", "True", "adapter x")], ("Healthy", "adapter x")),
        ("suspending", [("Suspended", "False", "stopping"), ("Ready", "False", "x")], ("Progressing", "x")),
        ("suspended", [("Suspended", "True", "at step 4"), ("Ready", "False", "x")], ("Suspended", "at step 4")),
        ("failed", [("Failed", "True", "bad row 7"), ("Stalled", "True", "y")], ("Degraded", "bad row 7")),
        ("complete wins over suspended", [("Suspended", "True", "x"), ("Complete", "True", "y")], ("Healthy", "y")),
    ],
)
def test_a_run(moment: str, conditions: list[tuple[str, str, str]], expected: tuple[str, str]) -> None:
    assert health("TrainingJob", LOOKED, *conditions) == expected, moment


def test_a_data_set_is_healthy_when_inspected() -> None:
    assert health("Dataset", LOOKED, ("Ready", "True", "120 rows")) == ("Healthy", "120 rows")


def test_an_adapter_is_healthy_when_its_files_are_right_with_a_receipt_or_imported() -> None:
    for verified in ("True", "False"):
        found = health("Adapter", LOOKED, ("Verified", verified, "x"), ("Ready", "True", "4 files"))
        assert found == ("Healthy", "4 files")
    changed = (
        "it was changed",
        [("Verified", "False", "x"), ("Ready", "False", "x"), ("Stalled", "True", "it was changed")],
    )
    assert health("Adapter", LOOKED, *changed[1]) == ("Degraded", changed[0])


def test_a_workspace_is_healthy_while_it_can_hold() -> None:
    assert health("Workspace", LOOKED, ("Ready", "True", "runs are held")) == ("Healthy", "runs are held")
    short = "spec.wallet.creditUsd: found 5, less than the 8 USD that are spent"
    overdrawn = [
        (type_, status, short) for type_, status in (("Ready", "False"), ("Overdrawn", "True"), ("Stalled", "True"))
    ]
    assert health("Workspace", LOOKED, *overdrawn) == ("Degraded", short)
