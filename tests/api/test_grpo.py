"""GrpoRuns on a real API server: nothing is clamped in the spec, each refusal is a condition within seconds, and never more."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from halo_api.grpo_run import GrpoRunSpec
from halo_operator.plan.grpo.clamp import resolve
from tests.api.client import Api, Refused
from tests.api.grpo_scene import GROUP, NOW, TOOLS, GrpoScene, body
from tests.api.kube import OPERATOR, Kubectl, eventually
from tests.api.operator_process import OperatorProcess
from tests.refusals.schema_grpo import ADOPT, EXEC, run
from tests.unit.random_grpo import specs

pytestmark = pytest.mark.api


@pytest.fixture(scope="module")
def scene(installed_chart: Kubectl, operator: OperatorProcess) -> Iterator[GrpoScene]:
    """One namespace for all: each test makes runs of its own names."""
    scene = GrpoScene(installed_chart)
    yield scene
    scene.close()


@pytest.fixture
def alone_in_it(installed_chart: Kubectl, operator: OperatorProcess) -> Iterator[GrpoScene]:
    """A namespace of the test's own."""
    scene = GrpoScene(installed_chart)
    yield scene
    scene.close()


CLAMPED = {
    # asked, used: numbers that no schema refuses, however far outside
    "promptCount": (9007199254740991, 10000),
    "maxSteps": (-9223372036854775808, 1),
    "groupSize": (17, 16),
    "holdoutCount": (-1e300, 1),
    "maxCompletionTokens": (1, 256),
    "vllmGpuMemoryUtilization": (99, 0.9),
    "paramsB": (1e308, 1000),
}


def test_what_is_clamped_stays_in_the_spec_and_is_said(scene: GrpoScene) -> None:
    asked = {field: value for field, (value, _used) in CLAMPED.items()}
    made = scene.start("clamped", **asked, useVllm=True)
    scene.settled("clamped")
    frozen = scene.status("clamped")["frozen"]
    assert {field: frozen[field] for field in CLAMPED} == {field: used for field, (_asked, used) in CLAMPED.items()}
    assert {clamp["field"] for clamp in frozen["clamped"]} == CLAMPED.keys()
    now = scene.api.request("GET", scene.path("GrpoRun", "clamped"))
    assert now["spec"] == made["spec"]
    assert now["metadata"]["generation"] == 1
    eventually(lambda: len([e for e in scene.events("clamped") if e["reason"] == "Clamped"]) == len(CLAMPED), "events")
    notes = {e["note"] for e in scene.events("clamped") if e["type"] == "Warning"}
    assert "spec.groupSize: found 17, used is 16: clamped to 2 to 16" in notes


def test_the_defaults_are_resolved_in_the_status_and_the_commitment_is_exact(scene: GrpoScene) -> None:
    scene.start("defaults")
    scene.settled("defaults")
    frozen = scene.status("defaults")["frozen"]
    numbers = ("maxSteps", "groupSize", "promptCount", "holdoutCount", "maxCompletionTokens", "gpuCount")
    assert [frozen[field] for field in numbers] == [100, 8, 100, 20, 1024, 1]
    assert (frozen["qlora"], frozen["useVllm"], frozen["clamped"]) == (True, False, [])
    # 10 hours at 2.5 USD with a markup of 1.2, and 25 USD for judges.
    assert frozen["commitment"] == {
        "usd": "55", "rewardUsd": "25", "gpuUsd": "30", "usdPerGpuHour": "3", "basis": "platformGpu",
    }  # fmt: skip


