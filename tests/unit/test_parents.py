"""A run that continues an adapter: what its pods get of it, and what its own adapter says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from halo_api.run_file import RUN_ANNOTATION, RunFile, claim_of
from halo_operator.plan.adapter import adapter_spec
from halo_operator.plan.run import plan_run
from halo_operator.plan.world import Object, RunWorld
from tests.unit import builders as b


def child(uri: str = "pvc://halo-artifacts/adapters/support-v3", gpus: int = 1) -> RunWorld:
    spec = b.spec(parent={"adapter": "support-v3"}, gpu={"type": "h100", "count": gpus}, batch=16)
    return b.world(spec=spec, catalog=b.catalog(parent=b.parent(uri=uri)))


def mounts(pod: Object) -> dict[str, bool]:
    """Return which claims a pod mounts, each once, and whether read-only."""
    named = {v["name"]: v["persistentVolumeClaim"] for v in pod["spec"]["volumes"] if "persistentVolumeClaim" in v}
    found = [m for m in pod["spec"]["containers"][0]["volumeMounts"] if m["name"] in named]
    assert len(found) == len(named)
    assert all(m.get("readOnly", False) == named[m["name"]].get("readOnly", False) for m in found)
    return {named[m["name"]]["claimName"]: m["readOnly"] for m in found}


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("pvc://team-store/adapters/support-v3", {"models": True, "data": True, "team-store": True, "halo-artifacts": False}),
        ("pvc://models/adapters/support-v3", {"models": True, "data": True, "halo-artifacts": False}),
        ("pvc://halo-artifacts/adapters/support-v3", {"models": True, "data": True, "halo-artifacts": False}),
    ],
)  # fmt: skip
def test_its_pods_read_the_parents_claim(uri: str, expected: dict[str, bool]) -> None:
    (pod,) = plan_run(child(uri), b.NOW).create
    assert mounts(pod) == expected
    assert claim_of(uri) in expected


def test_every_pod_of_every_attempt_is_told_the_same_parent() -> None:
    found = child(gpus=16)
    plan = plan_run(found, b.NOW)
    files = [RunFile.model_validate_json(pod["metadata"]["annotations"][RUN_ANNOTATION]) for pod in plan.create]
    assert len(files) == 2
    parents = [file.train.parent for file in files if file.train]
    assert parents[0] == parents[1]
    assert parents[0] is not None
    assert parents[0].to_json() == {
        "name": "support-v3",
        "uri": "pvc://halo-artifacts/adapters/support-v3",
        "digest": b.DIGEST,
        "files": {"adapter_model.safetensors": b.DIGEST},
    }
    # What was frozen counts: a parent that is deleted or made anew meanwhile changes nothing.
    assert plan.status
    gone = replace(found, status=plan.status, catalog=b.catalog(parent=None))
    again = plan_run(gone, b.NOW).create
    assert [pod["metadata"]["annotations"][RUN_ANNOTATION] for pod in again] == [file.canonical() for file in files]


def test_its_adapter_names_the_parent_by_its_digest() -> None:
    frozen = plan_run(child(), b.NOW).status.frozen
    made = b.success().adapter
    assert adapter_spec(b.world().meta, b.spec(), frozen, made).parent.to_json() == {
        "name": "support-v3",
        "digest": b.DIGEST,
    }
    assert adapter_spec(b.world().meta, b.spec(), plan_run(b.world(), b.NOW).status.frozen, made).parent is None
