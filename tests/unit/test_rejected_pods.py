"""Pods that a quota or a policy refuses: said once, tried again, and forgotten when they are there."""

from __future__ import annotations

from dataclasses import replace

from halo_api.conditions import Condition, condition_of
from halo_api.dataset import DatasetSpec, DatasetStatus
from halo_operator.plan.dataset import plan_dataset, rejected
from halo_operator.plan.moves import RECHECK_SECONDS
from halo_operator.plan.run import not_made, plan_run
from halo_operator.plan.world import DatasetWorld, Meta
from tests.unit.builders import ENVIRONMENT, NOW, base, pod, running, world

WHY = 'pods "run-trainer-0-a1-0123456789" is forbidden: exceeded quota: gpus'


def ready(conditions: list[Condition]) -> Condition:
    found = condition_of(conditions, "Ready")
    assert found
    return found


def test_a_run_says_what_refused_its_pod_and_tries_again_without_a_word() -> None:
    planned = plan_run(world(), NOW)
    assert planned.status
    started = replace(world(), status=planned.status)
    told = not_made(started, WHY, NOW)
    assert told.status
    assert told.status.waiting == WHY
    assert (ready(told.status.conditions).reason, ready(told.status.conditions).message) == ("Queued", WHY)
    assert [note.reason for note in told.notes] == ["PodRejected"]

    waiting = replace(started, status=told.status)
    assert not_made(waiting, WHY, NOW).status is None
    again = plan_run(waiting, NOW)
    assert (again.status, again.notes, again.requeue_after) == (None, (), RECHECK_SECONDS)
    assert [child["metadata"]["name"] for child in again.create] == [p["metadata"]["name"] for p in planned.create]

    there = plan_run(replace(waiting, pods=(running(pod()),)), NOW)
    assert there.status
    assert there.status.waiting is None
    assert ready(there.status.conditions).reason == "Running"


def test_a_dataset_says_what_refused_its_pod_and_tries_again_without_a_word() -> None:
    spec = DatasetSpec.model_validate({"kind": "chat", "source": "pvc://data/chat.jsonl", "baseModels": ["smol"]})
    meta = Meta(kind="Dataset", namespace="team", name="chat", uid="uid-2", generation=1)
    fresh = DatasetWorld(
        meta, spec, DatasetStatus(observed_generation=-1), (), ENVIRONMENT, {"smol": base()}, ("smol",)
    )
    planned = plan_dataset(fresh, NOW)
    assert planned.status
    told = rejected(replace(fresh, status=planned.status), WHY, NOW)
    assert told.status
    assert (told.status.waiting, ready(told.status.conditions).reason) == (WHY, "PodRejected")

    waiting = replace(fresh, status=told.status)
    again = plan_dataset(waiting, NOW)
    assert (again.status, again.notes, again.requeue_after) == (None, (), RECHECK_SECONDS)
    assert again.create == planned.create

    view = replace(pod(), role="inspect", owner_uid="uid-2", base_model="smol", base_revision=base().revision)
    there = plan_dataset(replace(waiting, pods=(view,)), NOW)
    assert there.status
    assert ready(there.status.conditions).reason == "Inspecting"
