"""Money on a real kubelet: what is held, stopped and charged are the seconds that real pods had real nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.api.kube import OPERATOR_NAMESPACE, ROOT, eventually
from tests.cluster.conftest import Place
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

# The least that the estimate asks of a short run on the small base is about 0.077 H100-hours, most of it for the start.
BUDGET = 0.08


def allocate(place: Place, hours: float = 10) -> None:
    body = {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "Workspace",
        "metadata": {"name": "workspace"},
        "spec": {"allocation": {"h100Hours": hours}},
    }
    place.kubectl("apply", "-f", "-", stdin=body)


def seconds_of(pod: dict[str, Any]) -> int:
    """From the pod's binding to its container's end, as the cluster itself dates them."""
    bound = next(c["lastTransitionTime"] for c in pod["status"]["conditions"] if c["type"] == "PodScheduled")
    end = pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]
    return int((datetime.fromisoformat(end) - datetime.fromisoformat(bound)).total_seconds())


def ledger(place: Place) -> list[dict[str, Any]]:
    """The settled entries, after the command line has added the book up again."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "operator"), "KUBECONFIG": str(place.kubectl.kubeconfig)}
    environment["PATH"] = f"{place.kubectl.tools}:{environment['PATH']}"
    command = [sys.executable, "-m", "halo_cli", "ledger", "-n", str(place.kubectl.namespace), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["entries"]  # type: ignore[no-any-return]


def settled(place: Place, name: str) -> dict[str, Any]:
    """The run's entry, once it is in the book and the run may go."""
    eventually(lambda: "finalizers" not in get(place, "trainingjob", name)["metadata"], f"{name} is settled", 60)
    return next(entry for entry in ledger(place) if entry["run"]["name"] == name)


def charge_of(seconds: int) -> Decimal:
    """H100-hours of one H100, in millionths, rounded up."""
    return Decimal(-(-seconds * 10**6 // 3600)).scaleb(-6)


def test_a_run_is_charged_for_its_pod_s_seconds_and_a_deleted_one_too(place: Place) -> None:
    chat_file(place)
    dataset(place)
    allocate(place)
    wait_for(place, "tickets", "Inspected", kind="dataset")
    apply_run(place, "whole", budget={"h100Hours": BUDGET})
    job = wait_for(place, "whole", "Succeeded")
    (pod,) = trainer_pods(place)
    entry = settled(place, "whole")
    assert Decimal(entry["charged"]) == charge_of(seconds_of(pod))
    assert Decimal(job["status"]["usage"]["settlement"]["charged"]) == Decimal(entry["charged"])
    assert entry["receipt"] == get(place, "adapter", "whole")["spec"]["receipt"]["digest"]
    assert {"BudgetHeld", "Charged"} <= set(events_of(place, "whole"))

    apply_run(place, "cut", steps=500, budget={"h100Hours": BUDGET})
    wait_for_checkpoint(place, "cut", 2)
    place.kubectl("delete", "trainingjob", "cut", "--wait", "--timeout=120s")
    cut = next(entry for entry in ledger(place) if entry["run"]["name"] == "cut")
    assert (cut["outcome"], Decimal(cut["charged"]) > 0) == ("Cancelled", True)
    book = get(place, "workspace", "workspace")["status"]
    assert book["allocation"]["held"] == "0"
    assert Decimal(book["allocation"]["spent"]) == Decimal(entry["charged"]) + Decimal(cut["charged"])

    # The namespace goes with this one's hold open; the fixture waits until it is gone.
    apply_run(place, "open", steps=500, budget={"h100Hours": BUDGET})
    wait_for(place, "open", "Running")


@pytest.mark.slow
def test_a_run_stops_at_a_budget_that_was_raised_while_no_push_arrived(place: Place) -> None:
    chat_file(place)
    dataset(place)
    allocate(place)
    wait_for(place, "tickets", "Inspected", kind="dataset")
    apply_run(place, "stopped", steps=50000, budget={"h100Hours": BUDGET})
    wait_for_checkpoint(place, "stopped", 2)
    # Nobody answers pushes from here on: only the annotation can tell the pod of its new deadline.
    service = json.loads(place.kubectl("-n", OPERATOR_NAMESPACE, "get", "service", "halo-operator", "-o", "json"))
    elsewhere = {"spec": {"selector": {"app.kubernetes.io/name": "nobody"}}}
    place.kubectl(
        "-n", OPERATOR_NAMESPACE, "patch", "service", "halo-operator", "--type=merge", "-p", json.dumps(elsewhere)
    )
    try:
        raised = {"spec": {"budget": {"h100Hours": BUDGET + 0.02}}}
        # The webhook is behind the same Service, and its failurePolicy lets a raise pass.
        place.kubectl("patch", "trainingjob", "stopped", "--type=merge", "-p", json.dumps(raised))
        job = wait_for(place, "stopped", "BudgetReached", seconds=600)
    finally:
        back = {"spec": {"selector": service["spec"]["selector"]}}
        place.kubectl(
            "-n", OPERATOR_NAMESPACE, "patch", "service", "halo-operator", "--type=merge", "-p", json.dumps(back)
        )
    (pod,) = trainer_pods(place)
    spent, held = seconds_of(pod), (BUDGET + 0.02) * 3600
    assert BUDGET * 3600 < spent <= held + 60
    assert (job["status"]["hold"]["raises"], condition(job, "Complete")["reason"]) == (1, "BudgetReached")
    assert Decimal(settled(place, "stopped")["charged"]) == min(charge_of(spent), Decimal(str(BUDGET + 0.02)))
    folder = place.path_of(get(place, "adapter", "stopped")["spec"]["uri"])
    assert (folder / "adapter_model.safetensors").exists()


@pytest.mark.slow
def test_suspended_ten_times_it_is_charged_for_the_seconds_between(place: Place) -> None:
    chat_file(place)
    dataset(place)
    allocate(place)
    wait_for(place, "tickets", "Inspected", kind="dataset")
    apply_run(place, "often", steps=50000, budget={"h100Hours": 2})
    shown = Decimal(0)
    for turn in range(10):
        wait_for(place, "often", "Running")
        if turn % 3 == 2:
            place.kubectl("-n", OPERATOR_NAMESPACE, "rollout", "restart", "deployment/halo-operator")
        place.kubectl("patch", "trainingjob", "often", "--type=merge", "-p", '{"spec":{"suspend":true}}')
        job = wait_for(place, "often", "Suspended")
        now = Decimal(job["status"]["usage"]["h100Hours"])
        assert now >= shown, "what was spent never falls"
        shown = now
        assert get(place, "workspace", "workspace")["status"]["allocation"]["held"] == "2"
        place.kubectl("patch", "trainingjob", "often", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    wait_for(place, "often", "Running")
    place.kubectl("delete", "trainingjob", "often", "--wait", "--timeout=120s")
    entry = next(entry for entry in ledger(place) if entry["run"]["name"] == "often")
    assert Decimal(entry["charged"]) >= shown
    assert Decimal(entry["charged"]) == charge_of(int(Decimal(entry["gpuSeconds"])))
