"""What a run names may come after it: each thing that appears wakes the run at once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.adapter_scene import found, publish
from tests.api.operator_process import OperatorProcess, training_job
from tests.api.stage import GROUP, Stage
from tests.unit import builders as b

pytestmark = pytest.mark.api

# Far less than the minute after which the operator looks again by itself.
AT_ONCE = 10
JUDGE = {"url": "https://judge.example/v1", "model": "judge-1", "inputUsd": 0.4, "outputUsd": 1.6}


def body(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "halo.training/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def is_said(stage: Stage, kind: str, name: str, condition: str) -> None:
    """The condition is True, as the work that it stands for would write it."""
    path = f"{GROUP}/namespaces/{stage.namespace}/{kind}/{name}"
    generation = stage.api.request("GET", path)["metadata"]["generation"]
    found = {
        "type": condition, "status": "True", "reason": "Found", "message": "", "observedGeneration": generation,
        "lastTransitionTime": "2026-11-29T12:00:00Z",
    }  # fmt: skip
    stage.api.patch(f"{path}/status", {"status": {"conditions": [found]}})


def until_waits(stage: Stage, reason: str, words: str) -> None:
    def waits() -> bool:
        found = stage.condition("Accepted")
        return found["reason"] == reason and words in found["message"]

    stage.until(waits, f"the run waits: {reason} {words}; it says {stage.status()}", AT_ONCE)


def until_refused(stage: Stage, reason: str) -> None:
    stage.until(lambda: stage.condition("Failed")["reason"] == reason, f"refused: {reason}; {stage.status()}", AT_ONCE)


def test_a_run_waits_for_its_parent(stage: Stage, operator: OperatorProcess) -> None:
    stage.inspected_dataset()
    stage.create(training_job(stage.base, parent={"adapter": "support-v3"}))
    until_waits(stage, "ParentPending", "no such Adapter")
    publish(stage, "support-v3")
    until_waits(stage, "ParentPending", "not verified yet")
    found(stage, "support-v3")
    stage.until(lambda: stage.condition("Accepted")["status"] == "True", f"it goes on; {stage.status()}", AT_ONCE)


def test_a_run_waits_for_its_environment_and_its_judge(stage: Stage, operator: OperatorProcess) -> None:
    stage.api.patch(f"{GROUP}/basemodels/{stage.base}", {"spec": {"offers": ["lora_trl", "halo_rlvr"]}})
    rlvr = {"recipe": "bridged_v1", "envRevision": "desk-v2", "judge": {"criterion": "helpful", "weight": 1}}
    job = training_job(stage.base, base="halo_rlvr", gpu={"type": stage.base, "count": 2}, batch=16, rlvr=rlvr)
    del job["spec"]["lora"]
    stage.create(job)
    until_waits(stage, "EnvironmentPending", "no such Environment")
    stage.api.post(stage.path("environments"), body("Environment", "desk-v2", b.environment().spec.to_json()))
    until_waits(stage, "EnvironmentPending", "not qualified for training yet")
    is_said(stage, "environments", "desk-v2", "Qualified")
    until_waits(stage, "CriterionPending", "no such Criterion")
    criterion = {"unit": "trace", "rubric": "Is the answer helpful?", "judge": JUDGE}
    stage.api.post(stage.path("criteria"), body("Criterion", "helpful", criterion))
    until_waits(stage, "CriterionPending", "not calibrated yet")
    is_said(stage, "criteria", "helpful", "Calibrated")
    until_refused(stage, "NotYetAvailable")


def test_a_namespace_without_the_feature_refuses(stage: Stage, operator: OperatorProcess) -> None:
    stage.api.post(stage.path("workspaces"), body("Workspace", "workspace", {"features": {"fineTuning": False}}))
    stage.create(training_job(stage.base))
    until_refused(stage, "FeatureOff")
