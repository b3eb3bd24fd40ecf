"""What the webhook answers: the reconciler's refusals with their codes, warnings for what may still come, and nothing about the rest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from pydantic import ValidationError

from halo_api.adapter import AdapterStatus
from halo_api.base import ApiModel
from halo_api.conditions import Reason
from halo_api.gpu_class import GpuClassSpec
from halo_api.grpo_run import GrpoRunSpec
from halo_api.training_job import TrainingJobSpec
from halo_operator import admission
from halo_operator.cluster import Unreachable
from halo_operator.gather import Unreadable
from halo_operator.grpo import GrpoLooks
from halo_operator.plan.admission import first_refusal
from halo_operator.plan.budget import quote_of
from halo_operator.plan.grpo.world import GrpoWorld, Prompts
from halo_operator.plan.refusal import Refusal
from halo_operator.plan.world import Catalog, Meta
from tests.unit import builders, builders_grpo

Object = dict[str, Any]


def spec(**changes: Any) -> Object:
    return dict(builders.spec(**changes).to_json())


def review(operation: str = "CREATE", kind: str = "TrainingJob", **changes: Any) -> Object:
    """A review as the API server sends it."""
    body = {"metadata": {"name": "run", "namespace": "team", "uid": "uid-1"}, "spec": spec()}
    request = {
        "uid": "review-1",
        "kind": {"group": "halo.training", "version": "v1alpha1", "kind": kind},
        "operation": operation,
        "namespace": "team",
        "name": "run",
        "object": body,
        "oldObject": None,
        **changes,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def webhook(catalog: Catalog | Exception) -> admission.Webhook:
    async def look(namespace: str, name: str, _: TrainingJobSpec) -> Catalog:
        assert (namespace, name) == ("team", "run")
        if isinstance(catalog, Exception):
            raise catalog
        return catalog

    return admission.Webhook({"TrainingJob": admission.training_jobs(look, lambda: builders.ENVIRONMENT)})


def asked(body: Any, catalog: Catalog | Exception | None = None) -> tuple[int, Object]:
    """POST a body; return the HTTP code and the response that is in the answer."""

    async def post() -> tuple[int, Object]:
        app = web.Application()
        app.router.add_post(admission.PATH, webhook(catalog or builders.catalog()).answer)
        async with TestClient(TestServer(app)) as client:
            answer = await client.post(admission.PATH, data=body if isinstance(body, bytes) else json.dumps(body))
            return answer.status, (await answer.json())["response"] if answer.status == 200 else {}

    return asyncio.run(post())


def created(catalog: Catalog | None = None, **changes: Any) -> Object:
    body = {"metadata": {"name": "run", "uid": "uid-1"}, "spec": spec(**changes)}
    code, response = asked(review(object=body), catalog)
    assert (code, response["uid"]) == (200, "review-1")
    return response


def test_a_good_run_is_allowed_with_its_quote() -> None:
    response = created()
    assert response["allowed"] is True
    assert "status" not in response
    assert [line.split(":")[0] for line in response["warnings"]] == ["quote", "quote"]
    assert all(len(line) < admission.WARNING_LENGTH for line in response["warnings"])


def test_a_parent_that_was_found_wrong_before_may_be_right_by_now() -> None:
    """A run of this moment has it verified again, and so waits; with no time, what is known decides."""
    at = "2026-11-29T11:00:00Z"
    status = AdapterStatus.model_validate(
        {"verification": {"startedAt": at, "finishedAt": at, "digest": builders.DIGEST}}
    )
    found = builders.catalog(parent=replace(builders.parent("False"), status=status))
    body = {"metadata": {"name": "run", "uid": "uid-1"}, "spec": spec(parent={"adapter": "support-v3"})}
    _, response = asked(review(object=body), found)
    assert (response["allowed"], response["status"]["details"]["causes"][0]["reason"]) == (False, "ParentUnfit")
    body["metadata"]["creationTimestamp"] = "2026-11-29T12:00:00Z"
    _, response = asked(review(object=body), found)
    assert response["allowed"] is True
    assert "waits: spec.parent.adapter: found support-v3, which is being verified again" in response["warnings"][-1]


def test_it_refuses_what_the_reconciler_refuses_in_its_words_and_code() -> None:
    unknown = builders.catalog(base=None)
    found = first_refusal(builders.world(catalog=unknown))
    assert found
    response = created(unknown)
    assert response["allowed"] is False
    assert "patch" not in response
    status = response["status"]
    assert (status["code"], status["reason"]) == (400, "BadRequest")
    assert status["message"] == f"{found.message} (UnknownBaseModel)"
    cause = {"field": "spec.baseModel", "reason": "UnknownBaseModel", "message": found.message}
    assert status["details"] == {"causes": [cause]}


@pytest.mark.parametrize(
    ("code", "reason"),
    [(400, "BadRequest"), (402, "PaymentRequired"), (403, "Forbidden"), (404, "NotFound"), (429, "TooManyRequests")],
)
def test_every_code_has_its_reason(code: int, reason: str) -> None:
    status = admission.status_of(Refusal(Reason.UNFIT, "spec.gpu: no", code=code))
    assert (status["code"], status["reason"]) == (code, reason)


def test_what_may_still_come_is_a_warning() -> None:
    response = created(builders.catalog(dataset=None))
    assert response["allowed"] is True
    (line,) = (line for line in response["warnings"] if line.startswith("waits: "))
    assert "spec.lora.dataset" in line


def test_what_is_not_built_yet_is_refused_with_a_quote_and_nothing_else_is() -> None:
    later = Refusal(Reason.NOT_YET_AVAILABLE, "spec.base: later")
    for refusal, lines in ((None, 2), (later, 2), (Refusal(Reason.UNFIT, "spec.gpu: no"), 0)):
        decision = admission.quoted(admission.Decision(refusal), quote_of(builders.world()))
        assert len(admission.review_of("u", decision)["response"].get("warnings", ())) == lines


class Looks:
    """What a GrpoRun finds; `world_of` as GrpoLooks has it."""

    def __init__(self, **changes: Any) -> None:
        self._changes = changes

    async def world_of(self, meta: Meta, created_at: datetime, spec: GrpoRunSpec) -> GrpoWorld:
        found = builders_grpo.catalog(**self._changes)
        return replace(builders_grpo.world(found), meta=meta, created_at=created_at, spec=spec)


def grpo(catalog: Object, **changes: Any) -> admission.Decision:
    body = {"metadata": {"name": "run", "uid": "uid-1"}, "spec": builders_grpo.body(**changes)}
    judge = admission.grpo_runs(cast(GrpoLooks, Looks(**catalog)), lambda: builders.NOW)
    asked = admission.asked_of(json.dumps(review(kind="GrpoRun", object=body)).encode())
    return asyncio.run(cast(Coroutine[Any, Any, admission.Decision], judge(asked)))


def test_a_good_grpo_run_is_taken_with_its_quote_what_is_not_used_as_it_was_asked_and_what_it_waits_for() -> None:
    decision = grpo({}, maxSteps=9999)
    assert decision.refusal is None
    quote, *rest = (line for line in decision.warnings if not line.startswith("quote: first checkpoint"))
    assert quote.startswith("quote: ")
    assert rest[0].startswith("spec.maxSteps: found 9999, used is 5000")
    assert rest[1].startswith(
        "waits: kind: found GrpoRun, all checks of which hold, but this version does not train GrpoRuns yet"
    )
    assert len(rest) == 2


def test_a_grpo_run_that_waits_is_allowed_and_one_without_money_is_not() -> None:
    waiting = grpo({"traffic": Prompts()})
    assert waiting.refusal is None
    assert waiting.warnings[-1].startswith("waits: ")
    poor = grpo({"workspace": builders_grpo.workspace(wallet={"creditUsd": 1})})
    assert poor.refusal
    assert poor.refusal.code == 402
    assert poor.warnings == ()


def test_an_object_that_cannot_be_read_is_a_warning_too() -> None:
    old = {"kind": "GpuClass", "metadata": {"name": "h100"}, "spec": {"memoryGiB": 0}}
    code, response = asked(review(), Unreadable(old, "spec", error_of(GpuClassSpec, old["spec"])))
    assert (code, response["allowed"]) == (200, True)
    assert response["warnings"][0].startswith("waits: GpuClass h100: spec.memoryGiB: found '0'")


def error_of(model: type[ApiModel], spec: Any) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(spec)
    return caught.value


def test_and_hides_nothing_that_is_wrong() -> None:
    pending = lambda _: Refusal(Reason.DATASET_PENDING, "later", pending=True)  # noqa: E731
    wrong = lambda _: Refusal(Reason.UNFIT, "never")  # noqa: E731
    assert admission.decided(builders.world(), (pending, wrong)).refusal == wrong(None)
    assert admission.decided(builders.world(), (pending,)).warnings == ("waits: later",)


def test_a_spec_that_can_not_be_read_is_refused_with_what_was_found() -> None:
    body = {"metadata": {"name": "run"}, "spec": spec() | {"steps": "many"}}
    _, response = asked(review(object=body))
    assert response["allowed"] is False
    assert response["status"]["code"] == 400
    assert response["status"]["message"].startswith("spec.steps: found 'many', ")
    assert response["status"]["message"].endswith("(InvalidSpec)")


Change = Callable[[Object], Object]


def budget(hours: float | None) -> Object:
    return {
        "metadata": {"name": "run", "uid": "uid-1"},
        "spec": spec() | ({"budget": {"h100Hours": hours}} if hours else {}),
    }


@pytest.mark.parametrize(
    ("old", "new", "concerned"),
    [(1, 2, True), (None, 2, True), (2, 1, False), (2, None, False), (2, 2, False), (None, None, False)],
)
def test_an_update_is_looked_at_only_if_it_raises_the_budget(
    old: float | None, new: float | None, concerned: bool
) -> None:
    body = review("UPDATE", object=budget(new), oldObject=budget(old))
    assert admission.concerns_us(admission.asked_of(json.dumps(body).encode())) is concerned


@pytest.mark.parametrize(
    "body",
    [
        review("DELETE", object=None, oldObject=budget(1)),
        review("CONNECT"),
        review(kind="Dataset"),
        review(object={"metadata": {"name": "run", "deletionTimestamp": "2026-11-29T12:00:00Z"}, "spec": {}}),
    ],
    ids=["delete", "connect", "another kind", "one that goes"],
)
def test_the_rest_passes_without_a_look(body: Object) -> None:
    assert asked(body, AssertionError("looked")) == (200, {"uid": "review-1", "allowed": True})


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b"null", {"kind": "AdmissionReview"}, review() | {"apiVersion": "admission.k8s.io/v1beta1"}],
)  # fmt: skip
def test_what_is_no_review_is_no_answer(body: Any) -> None:
    assert asked(body) == (400, {})


@pytest.mark.parametrize(("error", "code"), [(Unreachable(0, "down"), 503), (KeyError("bug"), 500)])
def test_a_check_that_could_not_be_made_is_left_to_the_failure_policy(error: Exception, code: int) -> None:
    assert asked(review(), error) == (code, {})


def test_warnings_are_single_lines_that_the_api_server_passes_on_whole() -> None:
    decision = admission.Decision(warnings=tuple(f"{n}\n" + "x" * 400 for n in range(30)))
    lines = admission.review_of("u", decision)["response"]["warnings"]
    assert all(len(line) <= 250 and "\n" not in line for line in lines)
    assert sum(map(len, lines)) <= 4096
