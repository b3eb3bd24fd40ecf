"""Whole stories on a real kubelet: real pods train a real model, and the bytes say what happened."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.kube import OPERATOR_NAMESPACE, ROOT, eventually, hack
from tests.cluster.conftest import Place, helm
from tests.cluster.runs import (
    apply_run,
    chat_file,
    condition,
    dataset,
    events_of,
    get,
    trainer_pods,
    wait_for,
    wait_for_checkpoint,
)

pytestmark = pytest.mark.cluster


def test_from_apply_to_a_published_adapter_and_nothing_left_after_delete(place: Place, tmp_path: Path) -> None:
    chat_file(place)
    # The run comes first, as it may in a Git commit: it waits for its data set and goes on by itself.
    apply_run(place, "story", steps=6)
    wait_for(place, "story", "Waiting")
    dataset(place)
    watching = [
        str(place.kubectl.tools / "kubectl"),
        "--kubeconfig",
        str(place.kubectl.kubeconfig),
        "-n",
        place.kubectl.namespace,
    ]
    # The table is another watch than the wait: its last row may come after the wait returns.
    table_file = tmp_path / "table"
    with (
        table_file.open("w") as out,
        subprocess.Popen([*watching, "get", "trainingjobs", "--watch", "--no-headers"], stdout=out) as table,
    ):
        try:
            waited = subprocess.run(
                [*watching, "wait", "--for=condition=Complete", "trainingjob/story", "--timeout=300s"],
                capture_output=True,
                text=True,
            )
            assert waited.returncode == 0, place.kubectl("describe", "trainingjob", "story")
            eventually(lambda: "Succeeded" in table_file.read_text(), "the table's last row", 30)
        finally:
            table.terminate()
    rows = table_file.read_text().splitlines()
    states = [word for row in rows for word in row.split() if word in ("Waiting", "Starting", "Running", "Succeeded")]
    assert list(dict.fromkeys(states)) == ["Waiting", "Starting", "Running", "Succeeded"]

    job, adapter = get(place, "trainingjob", "story"), get(place, "adapter", "story")
    assert job["status"]["progress"]["percent"] == 100
    assert adapter["spec"]["trainedBy"] == {
        "kind": "TrainingJob",
        "name": "story",
        "uid": job["metadata"]["uid"],
        "step": 6,
    }
    folder = place.path_of(adapter["spec"]["uri"])
    for file in adapter["spec"]["files"]:
        assert file["sha256"] == "sha256:" + hashlib.sha256((folder / file["path"]).read_bytes()).hexdigest()
    story = events_of(place, "story")
    assert story[0] == "DatasetPending"
    assert {"Started", "CheckpointSaved", "Succeeded"} <= set(story)
    assert story[-1] == "Succeeded"

    place.kubectl("delete", "trainingjob", "story", "--wait")
    eventually(lambda: place.kubectl("get", "pods,services", "-o", "name") == "", "no pod and no Service is left", 60)
    assert place.kubectl("get", "configmaps", "-o", "name") == "configmap/kube-root-ca.crt"
    assert get(place, "adapter", "story"), "the adapter outlives its run"


def test_the_same_seed_gives_the_same_bytes_killed_or_not_and_another_seed_gives_others(place: Place) -> None:
    chat_file(place)
    dataset(place)
    wait_for(place, "tickets", "Inspected", kind="dataset")
    apply_run(place, "straight", steps=8, lora={"dropout": 0.1})
    wait_for(place, "straight", "Succeeded")
    apply_run(place, "again", steps=8, lora={"dropout": 0.1})
    wait_for(place, "again", "Succeeded")
    apply_run(place, "other-seed", steps=8, lora={"dropout": 0.1}, seed=1)
    wait_for(place, "other-seed", "Succeeded")
    apply_run(place, "killed", steps=8, lora={"dropout": 0.1})
    wait_for_checkpoint(place, "killed", 2)
    victim = next(p["metadata"]["name"] for p in trainer_pods(place) if p["metadata"]["name"].startswith("killed"))
    place.kubectl("delete", "pod", victim, "--force", "--grace-period=0", "--wait=false")
    killed = wait_for(place, "killed", "Succeeded")

    adapters = {name: get(place, "adapter", name)["spec"] for name in ("straight", "again", "other-seed", "killed")}
    digests = {name: spec["digest"] for name, spec in adapters.items()}
    assert killed["status"]["attempt"] == 2
    assert digests["again"] == digests["straight"]
    assert digests["killed"] == digests["straight"]
    assert digests["other-seed"] != digests["straight"]
    assert adapters["killed"]["uri"] == adapters["straight"]["uri"], "equal bytes lie there once"


def test_an_old_trainer_that_nobody_could_stop_spoils_nothing(place: Place) -> None:
    chat_file(place)
    dataset(place)
    apply_run(place, "haunted", steps=8)
    wait_for_checkpoint(place, "haunted", 2)
    first = trainer_pods(place)[0]
    place.kubectl("delete", "pod", first["metadata"]["name"], "--force", "--grace-period=0", "--wait=false")
    # A node that nobody reaches goes on with attempt 1: the same trainer, run file and storage, outside the cluster's reach.
    volumes = place.folder / "volumes"
    volumes.mkdir()
    models = Path(hack("base-model")).parent
    for claim, target in (
        ("halo-models", models),
        ("halo-data", place.data),
        ("halo-artifacts", place.folder / "artifacts"),
    ):
        (volumes / claim).symlink_to(target)
    run_file = volumes / "run.json"
    run_file.write_text(first["metadata"]["annotations"]["halo.training/run-file"])
    zombie = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "halo_trainer",
            "train",
            "--run-file",
            str(run_file),
            "--volumes",
            str(volumes),
            "--report",
            str(volumes / "report.json"),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("operator", "trainer_image"))},
    )
    job = wait_for(place, "haunted", "Succeeded")
    assert zombie.wait(300) == 0, "it trains to its end"
    adapter = get(place, "adapter", "haunted")
    assert job["status"]["attempt"] == 2
    folder = place.path_of(adapter["spec"]["uri"])
    assert folder.parent.parent.joinpath(job["metadata"]["uid"], "a1", "adapter").exists(), "the old trainer did write"
    for file in adapter["spec"]["files"]:
        assert file["sha256"] == "sha256:" + hashlib.sha256((folder / file["path"]).read_bytes()).hexdigest()
    assert get(place, "trainingjob", "haunted")["status"] == job["status"]


def test_two_trainer_pods_meet_and_train_together(place: Place) -> None:
    chat_file(place)
    dataset(place)
    one_a_node = {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "GpuClass",
        "metadata": {"name": "one-a-node"},
        "spec": {"memoryGiB": 80, "perNode": 1, "perGpu": {"cpu": "250m", "memory": "3Gi"}},
    }
    place.kubectl("apply", "-f", "-", stdin=one_a_node)
    apply_run(place, "pair", gpu={"type": "one-a-node", "count": 2}, batch=4)
    job = wait_for(place, "pair", "Succeeded")
    layout = job["status"]["topology"]
    assert (layout["nodes"], layout["gpusPerNode"], layout["trainerGpus"]) == (2, 1, 2)
    assert len(trainer_pods(place)) == 2
    place.kubectl("delete", "trainingjob", "pair", "--wait")
    eventually(
        lambda: (
            place.kubectl("get", "pods,services", "-o", "name") == ""
            or "inspect" in place.kubectl("get", "pods", "-o", "name")
        ),
        "its Service went with it",
        60,
    )


def test_the_operator_is_killed_while_a_run_trains(place: Place) -> None:
    chat_file(place)
    dataset(place)
    apply_run(place, "survivor", steps=8)
    wait_for_checkpoint(place, "survivor", 2)
    place.kubectl(
        "-n",
        OPERATOR_NAMESPACE,
        "delete",
        "pods",
        "-l",
        "app.kubernetes.io/name=halo",
        "--force",
        "--grace-period=0",
        "--wait=false",
    )
    job = wait_for(place, "survivor", "Succeeded")
    assert (job["status"]["attempt"], job["status"]["failures"]) == (1, 0)
    # The last three, and the best should that be an earlier one.
    assert [c["step"] for c in job["status"]["checkpoints"]][-3:] == [4, 6, 8]
    assert len(trainer_pods(place)) == 1
    story = events_of(place, "survivor")
    assert story.count("Started") == story.count("Succeeded") == 1
    place.kubectl("-n", OPERATOR_NAMESPACE, "rollout", "status", "deployment/halo-operator", "--timeout=50s")


def test_suspend_keeps_the_work_and_resume_goes_on(place: Place) -> None:
    chat_file(place)
    dataset(place)
    apply_run(place, "paused", steps=8)
    wait_for_checkpoint(place, "paused", 2)
    place.kubectl("patch", "trainingjob", "paused", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    still = wait_for(place, "paused", "Suspended")
    eventually(lambda: trainer_pods(place) == [], "its pod is gone, and with it its GPUs")
    saved = still["status"]["checkpoints"][-1]["step"]
    place.kubectl("patch", "trainingjob", "paused", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    job = wait_for(place, "paused", "Succeeded")
    assert (job["status"]["attempt"], job["status"]["failures"]) == (2, 0)
    assert saved >= 2


def test_an_upgrade_restarts_nothing_and_a_missing_image_is_said_at_once(place: Place) -> None:
    chat_file(place)
    dataset(place)
    apply_run(place, "upgraded", steps=12)
    wait_for(place, "upgraded", "Running")
    before = trainer_pods(place)[0]["metadata"]["uid"]
    helm("--set", "trainer.image.tag=missing")
    try:
        dataset(place, "later")
        waiting = lambda: get(place, "dataset", "later").get("status", {}).get("waiting") or ""  # noqa: E731
        eventually(
            lambda: "halo-trainer:missing" in waiting() and "ErrImageNeverPull" in waiting(),
            "the Dataset says which image is missing",
            60,
        )
    finally:
        helm()
    eventually(
        lambda: condition(get(place, "dataset", "later"), "Ready")["status"] == "True", "it is read after all", 120
    )
    # What trains keeps its image; what publishes has the operator's own, whenever its training ended.
    job = wait_for(place, "upgraded", "Succeeded")
    assert (job["status"]["attempt"], trainer_pods(place)[0]["metadata"]["uid"]) == (1, before)


def test_deleting_the_namespace_of_a_running_run_leaves_nothing_stuck(place: Place) -> None:
    chat_file(place)
    dataset(place)
    apply_run(place, "doomed", steps=500)
    wait_for(place, "doomed", "Running")
    place.kubectl("delete", "namespace", place.kubectl.namespace, "--wait=false")
    eventually(place.is_gone, "the namespace is gone", 150)
    # What the fixture cleans up is made again, so that it finds it.
    place.kubectl("create", "namespace", place.kubectl.namespace)


def test_a_run_that_fits_no_node_is_queued_and_says_what_is_missing(place: Place) -> None:
    chat_file(place)
    dataset(place)
    huge = {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "GpuClass",
        "metadata": {"name": "sixteen-a-node"},
        "spec": {"memoryGiB": 80, "perNode": 16, "perGpu": {"cpu": "10m", "memory": "64Mi"}},
    }
    place.kubectl("apply", "-f", "-", stdin=huge)
    apply_run(place, "queued", gpu={"type": "sixteen-a-node", "count": 16}, batch=16)
    wait_for(place, "queued", "Queued", seconds=60)
    # The scheduler may first see claims that are not bound yet.
    waiting = lambda: get(place, "trainingjob", "queued")["status"].get("waiting") or ""  # noqa: E731
    eventually(lambda: "Insufficient nvidia.com/gpu" in waiting(), "it says what is missing", 60)
    assert condition(get(place, "trainingjob", "queued"), "Scheduled")["reason"] == "Unschedulable"
