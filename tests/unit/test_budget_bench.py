"""The bench of the stop at the budget sees each thing that must not be: a measurement that can't fail shows nothing."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hack.bench.stop.figures import (
    Stopped,
    bound_at,
    ended_at,
    wrong_with_adapter,
    wrong_with_book,
    wrong_with_entry,
    wrong_with_run,
)

Object = dict[str, Any]

BOUND = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
BUDGET = Decimal("0.079")


def stopped(used: int, gpus: int = 1) -> Stopped:
    ended = BOUND + timedelta(seconds=used / gpus)
    hold = BUDGET * 3600
    return Stopped("r", "operator up", False, gpus, BOUND, ended, hold, 30.0, 4, "trainer", 1.0)


@pytest.mark.parametrize(
    ("used", "overrun", "slack", "late"),
    [(260, 0, 24.4, 5.6), (284, 0, 0.4, 29.6), (300, 15.6, 0, 45.6)],
)
def test_an_overrun_is_what_goes_beyond_the_hold_and_lateness_what_goes_beyond_the_last_step(
    used: int, overrun: float, slack: float, late: float
) -> None:
    found = stopped(used)
    assert (found.overrun, found.slack, found.late) == pytest.approx((overrun, slack, late))


def test_all_gpus_are_counted() -> None:
    found = stopped(284, gpus=2)
    assert (found.used_seconds, found.slack, found.late) == pytest.approx((284, 0.4, 29.8))


def test_a_pod_s_times_are_its_binding_and_its_container_s_end() -> None:
    waiting = {"type": "PodScheduled", "status": "False", "lastTransitionTime": "2026-11-29T11:59:00Z"}
    bound = waiting | {"status": "True", "lastTransitionTime": "2026-11-29T12:00:00Z"}
    over = {"state": {"terminated": {"finishedAt": "2026-11-29T12:04:20Z"}}}
    assert bound_at({"status": {"conditions": [waiting]}}) is None
    assert bound_at({"status": {"conditions": [bound]}}) == BOUND
    assert ended_at({"status": {"containerStatuses": [{"state": {"running": {}}}]}}) is None
    assert ended_at({"status": {"containerStatuses": [over]}}) == BOUND + timedelta(seconds=260)


def entry(used: str, charged: str, overrun: str, seconds: str) -> Object:
    amounts = {"held": "0.079", "used": used, "charged": charged, "overrun": overrun, "gpuSeconds": seconds}
    return {"unit": "H100Hours", "outcome": "BudgetReached", **amounts}


@pytest.mark.parametrize(
    ("used", "right"),
    [
        (260, entry("0.072223", "0.072223", "0", "260")),
        (300, entry("0.083334", "0.079", "0.004334", "300")),
    ],
)
def test_a_charge_is_right_to_the_millionth(used: int, right: Object) -> None:
    assert list(wrong_with_entry(right, stopped(used), BUDGET, Decimal(1))) == []
    for figure in right:
        spoiled = right | {figure: "0.072222" if figure not in ("unit", "outcome") else "USD"}
        assert len(list(wrong_with_entry(spoiled, stopped(used), BUDGET, Decimal(1)))) == 1, figure
    assert list(wrong_with_entry(None, stopped(used), BUDGET, Decimal(1)))


def run() -> Object:
    conditions = [
        {"type": "Complete", "status": "True", "reason": "BudgetReached", "message": ""},
        {"type": "Failed", "status": "False", "reason": "BudgetReached", "message": ""},
    ]
    status = {"conditions": conditions, "attempt": 1, "usage": {"closedGpuSeconds": "260"}}
    return {"metadata": {"uid": "u"}, "status": status}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda it: it["status"]["conditions"][0].update(reason="Succeeded"),
        lambda it: it["status"]["conditions"][0].update(status="False"),
        lambda it: it["status"].update(attempt=2),
        lambda it: it["status"]["usage"].update(closedGpuSeconds="261"),
    ],
)
def test_a_run_that_ended_in_another_way_is_seen(spoil: Callable[[Object], None]) -> None:
    found = run()
    assert list(wrong_with_run(found, stopped(260))) == []
    spoil(found)
    assert len(list(wrong_with_run(found, stopped(260)))) == 1


def test_an_adapter_s_bytes_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"weights")
    sha = hashlib.sha256(b"weights").hexdigest()
    digest = "sha256:" + hashlib.sha256(f"{sha}  a.safetensors\n".encode()).hexdigest()
    spec = {
        "digest": digest,
        "files": [{"path": "a.safetensors", "sha256": f"sha256:{sha}"}],
        "trainedBy": {"uid": "u"},
    }
    made = run()
    made["status"]["adapter"] = {"digest": digest}
    assert list(wrong_with_adapter(made, {"spec": spec}, tmp_path)) == []
    assert list(wrong_with_adapter(made, None, None))
    other = copy.deepcopy(spec) | {"trainedBy": {"uid": "before"}}
    assert list(wrong_with_adapter(made, {"spec": other}, tmp_path))
    (tmp_path / "a.safetensors").write_bytes(b"other weights")
    assert len(list(wrong_with_adapter(made, {"spec": spec}, tmp_path))) == 2
    (tmp_path / "a.safetensors").unlink()
    assert list(wrong_with_adapter(made, {"spec": spec}, tmp_path))


def test_a_book_that_keeps_a_hold_or_adds_up_to_another_sum_is_seen() -> None:
    right = {
        "holds": {},
        "settled": [{"charged": "0.072223"}, {"charged": "0.079"}],
        "allocation": {"held": "0", "spent": "0.151223", "balance": "0.848777"},
    }
    assert list(wrong_with_book(right, Decimal(1))) == []
    for spoiled in (
        right | {"holds": {"u": {}}},
        right | {"settled": right["settled"][:1]},
        right | {"allocation": {"held": "0.079", "spent": "0.151223", "balance": "0.769777"}},
    ):
        assert list(wrong_with_book(spoiled, Decimal(1)))
