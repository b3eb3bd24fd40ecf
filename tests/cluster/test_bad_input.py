"""Bad input on real pods: one sentence that names where, what was found and what would do, and nothing left running."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.api.kube import eventually
from tests.cluster.conftest import Place
from tests.cluster.runs import apply_run, chat_file, condition, dataset, get, trainer_pods, wait_for

pytestmark = pytest.mark.cluster

GOOD = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}


@pytest.mark.parametrize(
    ("what", "second_line", "reason", "words"),
    [
        ("malformed", '{"messages": [', "BadRow", "line 2"),
        ("silent", json.dumps({"messages": [{"role": "user", "content": "Hi"}]}), "BadRow", "line 2"),
    ],
)
def test_a_bad_row_is_named_by_its_line(place: Place, what: str, second_line: str, reason: str, words: str) -> None:
    (place.data / "bad.jsonl").write_text(json.dumps(GOOD) + "\n" + second_line + "\n")
    dataset(place, what, "bad.jsonl")
    apply_run(place, "hopeless", lora={"dataset": what})
    job = wait_for(place, "hopeless", "Refused", seconds=90)
    stalled = condition(get(place, "dataset", what), "Stalled")
    assert (stalled["reason"], condition(job, "Failed")["reason"]) == (reason, "DatasetInvalid")
    assert words in stalled["message"]
    assert stalled["message"] in condition(job, "Failed")["message"]
    assert trainer_pods(place) == []


def test_a_data_set_that_changed_after_its_inspection_is_refused_by_the_trainer(place: Place) -> None:
    chat_file(place)
    dataset(place)
    wait_for(place, "tickets", "Inspected", kind="dataset")
    chat_file(place, rows=33)
    apply_run(place, "changed")
    job = wait_for(place, "changed", "Failed")
    failed = condition(job, "Failed")
    assert failed["reason"] == "DatasetChanged"
    assert get(place, "dataset", "tickets")["status"]["sha256"].removeprefix("sha256:")[:12] in failed["message"]
    assert job["status"]["attempt"] == 1, "a user's error is not tried again"
    # The kubelet says that the container ended a moment before it calls the pod failed.
    eventually(lambda: [p["status"]["phase"] for p in trainer_pods(place)] == ["Failed"], "nothing is left running")


def test_a_full_disk_ends_the_run_with_what_would_help(place: Place) -> None:
    chat_file(place)
    dataset(place)
    wait_for(place, "tickets", "Inspected", kind="dataset")
    artifacts = place.folder / "artifacts"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=0777", "tmpfs", str(artifacts)], check=True)
    try:
        apply_run(place, "full", lora={"rank": 16})
        failed = condition(wait_for(place, "full", "Failed"), "Failed")
        assert failed["reason"] == "DiskFull"
    finally:
        place.kubectl("delete", "trainingjob", "full", "--wait")
        subprocess.run(["umount", "--lazy", str(artifacts)], check=True)


def test_a_trainer_that_needs_more_memory_than_its_limit_ends_as_out_of_memory(place: Place) -> None:
    chat_file(place)
    dataset(place)
    small = {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "GpuClass",
        "metadata": {"name": "too-small"},
        "spec": {"memoryGiB": 80, "perGpu": {"cpu": "250m", "memory": "500Mi"}},
    }
    place.kubectl("apply", "-f", "-", stdin=small)
    apply_run(place, "greedy", gpu={"type": "too-small", "count": 1})
    job = wait_for(place, "greedy", "Failed")
    assert (condition(job, "Failed")["reason"], job["status"]["attempt"]) == ("OutOfMemory", 1)
