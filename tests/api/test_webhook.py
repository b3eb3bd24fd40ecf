"""The webhook through real kubectl: what it refuses and says, what never passes it, and that nothing depends on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.api.client import Api, Object, Refused
from tests.api.kube import OPERATOR, Kubectl
from tests.api.operator_process import OperatorProcess, free_port, replica, training_job
from tests.api.stage import GROUP, Stage
from tests.api.webhook import Served, Webhook, configured, reviews, served, settings

pytestmark = pytest.mark.api

STATUS = {"conditions": [], "observedGeneration": 1}


@dataclass
class Scene:
    """A namespace with an inspected data set, an operator that leads, and the configuration that leads to it."""

    stage: Stage
    operator: OperatorProcess
    webhook: Webhook


@pytest.fixture(scope="module")
def served_here(installed_chart: Kubectl, api: Api, alone: None) -> Iterator[Served]:
    """One operator for all: a test may kill it, and point the configuration elsewhere."""
    with served(installed_chart, api) as found:
        yield found


@pytest.fixture
def scene(stage: Stage, served_here: Served) -> Scene:
    return Scene(stage, served_here.operator, served_here.join(stage))


def workspace(stage: Stage, **spec: Any) -> None:
    body = {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "Workspace",
        "metadata": {"name": "workspace"},
        "spec": spec,
    }
    stage.api.post(f"{GROUP}/namespaces/{stage.namespace}/workspaces", body)


def gpus(base: str, count: int) -> Object:
    return {"gpu": {"type": base, "count": count}, "batch": count}


# what is wrong → the Workspace it takes, changes of a good run, kubectl's word for the code, the reason at the end
REFUSALS: dict[str, tuple[Object, Object, str, str]] = {
    "no such base": ({}, {"baseModel": "smol"}, "BadRequest", "UnknownBaseModel"),
    "no such gpu": ({}, {"gpu": {"type": "h1000", "count": 1}}, "BadRequest", "UnknownGpuClass"),
    "gpus over one node": ({}, {"gpu": {"count": 9}, "batch": 9}, "BadRequest", "Unfit"),
    "a row that does not fit": ({}, {"lora": {"dataset": "chat", "maxLength": 100}}, "BadRequest", "RowTooLong"),
    "a budget where none belongs": ({}, {"budget": {"h100Hours": 1}}, "BadRequest", "BudgetNotAllowed"),
    "a budget too small": (
        {"allocation": {"h100Hours": 100}},
        {"budget": {"h100Hours": 0.001}},
        "BadRequest",
        "BudgetTooSmall",
    ),
    "no money": (
        {"allocation": {"h100Hours": 5}},
        {"budget": {"h100Hours": 50}},
        "PaymentRequired",
        "InsufficientFunds",
    ),
    "feature off": ({"features": {"fineTuning": False}}, {}, "NotFound", "FeatureOff"),
}


def changed(stage: Stage, changes: Object, name: str = "run") -> Object:
    body = training_job(stage.base, name)
    for key, value in changes.items():
        body["spec"][key] = body["spec"][key] | value if isinstance(body["spec"].get(key), dict) else value
    return body


def test_what_is_wrong_is_refused_with_its_code_and_reason(scene: Scene) -> None:
    stage = scene.stage
    stage.inspected_dataset()
    for what, (has, changes, word, reason) in REFUSALS.items():
        if has:
            workspace(stage, **has)
        body = changed(stage, changes)
        said = scene.webhook.create(body)
        if has:
            stage.api.delete(f"{GROUP}/namespaces/{stage.namespace}/workspaces/workspace")
        assert said.returncode == 1, what
        assert said.stderr.startswith(f"Error from server ({word}): "), (what, said.stderr)
        assert said.stderr.strip().endswith(f"({reason})"), (what, said.stderr)
        assert "denied the request: spec" in said.stderr, said.stderr
    assert stage.api.items(stage.path("trainingjobs")) == []


def test_grpo_runs_are_asked_about_too_and_only_so_many_a_minute(scene: Scene) -> None:
    stage = scene.stage
    workspace(stage, wallet={"creditUsd": 1000}, storage={"claim": "halo-artifacts"}, startsPerMinute=1)
    model = f"{GROUP}/basemodels/{stage.base}"
    stage.api.patch(model, {"spec": {"offers": ["lora_trl", "grpo"]}})
    priced = {"prices": [{"region": "eu", "usdPerHour": 2.5}]}
    stage.api.patch(f"{GROUP}/gpuclasses/{stage.base}", {"spec": priced})
    judge = stage.api.post(stage.path("criteria"), CRITERION)
    stage.api.request("PUT", stage.path("criteria", "helpful/status"), judge | {"status": {"conditions": [CALIBRATED]}})
    # There is no traffic to draw prompts from, so that a run waits for it.
    waits = scene.webhook.create(grpo_run(stage.base, "first"), "--dry-run=server")
    assert "Warning: waits: spec.promptCount: " in waits.stderr
    stage.api.post(stage.path("datasets"), LOG | {"spec": LOG["spec"] | {"baseModels": [stage.base]}})
    stage.api.patch(stage.path("datasets", "log/status"), {"status": {"traffic": {"successful": 500}}})
    good, trains = (
        grpo_run(stage.base, "first", maxSteps=9999),
        "Warning: waits: kind: found GrpoRun, all checks of which hold",
    )
    stage.until(lambda: trains in scene.webhook.create(good, "--dry-run=server").stderr, "the traffic is counted")
    first = scene.webhook.create(good)
    assert first.returncode == 0, first.stderr
    assert "Warning: quote: " in first.stderr
    assert trains in first.stderr
    assert "Warning: spec.maxSteps: found 9999, used is 5000: clamped to 1 to 5000" in first.stderr
    second = scene.webhook.create(grpo_run(stage.base, "second"))
    assert second.stderr.startswith("Error from server (TooManyRequests): ")
    assert "(RateLimited)" in second.stderr
    # Who may not make one is told so by the API server, before any review.
    before = reviews(scene.operator)
    member = stage.kubectl.as_user("member").run("create", "-f", "-", stdin=grpo_run(stage.base, "third"))
    assert "Error from server (Forbidden)" in member.stderr
    assert reviews(scene.operator) == before


CALIBRATED = {
    "type": "Calibrated",
    "status": "True",
    "reason": "Calibrated",
    "message": "agrees with people",
    "observedGeneration": 1,
    "lastTransitionTime": "2026-11-29T12:00:00Z",
}
LOG: Object = {
    "apiVersion": "halo.training/v1alpha1",
    "kind": "Dataset",
    "metadata": {"name": "log"},
    "spec": {"kind": "traffic", "source": "pvc://halo-data/log.jsonl"},
}
CRITERION = {
    "apiVersion": "halo.training/v1alpha1",
    "kind": "Criterion",
    "metadata": {"name": "helpful"},
    "spec": {
        "unit": "request",
        "rubric": "Is the answer right and short?",
        "judge": {"url": "https://judge.example/v1", "model": "judge-1", "inputUsd": 0.4, "outputUsd": 1.6},
    },
}


def grpo_run(base: str, name: str, **spec: Any) -> Object:
    return {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "GrpoRun",
        "metadata": {"name": name},
        "spec": {
            "model": base,
            "reward": {"mode": "single", "criterionId": "helpful"},
            "promptCount": 100,
            "rewardBudgetUsd": 25,
            "gpuHourBudget": 10,
            "platformGpu": {"gpuType": base, "region": "eu"},
            **spec,
        },
    }


def test_the_reason_can_be_read_by_a_program(scene: Scene) -> None:
    api, body = scene.stage.api, json.dumps(changed(scene.stage, {"baseModel": "smol"}))
    url = api.url + scene.stage.path("trainingjobs")
    answer = api.pool.request("POST", url, body=body, headers={"Content-Type": "application/json"})
    status = json.loads(answer.data)
    assert (answer.status, status["code"]) == (400, 400)
    (cause,) = status["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("UnknownBaseModel", "spec.baseModel")


def test_what_the_schema_refuses_is_the_api_server_s_and_no_review_is_made(scene: Scene) -> None:
    before = reviews(scene.operator)
    said = scene.webhook.create(changed(scene.stage, {"steps": 0}))
    assert "is invalid: spec.steps" in said.stderr
    with pytest.raises(Refused) as refused:
        scene.stage.create(changed(scene.stage, {"steps": 0}))
    assert refused.value.status == 422
    assert reviews(scene.operator) == before


@pytest.mark.parametrize("options", [("--dry-run=server",), ()], ids=["dry run", "for real"])
def test_a_good_run_is_answered_with_its_quote_and_left_as_it_is(scene: Scene, options: tuple[str, ...]) -> None:
    stage = scene.stage
    stage.inspected_dataset()
    body = training_job(stage.base)
    said = scene.webhook.create(body, *options, "-o", "json")
    assert said.returncode == 0, said.stderr
    quote, detail = said.stderr.strip().splitlines()
    assert quote.startswith("Warning: quote: ")
    assert "H100-hours" in quote
    assert "roofline" in quote
    assert "first checkpoint after" in detail
    if options:
        assert stage.api.get(stage.path("trainingjobs", "run")) is None
    else:
        assert body["spec"].items() <= stage.run()["spec"].items()
        stage.pod()


def test_what_may_still_come_is_a_warning_and_the_run_waits(scene: Scene) -> None:
    said = scene.webhook.create(training_job(scene.stage.base))
    assert said.returncode == 0
    assert "Warning: waits: spec.lora.dataset: " in said.stderr
    scene.stage.until_state("Waiting")


def test_while_no_operator_answers_runs_are_taken_and_then_refused_in_the_same_words(scene: Scene) -> None:
    stage, body = scene.stage, changed(scene.stage, {"baseModel": "smol"})
    refused = scene.webhook.create(body).stderr.strip().partition("denied the request: ")[2]
    scene.operator.kill()
    assert scene.webhook.create(body).returncode == 0
    scene.operator.start()
    stage.until_state("Refused", seconds=60)
    failed = stage.condition("Failed")
    assert f"{failed['message']} ({failed['reason']})" == refused


def test_nothing_but_new_runs_and_budgets_waits_for_it(scene: Scene) -> None:
    stage = scene.stage
    workspace(stage, allocation={"h100Hours": 1000})
    funded = {"budget": {"h100Hours": 5}}
    for name in ("run", "other"):
        assert scene.webhook.create(changed(stage, funded, name)).returncode == 0
    stage.until_state("Waiting")
    scene.webhook.change(failurePolicy="Fail")
    scene.operator.kill()
    scene.webhook.until_unanswered()
    path = stage.path("trainingjobs", "run")
    with pytest.raises(Refused, match="failed calling webhook"):
        stage.api.patch(path, {"spec": {"budget": {"h100Hours": 6}}})
    stage.kubectl("label", "trainingjob", "run", "a=b")
    stage.kubectl("patch", "trainingjob", "run", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    stage.kubectl("patch", "trainingjob", "run", "--type=merge", "-p", '{"metadata":{"finalizers":["a.example/b"]}}')
    stage.api.as_user(OPERATOR).request("PUT", f"{path}/status", stage.run() | {"status": STATUS})
    stage.kubectl("delete", "trainingjob", "run", "--wait=false")
    stage.kubectl("patch", "trainingjob", "run", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    assert stage.api.get(path) is None
    stage.kubectl("delete", "trainingjob", "--all")
    # What is no run never waits for it either.
    stage.kubectl("delete", "workspace", "workspace")
    scene.operator.start()
    scene.operator.wait_until_leading()


def test_a_raised_budget_is_checked_and_nothing_else_is(scene: Scene) -> None:
    stage = scene.stage
    workspace(stage, allocation={"h100Hours": 10})
    stage.inspected_dataset()
    assert scene.webhook.create(changed(stage, {"budget": {"h100Hours": 5}, "suspend": True})).returncode == 0
    stage.until_state("Suspended")
    before = reviews(scene.operator)
    stage.kubectl("label", "trainingjob", "run", "a=b")
    stage.kubectl("patch", "trainingjob", "run", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    stage.pod()
    assert reviews(scene.operator) == before
    raise_to = ("patch", "trainingjob", "run", "--type=merge", "-p")
    assert "(InsufficientFunds)" in stage.kubectl.refused(*raise_to, '{"spec":{"budget":{"h100Hours":500}}}')
    stage.kubectl(*raise_to, '{"spec":{"budget":{"h100Hours":6}}}')
    assert reviews(scene.operator) == before + 2


def test_a_standby_answers_too(scene: Scene, installed_chart: Kubectl) -> None:
    with replica(installed_chart, **settings(port := free_port())) as standby:
        scene.stage.until(lambda: reviews_or_none(standby) is not None, "the standby serves")
        scene.webhook.lead_to(port)
        scene.stage.until(lambda: asked(scene) and reviews(standby) > 0, "the standby was asked")
        assert "leading" not in standby.said()
        assert "(UnknownBaseModel)" in scene.webhook.create(changed(scene.stage, {"baseModel": "smol"})).stderr


def asked(scene: Scene) -> bool:
    return scene.webhook.create(changed(scene.stage, {"baseModel": "smol"}), "--dry-run=server").returncode != 0


def reviews_or_none(operator: OperatorProcess) -> int | None:
    try:
        return reviews(operator)
    except OSError:
        return None


def test_without_its_configuration_nothing_holds_up_an_apply(stage: Stage) -> None:
    port = free_port()
    with configured(stage, port, "halo-webhook-alone", **{"webhook.failurePolicy": "Fail"}) as webhook:
        webhook.until_unanswered()
    stage.until(lambda: webhook.create(training_job(stage.base)).returncode == 0, "the run is taken")
