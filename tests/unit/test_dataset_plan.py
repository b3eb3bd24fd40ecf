"""What the operator does next with a Dataset, and which pod's word it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from halo_api.conditions import condition_of
from halo_api.dataset import DatasetSpec, DatasetStatus
from halo_api.report import InspectionReport, Outcome
from halo_api.run_file import RUN_ANNOTATION
from halo_operator.plan.dataset import plan_dataset
from halo_operator.plan.pod_view import pod_view
from halo_operator.plan.world import DatasetWorld, Meta, PodView
from tests.unit.builders import DIGEST, ENVIRONMENT, NOW, base, ended, pod

SPEC = DatasetSpec.model_validate({"kind": "chat", "source": "pvc://data/chat.jsonl", "baseModels": ["smol"]})
FRESH = DatasetWorld(
    meta=Meta(kind="Dataset", namespace="team", name="chat", uid="uid-1", generation=1),
    spec=SPEC,
    status=DatasetStatus(observed_generation=-1),
    pods=(),
    environment=ENVIRONMENT,
    bases={"smol": base(revision="rev-0001")},
    base_names=("smol",),
)
COUNTED = InspectionReport(
    sha256=DIGEST, rows=10, tokens=900, trained_tokens=300, longest_row=120, longer=({"tokens": 64, "rows": 3},)
)
COUNTS = Outcome(result="Succeeded", reason="Succeeded", inspection=COUNTED)


def made(world: DatasetWorld) -> PodView:
    """Return the one pod that the plan makes, as the operator will see it."""
    (child,) = plan_dataset(world, NOW).create
    meta = child["metadata"] | {"uid": f"pod-{child['metadata']['name']}"}
    return pod_view(child | {"metadata": meta}, NOW)


def test_pairs_are_inspected_as_pairs_and_what_nothing_reads_waits() -> None:
    pairs = replace(FRESH, spec=SPEC.model_copy(update={"kind": "preference"}))
    (child,) = plan_dataset(pairs, NOW).create
    assert '"kind":"preference"' in child["metadata"]["annotations"][RUN_ANNOTATION]
    plan = plan_dataset(replace(FRESH, spec=SPEC.model_copy(update={"kind": "traffic"})), NOW)
    assert plan.create == ()
    assert plan.status
    ready = condition_of(plan.status.conditions, "Ready")
    assert ready
    assert ready.reason == "NotYetAvailable"
    assert ready.message.endswith("only chat, preference and tasks are")


def test_tasks_are_counted_by_environment_and_tag_but_not_those_of_a_harness() -> None:
    spec = SPEC.model_copy(update={"kind": "tasks"})
    tasks = replace(FRESH, spec=spec)
    found = {"environments": ({"name": "sql", "rows": 10},), "tags": ({"name": "easy", "rows": 7},)}
    counts = COUNTS.model_copy(update={"inspection": InspectionReport.model_validate(COUNTED.model_dump() | found)})
    counted = plan_dataset(replace(tasks, pods=(ended(made(tasks), counts),)), NOW).status
    assert counted
    (inspection,) = counted.inspections
    assert [(one.name, one.rows) for one in (*inspection.environments, *inspection.tags)] == [("sql", 10), ("easy", 7)]
    harness = plan_dataset(replace(tasks, spec=spec.model_copy(update={"environment": "returns-desk-2"})), NOW)
    assert harness.create == ()
    assert harness.status
    assert harness.status.waiting
    assert "found returns-desk-2; this version does not inspect the tasks of a harness yet" in harness.status.waiting


def test_a_count_is_recorded_for_the_revision_whose_tokenizer_counted() -> None:
    reading = made(FRESH)
    counted = plan_dataset(replace(FRESH, pods=(ended(reading, COUNTS),)), NOW).status
    assert counted
    assert [(i.base_model, i.revision, i.longest_row) for i in counted.inspections] == [("smol", "rev-0001", 120)]


def test_the_count_of_a_revision_that_the_catalog_has_left_is_no_count_of_the_next() -> None:
    old = made(FRESH)
    changed = replace(FRESH, bases={"smol": base(revision="rev-0002")}, pods=(ended(old, COUNTS),))
    plan = plan_dataset(changed, NOW)
    assert plan.status
    assert plan.status.inspections == []
    assert plan.delete == (old.ref,)
    assert [child["metadata"]["name"] for child in plan.create] != [old.ref.name]


def test_a_file_that_changed_before_the_next_revision_counted_it_is_another_data_set() -> None:
    counted = plan_dataset(replace(FRESH, pods=(ended(made(FRESH), COUNTS),)), NOW).status
    assert counted
    upgraded = replace(FRESH, status=counted, bases={"smol": base(revision="rev-0002")})
    other = COUNTS.model_copy(update={"inspection": COUNTED.model_copy(update={"sha256": "sha256:" + "b" * 64})})
    told = plan_dataset(replace(upgraded, pods=(ended(made(upgraded), other),)), NOW).status
    assert told
    assert told.sha256 == DIGEST
    ready = condition_of(told.conditions, "Ready")
    assert ready
    assert ready.reason == "DatasetChanged"
    same = plan_dataset(replace(upgraded, pods=(ended(made(upgraded), COUNTS),)), NOW).status
    assert same
    assert [i.revision for i in same.inspections] == ["rev-0002"]


def test_a_pod_whose_image_was_put_right_since_is_made_again() -> None:
    typo = replace(FRESH, environment=replace(ENVIRONMENT, trainer_image="trainer:typo"))
    stuck = replace(made(typo), blocked="ErrImagePull: not found", blocked_reason="ImagePullFailed")
    assert plan_dataset(replace(typo, pods=(stuck,)), NOW).delete == ()
    right = plan_dataset(replace(FRESH, pods=(stuck,)), NOW)
    assert (right.delete, right.create) == ((stuck.ref,), ())
    assert plan_dataset(replace(FRESH, pods=(replace(stuck, deleting_since=NOW),)), NOW).delete == ()
    assert made(FRESH).image == "trainer:1"


def test_the_word_of_a_pod_is_that_of_its_own_container() -> None:
    over: dict[str, Any] = {"terminated": {"exitCode": 0, "message": COUNTS.termination_message()}}
    statuses = [{"name": "a-mesh", "state": {"running": {}}}, {"name": "trainer", "state": over}]
    body = {
        "metadata": {"namespace": "team", "name": "p", "uid": "u", "labels": {"halo.training/role": "trainer"}},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }
    view = pod_view(body, NOW)
    assert view.ended
    assert view.outcome == COUNTS
    assert not pod().ended
