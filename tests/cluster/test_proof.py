"""Proof on a real kubelet: adapters that continue one another, each checked by others, and a publication that is killed."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

import pytest

from halo_api.receipt import RECEIPT_ANNOTATION, Statement
from halo_api.receipt_check import stated, unwrapped
from tests.api.kube import OPERATOR_NAMESPACE, ROOT, eventually
from tests.cluster.conftest import Place
from tests.cluster.runs import apply_run, chat_file, condition, dataset, get, preference_file, wait_for
from tests.unit.test_receipt_foreign import run as foreign

pytestmark = pytest.mark.cluster

# What identifies, dates or meters a run; all else of two equal runs is equal.
A_RUN_S_OWN = {"run", "times", "usage"}


def halo(place: Place, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `kubectl halo` in the namespace."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "operator"), "KUBECONFIG": str(place.kubectl.kubeconfig)}
    environment["PATH"] = f"{place.kubectl.tools}:{environment['PATH']}"
    command = [sys.executable, "-m", "halo_cli", *arguments, "-n", str(place.kubectl.namespace)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def verified(place: Place, name: str) -> dict[str, Any]:
    """The Adapter, once the cluster has hashed its files again and found it right."""
    eventually(
        lambda: condition(get(place, "adapter", name), "Verified")["status"] == "True", f"{name} is verified", 90
    )
    return get(place, "adapter", name)


def statement(adapter: dict[str, Any]) -> Statement:
    """What its receipt says."""
    payload, _signatures = unwrapped(adapter["metadata"]["annotations"][RECEIPT_ANNOTATION].encode())
    return stated(payload)


def holds(place: Place, adapter: dict[str, Any]) -> bool:
    """Whether each file lies where the Adapter says, with the bytes that it says."""
    folder = place.path_of(adapter["spec"]["uri"])
    found = {
        str(path.relative_to(folder)): "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
    return found == {file["path"]: file["sha256"] for file in adapter["spec"]["files"]}


@pytest.mark.slow
def test_a_chain_of_adapters_is_proven_link_by_link(place: Place, tmp_path: Path) -> None:
    chat_file(place)
    preference_file(place)
    dataset(place)
    dataset(place, "choices", "choices.jsonl", kind="preference")
    apply_run(place, "support-v1")
    # Applied together, as from one commit: each waits for the one before it.
    apply_run(place, "support-v2", parent={"adapter": "support-v1"}, seed=1)
    alike = {"method": "dpo", "trainer": "TRL", "dataset": "choices"}
    apply_run(place, "support-v3", parent={"adapter": "support-v2"}, lora=alike)
    chain = ("support-v1", "support-v2", "support-v3")
    adapters = []
    for name in chain:
        wait_for(place, name, "Succeeded", seconds=400)
        adapters.append(verified(place, name))

    for parent, child in itertools.pairwise(adapters):
        said = statement(child).predicate
        assert said.parent
        assert said.parent.digest == parent["spec"]["digest"]
        assert said.parent.receipt == parent["spec"]["receipt"]["digest"]
    lineage = [one["name"] for one in adapters[2]["status"]["lineage"]]
    assert lineage == ["support-v2", "support-v1"]
    drawn = halo(place, "lineage", "support-v3")
    assert drawn.returncode == 0, drawn.stderr
    assert [name for name in chain if name in drawn.stdout] == list(chain)

    # A clean environment, the public key, and nothing of the cluster.
    programs = tmp_path / "venv" / "bin"
    venv.create(tmp_path / "venv", with_pip=True)
    pip = [programs / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, f"{ROOT}[verify]", "securesystemslib[crypto]"], check=True)
    key = tmp_path / "trusted.pem"
    keys = place.kubectl("-n", OPERATOR_NAMESPACE, "get", "configmap", "halo-operator-receipt-keys", "-o", "json")
    key.write_text("".join(json.loads(keys)["data"].values()))
    for name in chain:
        pulled = halo(place, "adapter", "pull", name, str(tmp_path / name))
        assert pulled.returncode == 0, pulled.stderr
        offline = ["receipt", "verify", "--offline", "--key", str(key), str(tmp_path / name)]
        done = subprocess.run([programs / "kubectl-halo", *offline], capture_output=True, text=True, env={})
        assert done.returncode == 0, done.stdout + done.stderr
        for tool in ("openssl", "securesystemslib"):
            assert foreign(tool, tmp_path / name, programs).returncode == 0, f"{tool} on {name}"
        weights = tmp_path / name / "adapter_model.safetensors"
        data = bytearray(weights.read_bytes())
        data[len(data) // 2] ^= 1
        weights.write_bytes(data)
        spoilt = subprocess.run([programs / "kubectl-halo", *offline], capture_output=True, text=True, env={})
        assert (spoilt.returncode, "adapter_model.safetensors: Changed" in spoilt.stdout) == (1, True)

    # Who changes a file on the claim is found before the next run loads it.
    weights = place.path_of(adapters[0]["spec"]["uri"]) / "adapter_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    apply_run(place, "support-v4", parent={"adapter": "support-v1"})
    job = wait_for(place, "support-v4", "Refused")
    message = condition(job, "Accepted")["message"]
    assert (condition(job, "Accepted")["reason"], "adapter_model.safetensors" in message) == ("ParentUnfit", True)
    assert condition(get(place, "adapter", "support-v1"), "Verified")["reason"] == "Changed"


@pytest.mark.slow
def test_equal_runs_side_by_side_have_equal_adapters_and_receipts(place: Place, beside: Place) -> None:
    for where in (place, beside):
        chat_file(where)
        dataset(where)
    for where in (place, beside):
        apply_run(where, "equal")
    said = []
    for where in (place, beside):
        wait_for(where, "equal", "Succeeded")
        adapter = verified(where, "equal")
        assert holds(where, adapter)
        said.append(statement(adapter))
    assert said[0].subject == said[1].subject
    first, second = (one.predicate.to_json() for one in said)
    assert {field for field in first if first[field] != second[field]} <= A_RUN_S_OWN


@pytest.mark.slow
def test_a_publication_that_is_killed_is_done_once_and_whole(place: Place) -> None:
    chat_file(place)
    dataset(place)
    wait_for(place, "tickets", "Inspected", kind="dataset")
    chance = random.Random(6)
    for turn in range(5):
        name = f"killed-{turn}"
        apply_run(place, name, steps=2, seed=turn)
        job = wait_for(place, name, "Publishing", "Succeeded")
        # A random moment of it is what is tried here.
        time.sleep(chance.uniform(0, 3))
        if turn % 2:
            who = ("-n", OPERATOR_NAMESPACE, "delete", "pods", "-l", "app.kubernetes.io/name=halo")
        else:
            who = ("delete", "pods", "-l", "halo.training/role=publish")
        place.kubectl(*who, "--force", "--grace-period=0", "--wait=false")
        job = wait_for(place, name, "Succeeded")
        adapter = verified(place, name)
        assert job["status"]["receipt"]["digest"] == adapter["spec"]["receipt"]["digest"]
        assert adapter["spec"]["trainedBy"]["uid"] == job["metadata"]["uid"]
        assert holds(place, adapter)
    adapters = json.loads(place.kubectl("get", "adapters", "-o", "json"))["items"]
    assert sorted(a["metadata"]["name"] for a in adapters) == [f"killed-{turn}" for turn in range(5)]
    partial = [
        path for path in (place.folder / "artifacts" / "adapters").iterdir() if not path.name.startswith("sha256-")
    ]
    assert partial == [], "nothing half-written is left"


@pytest.mark.slow
def test_an_adapter_from_outside_is_imported_and_pulled_and_never_a_parent(place: Place, tmp_path: Path) -> None:
    chat_file(place)
    dataset(place)
    apply_run(place, "made-here")
    wait_for(place, "made-here", "Succeeded")
    adapter = verified(place, "made-here")
    pulled = halo(place, "adapter", "pull", "made-here", str(tmp_path / "outside"))
    assert pulled.returncode == 0, pulled.stderr
    for beside in ("receipt.json", "public.pem"):
        (tmp_path / "outside" / beside).unlink()
    (place.folder / "artifacts" / "theirs").mkdir()
    for file in (tmp_path / "outside").iterdir():
        shutil.copy(file, place.folder / "artifacts" / "theirs" / file.name)
    for name, source in (("by-hand", str(tmp_path / "outside")), ("on-claim", "pvc://halo-artifacts/theirs")):
        imported = halo(place, "adapter", "import", source, "--name", name)
        assert imported.returncode == 0, imported.stderr
        ready = lambda name=name: condition(get(place, "adapter", name), "Ready")  # noqa: E731
        eventually(lambda ready=ready: ready()["status"] == "True", f"{name} is ready", 90)
        said = get(place, "adapter", name)
        assert (said["spec"]["digest"], said["spec"]["uri"]) == (adapter["spec"]["digest"], adapter["spec"]["uri"])
        assert (condition(said, "Verified")["status"], condition(said, "Verified")["reason"]) == ("False", "NoReceipt")
        again = halo(place, "adapter", "pull", name, str(tmp_path / name))
        assert (again.returncode, "no receipt: it was imported" in again.stdout) == (0, True), again.stderr
    with pytest.raises(AssertionError, match=r"found by-hand, which was imported .* never continued"):
        apply_run(place, "child", parent={"adapter": "by-hand"})
    left = ("get", "pods", "-l", "app.kubernetes.io/managed-by=kubectl-halo", "-o", "name")
    eventually(lambda: place.kubectl(*left) == "", "its pods are gone", 30)
