"""Short real runs on the small base, and what a person would look at while they go."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

from tests.api.kube import ROOT
from tests.cluster.conftest import Place

BASE = "smollm2-135m"
GROUP = "/apis/halo.training/v1alpha1"


def chat_file(place: Place, name: str = "tickets.jsonl", rows: int = 32) -> None:
    """Write a small chat data set behind the namespace's data claim."""
    subprocess.run(
        [str(ROOT / "hack" / "data" / "make_chat"), str(place.data / name), "--rows", str(rows)],
        check=True,
        capture_output=True,
    )


def preference_file(place: Place, name: str = "choices.jsonl") -> None:
    """Write a small preference data set: the answer in one line of JSON is chosen, the one in words is rejected."""
    rows = [json.loads(line) for line in (place.data / "tickets.jsonl").read_text().splitlines()]
    with (place.data / name).open("w") as out:
        for row in rows:
            *prompt, answer = row["messages"]
            worse = {"role": "assistant", "content": "I am sorry to hear that. We will look into it."}
            out.write(json.dumps({"prompt": prompt, "chosen": [answer], "rejected": [worse]}) + "\n")


def dataset(place: Place, name: str = "tickets", file: str = "tickets.jsonl", kind: str = "chat") -> None:
    body = {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "Dataset",
        "metadata": {"name": name},
        "spec": {"kind": kind, "source": f"pvc://halo-data/{file}", "baseModels": [BASE]},
    }
    place.kubectl("apply", "-f", "-", stdin=body)


def apply_run(
    place: Place, name: str, *, gpu: dict[str, Any] | None = None, lora: dict[str, Any] | None = None, **spec: Any
) -> None:
    body = {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "base": "lora_trl",
            "baseModel": BASE,
            "gpu": gpu or {"type": "h100", "count": 1},
            "steps": 4,
            "batch": 2,
            "saveSteps": 2,
            "lora": {"dataset": "tickets", "rank": 4, "learningRate": 0.001, **(lora or {})},
            **spec,
        },
    }
    place.kubectl("apply", "-f", "-", stdin=body)


def get(place: Place, kind: str, name: str) -> dict[str, Any]:
    """One of Halo's objects, by the API server itself: it is asked several times a second, and a kubectl costs more."""
    return place.api.request("GET", f"{GROUP}/namespaces/{place.kubectl.namespace}/{kind}s/{name}")


def condition(body: dict[str, Any], type_: str) -> dict[str, Any]:
    found = (c for c in body.get("status", {}).get("conditions", []) if c["type"] == type_)
    return next(found, {"status": "Unknown", "reason": "", "message": ""})


def wait_for(place: Place, name: str, *states: str, kind: str = "trainingjob", seconds: float = 240) -> dict[str, Any]:
    """Return the object once Ready's reason is one of `states`; a run that ended otherwise says why at once."""
    end = time.monotonic() + seconds
    while True:
        body = get(place, kind, name)
        ready = condition(body, "Ready")
        if ready["reason"] in states:
            return body
        assert ready["reason"] not in ("Succeeded", "Failed", "Refused"), (
            f"{name} is {ready['reason']}: {ready['message']}"
        )
        assert time.monotonic() < end, (
            f"{name} is still {ready['reason']}: {ready['message']} {body.get('status', {}).get('waiting')}"
        )
        time.sleep(0.3)


def wait_for_checkpoint(place: Place, name: str, step: int, seconds: float = 240) -> dict[str, Any]:
    """Return the run once its status names a checkpoint of `step` or later."""
    end = time.monotonic() + seconds
    while True:
        body = get(place, "trainingjob", name)
        if any(c["step"] >= step for c in body["status"].get("checkpoints", [])):
            return body
        assert condition(body, "Failed")["status"] != "True", condition(body, "Failed")["message"]
        assert time.monotonic() < end, f"{name} has no checkpoint of step {step}"
        time.sleep(0.3)


def trainer_pods(place: Place) -> list[dict[str, Any]]:
    pods = f"/api/v1/namespaces/{place.kubectl.namespace}/pods"
    return place.api.items(f"{pods}?labelSelector=halo.training%2Frole%3Dtrainer")


def events_of(place: Place, name: str) -> list[str]:
    """The reasons of a run's events, oldest first."""
    items = json.loads(place.kubectl("get", "events", "--field-selector", f"involvedObject.name={name}", "-o", "json"))[
        "items"
    ]
    return [
        item["reason"]
        for item in sorted(items, key=lambda item: item.get("eventTime") or item["metadata"]["creationTimestamp"])
    ]
