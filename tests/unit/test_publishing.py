"""From what training left to the one Adapter: whatever is taken away, damaged, or dies meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from halo_api.conditions import condition_of, is_true
from halo_api.report import Outcome
from halo_api.run_file import PublishPlan
from halo_operator.plan.adapter import adapter_spec
from halo_operator.plan.run import not_made, plan_run
from halo_operator.plan.world import AdapterEntry, Plan, RunWorld
from tests.unit.builders import (
    NOW,
    catalog,
    checkpoint,
    ended,
    failure,
    pod,
    published,
    publisher,
    run_file,
    running,
    seconds,
    spec,
    success,
    taken,
    world,
)
from tests.unit.test_run_plan import published_run, started, state

STORE = "pvc://halo-artifacts/adapters"
CORRUPT = failure("CheckpointCorrupt", "found sha256:0, it was written with sha256:a")


def trained(step: int = 100, checkpoints: tuple[int, ...] = (50, 75, 100), **changes: Any) -> RunWorld:
    """A run whose trainer has just ended, with the checkpoints that the status knows."""
    at = started(**changes)
    outcome = success(step).model_copy(update={"reason": "Succeeded" if step == 100 else "BudgetReached"})
    view = replace(ended(running(pod()), outcome), image_id="trainer@sha256:1")
    known = [checkpoint(n) for n in checkpoints]
    found = [{"step": c.step, "attempt": 1, "uri": c.uri, "digest": c.digest, "at": c.at} for c in known]
    status = at.status.model_validate(at.status.to_json() | {"checkpoints": found})
    return replace(at, status=status, pods=(view,))


def go_on(at: RunWorld, after: float = 0) -> tuple[RunWorld, Plan[Any]]:
    plan = plan_run(at, NOW + seconds(after))
    return replace(at, status=plan.status or at.status), plan


def asked(plan: Plan[Any]) -> PublishPlan:
    (made,) = plan.create
    found = run_file(made).publish
    assert found
    return found


def play(at: RunWorld, *outcomes: Outcome | None) -> tuple[RunWorld, Plan[Any]]:
    """Let one pod after the other publish, and end so; None: as it should."""
    at, plan = go_on(at)
    for outcome in outcomes:
        (made,) = plan.create
        at = replace(at, pods=(*at.pods, publisher(made, outcome or published(asked(plan)))))
        at, plan = go_on(at, 3600)
    return at, plan


def failed(at: RunWorld) -> tuple[str, str]:
    found = condition_of(at.status.conditions, "Failed")
    assert found
    return (found.reason, found.message) if found.status == "True" else ("", "")


def test_what_was_trained_is_in_the_status_before_its_pods_go_and_a_pod_without_gpus_publishes_it() -> None:
    at, plan = go_on(trained())
    left = success().adapter
    assert left
    assert at.status.trained
    assert (at.status.trained.uri, at.status.trained.digest, at.status.trained.step) == (left.uri, left.digest, 100)
    (record,) = at.status.attempts
    assert (record.reason, record.images, bool(record.finished_at)) == ("Succeeded", ["trainer@sha256:1"], True)
    assert [ref.name for ref in plan.release] == [pod().ref.name]
    assert state(at.status) == "Publishing"
    to_do = asked(plan)
    assert (to_do.source.uri, to_do.source.digest, to_do.folder, to_do.store) == (left.uri, left.digest, "", STORE)
    text = str(plan.create[0]["spec"])
    assert "nvidia.com/gpu" not in text
    assert "finalizers" not in plan.create[0]["metadata"], "it is not metered"
    assert "serviceAccountToken" not in text, "it pushes no report, and has no token to lose"


def test_all_of_it_follows_from_the_status() -> None:
    at, plan = go_on(trained())
    # Its pods are taken away, the operator is another one, and somebody suspends it.
    at = replace(at, pods=(), report=None, spec=spec(suspend=True))
    again = plan_run(at, NOW + seconds(5))
    assert (again.create, again.status) == (plan.create, None)
    at, over = play(at, None)
    assert is_true(at.status.conditions, "Complete")
    assert (at.status.trained, at.status.adapter and at.status.adapter.uri) == (None, over.first[0]["spec"]["uri"])
    assert at.status.adapter
    assert at.status.adapter.uri == f"{STORE}/{at.status.adapter.digest.replace(':', '-')}"
    assert over.statement
    assert over.statement["predicate"]["images"] == {"publish": ["publisher@sha256:2"], "trainer": ["trainer@sha256:1"]}


def test_a_run_that_an_earlier_operator_accepted_is_published_by_an_image_that_knows_how() -> None:
    at = trained()
    before = at.status.model_validate(
        at.status.to_json() | {"frozen": at.status.to_json()["frozen"] | {"image": "trainer:0"}}
    )
    _, plan = go_on(replace(at, status=before))
    assert [container["image"] for container in plan.create[0]["spec"]["containers"]] == ["trainer:1"]


def test_how_an_attempt_ended_is_written_before_its_pods_are_let_go_whatever_the_status_said_of_them() -> None:
    # An operator saw the pods refused, and was away until they had trained to the end.
    at = trained()
    refused = not_made(at, "exceeded quota", NOW).status
    assert refused
    at, plan = go_on(replace(at, status=refused))
    assert plan.release
    assert plan.status
    assert plan.status.trained


def test_looking_again_while_a_pod_publishes_changes_nothing() -> None:
    at, plan = go_on(trained())
    for view in (publisher(plan.create[0]), replace(publisher(plan.create[0]), running=False)):
        nothing = plan_run(replace(at, pods=(*at.pods, view)), NOW)
        assert (nothing.status, nothing.create, nothing.delete, nothing.first) == (None, (), (), ())
    stuck = replace(publisher(plan.create[0]), running=False, blocked="no node", blocked_reason="Unschedulable")
    told = plan_run(replace(at, pods=(*at.pods, stuck)), NOW).status
    assert told
    assert (state(told), told.waiting) == ("Publishing", f"pod {stuck.ref.name}: no node")


def test_a_pod_that_never_runs_on_its_node_is_told_of_and_made_again() -> None:
    at, plan = go_on(trained())
    limit = at.environment.start_timeout_seconds
    view = replace(publisher(plan.create[0]), running=False, bound_at=NOW, node="node-3")
    at = replace(at, pods=(*at.pods, view))
    assert (go_on(at, 30)[1].status, go_on(at, 30)[1].requeue_after) == (None, 30)
    at, plan = go_on(at, 61)
    assert at.status.waiting
    assert at.status.waiting.startswith(f"pod {view.ref.name}: found it on node node-3 and not running after a minute")
    assert (plan.delete, plan.requeue_after) == ((), limit - 61)
    assert go_on(at, limit)[1].delete == (view.ref,)
    assert go_on(replace(at, pods=at.pods[:1]), limit + 1)[1].create


def test_a_pod_that_waits_for_an_image_which_the_operator_no_longer_has_is_made_again_at_once() -> None:
    at, plan = go_on(trained())
    view = publisher(plan.create[0], image="trainer:typo", image_pull_policy="IfNotPresent")
    view = replace(view, running=False, blocked="ErrImagePull: not found", blocked_reason="ImagePullFailed")
    stuck = replace(at, pods=(*at.pods, view))
    assert go_on(stuck)[1].delete == (view.ref,)
    assert go_on(replace(stuck, pods=(*at.pods, replace(view, image="trainer:1"))))[1].delete == ()
    assert go_on(at)[1].create


def test_a_run_at_its_end_whose_adapter_is_damaged_is_published_from_its_last_checkpoint_and_no_earlier() -> None:
    _, plan = play(trained(), CORRUPT)
    assert (asked(plan).source.step, asked(plan).folder) == (100, "adapter/")
    over, _ = play(trained(), CORRUPT, None)
    assert is_true(over.status.conditions, "Complete")
    over, _ = play(trained(), CORRUPT, CORRUPT)
    reason, words = failed(over)
    assert reason == "CheckpointCorrupt"
    assert words == (
        "attempt 1 has trained to the end, but the checkpoint of step 100 could not be published: found sha256:0, it was "
        "written with sha256:a; what it trained lies at pvc://halo-artifacts/uid-1/a1/adapter"
    )
    assert [r.reason for r in over.status.attempts] == ["Succeeded"]


def test_a_run_at_its_budget_falls_back_on_ever_earlier_checkpoints_but_never_on_a_later_one() -> None:
    steps = []
    at, plan = go_on(trained(step=75))
    for _ in range(3):
        steps.append((asked(plan).source.step, asked(plan).folder))
        at = replace(at, pods=(*at.pods, publisher(plan.create[0], CORRUPT)))
        at, plan = go_on(at)
    assert steps == [(75, ""), (75, "adapter/"), (50, "adapter/")]
    assert failed(at)[0] == "CheckpointCorrupt"


@pytest.mark.parametrize("reason", ["DiskFull", "PermissionDenied"])
def test_what_the_next_pod_would_meet_too_ends_the_run_at_once(reason: str) -> None:
    over, _ = play(trained(), failure(reason, "the volume is full"))
    assert failed(over)[0] == reason
    assert (
        "the adapter of step 100 could not be published: the volume is full; what it trained lies at" in failed(over)[1]
    )


def test_infrastructure_is_tried_again_ever_later_up_to_the_limit() -> None:
    at, plan = go_on(trained(spec=spec(backoffLimit=3)))
    waits = []
    for _ in range(3):
        at = replace(at, pods=(*at.pods, publisher(plan.create[0], failure("NodeLost"))))
        at, plan = go_on(at)
        waits.append(plan.requeue_after)
        at, plan = go_on(at, 400)
    assert waits == [None, 10, 20]
    at = replace(at, pods=(*at.pods, publisher(plan.create[0], failure("NodeLost", "gone"))))
    assert failed(go_on(at)[0])[0] == "NodeLost"


@pytest.mark.parametrize("field", ["digest", "uri"])
def test_a_pod_that_published_something_else_has_published_nothing(field: str) -> None:
    made = published().adapter
    assert made
    other = {"digest": "sha256:" + "0" * 64, "uri": "pvc://halo-artifacts/elsewhere"}[field]
    wrong = published().model_copy(update={"adapter": made.model_copy(update={field: other})})
    at, plan = play(trained(), wrong)
    assert (plan.first, len(plan.create), state(at.status)) == ((), 1, "Publishing")


def test_an_operator_that_died_after_the_adapter_was_made_takes_it_as_it_is() -> None:
    for pods_left in (True, False):
        done = published_run(trained())
        plan = plan_run(done, NOW)
        spec_ = adapter_spec(done.meta, done.spec, done.status.frozen, published().adapter)  # type: ignore[arg-type]
        there = replace(done, catalog=catalog(adapter=AdapterEntry("run", "uid-1", spec_)))
        there = there if pods_left else replace(there, pods=done.pods[:1])
        after = plan_run(there, NOW)
        assert (after.first, after.statement, after.create) == ((), None, ())
        assert after.status
        assert plan.status
        assert after.status.adapter == plan.status.adapter
        assert is_true(after.status.conditions, "Complete")


def test_an_adapter_that_another_run_made_meanwhile_is_never_touched() -> None:
    for at in (trained(), published_run(trained())):
        plan = plan_run(replace(at, catalog=catalog(adapter=taken("other"))), NOW)
        assert (plan.first, plan.create) == ((), ())
        assert plan.status
        assert failed(replace(at, status=plan.status))[0] == "AdapterNameTaken"


def test_equal_runs_have_equal_adapters_and_receipts_that_differ_in_run_times_and_usage_alone() -> None:
    """One is published at once; the other, of another name, from its last checkpoint, after a failure."""
    _, one = play(trained(), None)
    at = replace(trained(), meta=replace(world().meta, name="again", uid="uid-2"))
    _, other = play(
        replace(at, pods=tuple(replace(p, owner_uid="uid-2") for p in at.pods)), failure("Evicted"), CORRUPT, None
    )
    assert one.statement
    assert other.statement
    assert one.statement["subject"] == other.statement["subject"]
    said, again = one.statement["predicate"], other.statement["predicate"]
    assert {key for key in said if said[key] != again[key]} <= {"run", "times", "usage"}
    assert said.keys() == again.keys()
    assert one.first[0]["spec"]["uri"] == other.first[0]["spec"]["uri"]
