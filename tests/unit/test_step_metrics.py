"""What Prometheus sees of steps: each is counted once, by what trains and by role, and a stranger's words make no labels."""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY

from halo_api.report import ProgressReport, Report
from halo_api.training_job import TrainingJobStatus
from halo_operator.step_metrics import StepMetrics


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def report(step: int, tokens: int, attempt: int = 1, uid: str = "a", **rollouts: Any) -> Report:
    progress = ProgressReport.model_validate({"step": step, "steps": 9, "tokens": tokens, "rollouts": rollouts or None})
    return Report(run_uid=uid, attempt=attempt, progress=progress)


def status(attempt: int = 1, step: int | None = None) -> TrainingJobStatus:
    told = {"step": step, "steps": 9, "percent": 0, "updatedAt": "2026-11-29T11:00:00Z"} if step is not None else None
    return TrainingJobStatus.model_validate({"attempt": attempt, "progress": told})


def trained(method: str) -> float:
    return value("halo_tokens_total", method=method, role="trainer")


def test_a_step_is_counted_once_however_often_it_is_told() -> None:
    steps = StepMetrics()
    for found in (report(1, 100), report(1, 100), report(2, 250), report(2, 250)):
        steps.told("sft", found, status(step=1))
    assert trained("sft") == 150


def test_another_operator_goes_on_where_the_status_is() -> None:
    """What the status told was counted by the process before; a run without progress is a new one."""
    StepMetrics().told("restarted", report(5, 900), status(step=5))
    assert trained("restarted") == 0
    StepMetrics().told("begun", report(1, 40), status())
    assert trained("begun") == 40


def test_an_attempt_that_begins_behind_counts_what_it_does_again() -> None:
    steps = StepMetrics()
    steps.told("dpo", report(8, 800), status())
    steps.told("dpo", report(5, 500, attempt=2), status(2, step=8))
    steps.told("dpo", report(6, 600, attempt=2), status(2, step=8))
    assert trained("dpo") == 900


EPISODES = {
    "reward": 0.4, "passRate": 0.25, "scored": 60, "unscored": 4, "unscoredReasons": {"ServerFailed": 3, "x" * 60: 1},
    "droppedGroups": 2, "kl": 0.002, "mismatch": 0.0004, "staleness": 1, "sampledTokens": 5000,
    "rolloutSeconds": 8.0, "trainSeconds": 2.0, "syncSeconds": 0.5, "servers": 1, "serversWanted": 2,
}  # fmt: skip


def test_episodes_are_counted_by_how_they_ended_and_never_as_zeros() -> None:
    StepMetrics().told("sql_v3", report(1, 700, **EPISODES), status())
    results = {
        name: value("halo_episodes_total", method="sql_v3", result=name) for name in ("passed", "failed", "unscored")
    }
    assert results == {"passed": 15, "failed": 45, "unscored": 4}
    reasons = {
        name: value("halo_unscored_episodes_total", method="sql_v3", reason=name) for name in ("ServerFailed", "Other")
    }
    assert reasons == {"ServerFailed": 3, "Other": 1}
    assert value("halo_tokens_total", method="sql_v3", role="rollout") == 5000
    assert value("halo_step_seconds_total", method="sql_v3", phase="sync") == 0.5
    for name, sum_ in (("reward", 0.4), ("kl_nats", 0.002), ("mismatch_nats", 0.0004), ("staleness_updates", 1)):
        assert (value(f"halo_{name}_count", method="sql_v3"), value(f"halo_{name}_sum", method="sql_v3")) == (1, sum_)


def test_servers_are_those_of_the_runs_that_sample_now() -> None:
    steps = StepMetrics()

    def servers() -> tuple[float, float]:
        return value("halo_rollout_servers", state="ready"), value("halo_rollout_servers", state="wanted")

    steps.told("sql_v3", report(1, 1, **EPISODES), status())
    steps.told("sql_v3", report(1, 1, uid="b", servers=3, serversWanted=3, scored=1), status())
    assert servers() == (4, 5)
    # The next attempt of a run has none until it samples.
    steps.told("sql_v3", report(1, 1, **EPISODES), status(2))
    assert servers() == (3, 3)
    steps.over("b")
    assert servers() == (0, 0)


def test_a_report_of_nonsense_harms_no_sum() -> None:
    odd = {"reward": float("nan"), "passRate": float("inf"), "scored": -3, "unscored": -1, "rolloutSeconds": -5.0}
    StepMetrics().told("odd", report(1, -10, **odd), status())
    assert value("halo_reward_count", method="odd") == 0
    assert trained("odd") == 0
    assert value("halo_step_seconds_total", method="odd", phase="rollout") == 0