def test_a_good_run_is_held_and_waits_and_goes_with_its_hold(alone_in_it: GrpoScene) -> None:
    scene = alone_in_it
    scene.start("good", autoAdopt=ADOPT | {"gpuType": scene.gpu, "region": "eu-west"}, promptTag=None)
    found = scene.settled("good")
    assert (found["status"], found["reason"]) == ("Unknown", "NotYetAvailable")
    run = scene.api.request("GET", scene.path("GrpoRun", "good"))
    status, uid = run["status"], run["metadata"]["uid"]
    is_ = {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
    assert is_["Reserved"] == ("True", "BudgetHeld")
    assert is_["Ready"] == ("False", "Waiting")
    assert is_["Reconciling"] == ("True", "Waiting")
    assert is_["Failed"][0] == "False"
    assert "Stalled" not in is_
    assert status["observedGeneration"] == 1
    assert "does not train GrpoRuns yet" in status["waiting"]
    # All that it may cost is held, at the rate of that moment, and both objects say the same.
    book = scene.book()
    assert (book["held"], book["balance"], book["spent"]) == ("55", "945", "0")
    assert book["holds"].keys() == {uid}
    assert book["holds"][uid]["amount"] == status["hold"]["usd"] == status["frozen"]["commitment"]["usd"] == "55"
    assert (status["hold"]["rate"], book["holds"][uid]["rate"]["region"]) == ("3", "eu-west")
    assert run["metadata"]["finalizers"] == ["halo.training/hold"]
    row = scene.kubectl("get", "grpo", "good").splitlines()
    columns = ["NAME", "MODEL", "REWARD", "STATE", "STEP", "REWARD$", "GPU-H", "VERDICT", "ADAPTER", "AGE"]
    assert row[0].split() == columns
    assert row[1].split()[:4] == ["good", scene.base, "single", "Waiting"]
    scene.kubectl("patch", "grpo", "good", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    eventually(lambda: scene.status("good")["observedGeneration"] == 2, "the change is seen")
    scene.kubectl("delete", "grpo", "good", "--timeout=20s")
    book = scene.book()
    assert (book["held"], book["balance"], book["spent"], book.get("holds", {})) == ("0", "1000", "0", {})
    (entry,) = book["settled"]
    assert (entry["run"]["uid"], entry["held"], entry["charged"], entry["outcome"]) == (uid, "55", "0", "Cancelled")


def test_one_that_is_refused_while_it_waits_is_charged_nothing_and_lets_go(alone_in_it: GrpoScene) -> None:
    scene = alone_in_it
    scene.start("drifts")
    scene.until("drifts", "NotYetAvailable")
    # What it was held at is what it is held at.
    scene.api.patch(f"{GROUP}/gpuclasses/{scene.gpu}", {"spec": {"prices": []}})
    scene.says("Criterion", "helpful", Calibrated="True", Drifted="True")
    scene.api.patch(scene.path("Dataset", "log"), {"metadata": {"annotations": {"look": "again"}}})
    scene.until("drifts", "CriterionDrifted")
    assert scene.condition("drifts", "Failed")["status"] == "True"
    reserved = scene.condition("drifts", "Reserved")
    assert (reserved["reason"], reserved["message"]) == ("Settled", "0 of 55 USD are charged, 55 released")
    assert scene.status("drifts")["frozen"]["commitment"]["usdPerGpuHour"] == "3"
    eventually(lambda: scene.book().get("held") == "0", "the hold is released")
    (entry,) = scene.book()["settled"]
    assert (entry["charged"], entry["outcome"]) == ("0", "CriterionDrifted")
    eventually(
        lambda: not scene.api.request("GET", scene.path("GrpoRun", "drifts"))["metadata"].get("finalizers"), "let go"
    )


AGENTIC = {"environment": TOOLS, "reward": {"mode": "single", "criterionId": "solved"}}
# what → changes of the spec, reason, words
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown-model": ({"model": "smol"}, "UnknownBaseModel", "spec.model: found 'smol'"),
    "slashed-model": ({"model": "Qwen/Qwen3-8B"}, "UnknownBaseModel", "spec.model: found 'Qwen/Qwen3-8B'"),
    "unknown-judge": ({"reward": {"mode": "single", "criterionId": "helpfull"}}, "UnknownCriterion", "did you mean helpful?"),
    "wrong-unit": ({"reward": {"mode": "single", "criterionId": "solved"}}, "CriterionWrongUnit", "needs unit request"),
    "wrong-unit-agentic": ({"environment": TOOLS}, "CriterionWrongUnit", "needs unit trace"),
    "no-alias": ({"autoAdopt": {"aliasName": "No Such/alias", "gpuType": "x", "region": "y"}}, "AliasMissing", "found 'No Such/alias'"),
    "unknown-gpu": ({"platformGpu": {"gpuType": "h1000", "region": "eu-west"}}, "UnknownGpuClass", "found 'h1000'"),
    "no-price": ({"platformGpu": {"region": "mars"}}, "NoPrice", "found 'mars'"),
    "too-dear": ({"gpuHourBudget": 1000}, "InsufficientFunds", "in all 3025 USD, but the wallet has "),
    "too-few-prompts": ({"promptTag": "support"}, "NotEnoughPrompts", "found 119 logged prompts with tag 'support', and 120 are needed"),
    "too-few-tasks": ({**AGENTIC, "tasksInline": [{"goal": [None, 1]}] * 12, "promptCount": 10}, "NotEnoughPrompts", "found 12 tasks, and 13 are needed"),
    "too-much-in-line": ({**AGENTIC, "tasksInline": [{"goal": ["x" * 7000]}] * 15, "promptCount": 10}, "InvalidSpec", "spec.tasksFrom"),
    "no-schema": ({"reward": {"mode": "compositional", "criterionIds": ["helpful"], "assertions": [{"type": "json_schema", "value": "["}]}}, "InvalidSpec", "no JSON schema"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_condition_refuses_within_seconds(scene: GrpoScene, name: str) -> None:
    changes, reason, words = REFUSED[name]
    if "platformGpu" in changes:
        changes = changes | {"platformGpu": {"gpuType": scene.gpu} | changes["platformGpu"]}
    scene.start(name, **changes)
    found = scene.settled(name)
    assert (found["status"], found["reason"]) == ("False", reason)
    assert words in found["message"]
    assert scene.condition(name, "Failed")["status"] == "True"


def test_the_namespace_decides_too(alone_in_it: GrpoScene) -> None:
    scene = alone_in_it
    changes: list[tuple[str, dict[str, Any], str]] = [
        ("off", {"features": {"fineTuning": False}}, "FeatureOff"),
        ("no-wallet", {"features": {"fineTuning": True}, "wallet": None}, "NoWallet"),
        ("no-storage", {"wallet": {"creditUsd": 54.999999}, "storage": None}, "StorageNotConfigured"),
        ("short", {"storage": {"claim": "halo-artifacts"}}, "InsufficientFunds"),
        ("enough", {"wallet": {"creditUsd": 55}}, "NotYetAvailable"),
    ]
    for name, spec, reason in changes:
        scene.change("Workspace", "workspace", **spec)
        scene.start(name)
        assert scene.settled(name)["reason"] == reason, name
    scene.change("Workspace", "workspace", autoProvision=False)
    scene.start("provisioned", platformGpu=None, autoProvision=True)
    assert scene.settled("provisioned")["reason"] == "ProvisioningNotConfigured"
    scene.change("Workspace", "workspace", wallet={"creditUsd": 80})
    scene.start("own", platformGpu=None)
    # Its GPU hours are not billed, its judges are.
    assert scene.settled("own")["reason"] == "NotYetAvailable"
    assert scene.status("own")["frozen"]["commitment"] == {
        "usd": "25", "rewardUsd": "25", "gpuUsd": "0", "basis": "byo",
    }  # fmt: skip
    assert (scene.book()["held"], scene.book()["balance"]) == ("80", "0")
    scene.change("ModelAlias", "support", canaries={"allowed": False})
    scene.start("adopting", autoAdopt=ADOPT)
    assert scene.settled("adopting")["reason"] == "CanaryNotAllowed"


def test_judges_are_calibrated_not_drifted_and_newer_than_the_policy(alone_in_it: GrpoScene) -> None:
    scene = alone_in_it
    scene.says("Criterion", "helpful", Calibrated="False")
    scene.start("uncalibrated")
    assert "not calibrated: so it is" in scene.settled("uncalibrated")["message"]
    scene.says("Criterion", "helpful", Calibrated="True", Drifted="True")
    scene.start("drifted")
    assert scene.settled("drifted")["reason"] == "CriterionDrifted"

    scene.says("Criterion", "helpful", Calibrated="True")
    # Nobody else may say which run made an adapter.
    scene.api.as_user(OPERATOR).post(scene.path("Adapter"), adapter(scene.base, "support-v1"))
    scene.counts(successful=500, servedBy=[{"adapter": "support-v1", "prompts": 400}])
    scene.start("old-grades")
    found = scene.settled("old-grades")
    assert found["reason"] == "GradesTooOld"
    assert "Adapter support-v1 of GrpoRun support-round-1, published 20" in found["message"]
    scene.says("Criterion", "helpful", graded("2099-01-01T00:00:00Z"), Calibrated="True")
    scene.start("new-grades")
    assert scene.settled("new-grades")["reason"] == "NotYetAvailable"


def adapter(base: str, name: str) -> dict[str, Any]:
    digest = "sha256:" + "a" * 64
    return body(
        "Adapter", name, base={"name": base, "revision": "sha256-0000000"}, rank=16, alpha=32, digest=digest,
        uri="pvc://halo-artifacts/x", files=[{"path": "adapter_model.safetensors", "sha256": digest, "size": 1}],
        trainedBy={"kind": "GrpoRun", "name": "support-round-1", "uid": "u", "step": 1},
    )  # fmt: skip


def graded(at: str) -> dict[str, Any]:
    facts = {"examples": 50, "agreement": "0.9", "datasetDigest": "x", "tokensIn": 500, "tokensOut": 50, "usd": "1"}
    return {"calibration": facts | {"newestGrade": at, "at": NOW}}


def test_what_nobody_has_counted_is_waited_for_and_goes_on_by_itself(alone_in_it: GrpoScene) -> None:
    scene = alone_in_it
    scene.api.delete(scene.path("Dataset", "log"))
    scene.start("waits", maxSteps=9000)
    assert scene.settled("waits")["status"] == "Unknown"
    assert scene.condition("waits", "Ready")["reason"] == "Waiting"
    assert scene.condition("waits", "Reconciling")["status"] == "True"
    assert "there is no Dataset of kind traffic in the namespace" in scene.status("waits")["waiting"]
    scene.create(body("Dataset", "log", kind="traffic", source="pvc://halo-data/log.jsonl", baseModels=[scene.base]))
    scene.counts(successful=500)
    scene.until("waits", "NotYetAvailable")
    assert "does not train GrpoRuns yet" in scene.status("waits")["waiting"]
    # The operator looked at the run again and again, and said once what it had to say.
    assert len([e for e in scene.events("waits") if e["reason"] == "Clamped"]) == 1


def test_a_settled_run_is_not_written_again(scene: GrpoScene) -> None:
    scene.start("settled", useVllm=True, vllmGpuMemoryUtilization=0.3, curriculumMixRatio=0.1, useCandidateQueue=False)
    scene.start("pending", useCandidateQueue=True, curriculumMixRatio=0.3)
    before = {}
    for name in ("settled", "pending"):
        scene.settled(name)
        before[name] = scene.api.request("GET", scene.path("GrpoRun", name))["metadata"]["resourceVersion"]
    assert scene.condition("pending", "Accepted")["reason"] == "DatasetPending"
    for turn in range(5):
        # Wakes what waits, and changes what does not matter.
        scene.api.patch(scene.path("Dataset", "log"), {"metadata": {"annotations": {"turn": str(turn)}}})
        time.sleep(0.4)
    for name, version in before.items():
        assert scene.api.request("GET", scene.path("GrpoRun", name))["metadata"]["resourceVersion"] == version


def test_of_forty_runs_at_once_twenty_may_start(alone_in_it: GrpoScene, operator: OperatorProcess) -> None:
    scene = alone_in_it
    scene.change("Workspace", "workspace", wallet={"creditUsd": 10000})
    for i in range(40):
        scene.start(f"run-{i}")
    reasons = [scene.settled(f"run-{i}", 60)["reason"] for i in range(40)]
    assert reasons.count("NotYetAvailable") == 20
    assert reasons.count("RateLimited") == 20
    assert scene.book()["held"] == "1100"
    limited = scene.condition(f"run-{reasons.index('RateLimited')}", "Accepted")["message"]
    assert "GrpoRuns of namespace" in limited
    assert "20 may start a minute" in limited
    assert operator.is_alive()


FIELDS: dict[str, Any] = {
    "model": "other",
    "reward": {"criterionId": "brief"},
    "promptCount": 11,
    "rewardBudgetUsd": 26,
    "gpuHourBudget": 13,
    "qlora": False,
    "paramsB": 8,
    "useVllm": True,
    "maxSteps": 5,
    "groupSize": 4,
    "promptTag": "a",
    "holdoutCount": 3,
    "useCandidateQueue": True,
    "curriculumMixRatio": 0.1,
    "maxCompletionTokens": 300,
    "vllmGpuMemoryUtilization": 0.2,
    "environment": TOOLS,
    "tasksInline": [{"goal": [1]}],
    "tasksFrom": "booking",
    "allowSideEffects": True,
    "platformGpu": {"gpuType": "a", "region": "b"},
    "autoProvision": True,
    "autoAdopt": ADOPT,
}


def test_every_field_but_suspend_is_tried() -> None:
    assert {field.alias or name for name, field in GrpoRunSpec.model_fields.items()} == {*FIELDS, "suspend"}


@pytest.fixture(scope="module")
def recorded(api: Api, shared_admin: Kubectl) -> str:
    """Where a run is stored."""
    collection = f"{GROUP}/namespaces/{shared_admin.namespace}/grporuns"
    api.post(collection, run())
    return f"{collection}/run"


@pytest.mark.parametrize("field", FIELDS)
def test_a_run_is_a_record(api: Api, recorded: str, field: str) -> None:
    with pytest.raises(Refused) as refused:
        api.patch(recorded, {"spec": {field: FIELDS[field]}})
    assert f"spec.{field}: " in str(refused.value)
    immutable = "is immutable: a run is a record of what was asked; apply a new GrpoRun under another name"
    assert immutable in str(refused.value)


def test_tasks_of_any_json_are_kept_and_can_be_suspended(shared_admin: Kubectl) -> None:
    """A null among them once made an object that no update could touch."""
    spec = EXEC["spec"] | {"tasksInline": [{"goal": [None, 1.5, {"x": [None, {"y": None}]}, "a"], "recorded": [None]}]}
    shared_admin("create", "-f", "-", stdin=body("GrpoRun", "anything", **spec))
    kept = json.loads(shared_admin("get", "grporun", "anything", "-o", "json"))["spec"]["tasksInline"]
    assert kept == spec["tasksInline"]
    shared_admin("patch", "grporun", "anything", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    operation = [{"op": "replace", "path": "/spec/tasksInline/0/goal/2/x/1/y", "value": 1}]
    said = shared_admin.refused("patch", "grporun", "anything", "--type=json", "-p", json.dumps(operation))
    assert "spec.tasksInline" in said


def test_what_the_schema_takes_the_operator_can_read(installed_chart: Kubectl) -> None:
    """Random specs, most of them extreme: the API server refuses one with 422, or the model reads what it has stored."""
    api, seen = Api.connect(installed_chart.kubeconfig), Counter[str]()

    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(specs())
    def tried(spec: dict[str, Any]) -> None:
        try:
            made = api.post(f"{GROUP}/namespaces/default/grporuns?dryRun=All", body("GrpoRun", "random", **spec))
        except Refused as refused:
            seen[str(refused.status)] += 1
            return
        resolve(GrpoRunSpec.model_validate(made["spec"]))
        seen["taken"] += 1

    tried()
    assert seen.keys() == {"422", "taken"}
