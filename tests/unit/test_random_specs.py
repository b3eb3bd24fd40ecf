"""Whatever a schema lets pass is refused by a check, waited for, or planned into legal pods; planning never fails."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from halo_api.conditions import Reason, condition_of
from halo_api.training_job import TrainingJobSpec
from halo_operator.plan.admission import first_refusal
from halo_operator.plan.pod_view import all_of
from halo_operator.plan.run import RunPlan, plan_run
from halo_operator.plan.world import Meta, RunWorld
from tests.unit import builders as b
from tests.unit.random_specs import catalogs, name, specs

EXAMPLES = 300
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
MOST_ANNOTATIONS = 256 * 1024
RUN_NAMES = name("run", "9" * 63, "a" * 253, "a.b-c." + "d" * 247)


@st.composite
def worlds(draw: st.DrawFn) -> RunWorld:
    spec = TrainingJobSpec.model_validate(draw(specs()))
    meta = Meta(kind="TrainingJob", namespace="team", name=draw(RUN_NAMES), uid="uid-1", generation=1)
    return b.world(meta=meta, spec=spec, catalog=draw(catalogs(spec)))


def assert_legal(pod: dict[str, Any]) -> None:
    meta, spec = pod["metadata"], pod["spec"]
    assert LABEL.fullmatch(meta["name"]), meta["name"]
    assert all(LABEL_VALUE.fullmatch(value) for value in meta.get("labels", {}).values())
    assert sum(len(key) + len(value.encode()) for key, value in meta.get("annotations", {}).items()) < MOST_ANNOTATIONS
    if pod["kind"] != "Pod":
        return
    assert LABEL.fullmatch(spec.get("hostname", "x"))
    assert spec["restartPolicy"] == "Never"
    volumes = [volume["name"] for volume in spec["volumes"]]
    assert len(volumes) == len(set(volumes))
    assert all(LABEL.fullmatch(volume) for volume in volumes)
    for container in spec["containers"]:
        mounted = [mount["name"] for mount in container["volumeMounts"]]
        assert set(mounted) <= set(volumes)
        limits, requests = container["resources"]["limits"], container["resources"]["requests"]
        assert limits["nvidia.com/gpu"] == requests["nvidia.com/gpu"]
        assert int(limits["nvidia.com/gpu"]) >= 1


def made(world: RunWorld, plan: RunPlan) -> RunWorld:
    """The world once the plan was carried out: its status stored, its pods there."""
    stored = [
        pod | {"metadata": pod["metadata"] | {"uid": f"pod-{n}", "creationTimestamp": "2026-11-29T12:00:00Z"}}
        for n, pod in enumerate(plan.create)
    ]
    return replace(world, status=plan.status or world.status, pods=(*world.pods, *all_of(stored, b.NOW)))


def assert_nothing_to_do(world: RunWorld) -> None:
    again = plan_run(world, b.NOW)
    assert (again.status, again.first, again.create, again.delete, again.notes) == (None, (), (), (), ())


def outcome_of(world: RunWorld) -> str:
    """Plan the run, hold everything that must be true of what comes of it, and say what did."""
    plan = plan_run(world, b.NOW)
    assert plan.status is not None
    status = plan.status
    refusal = first_refusal(world)
    accepted = condition_of(status.conditions, "Accepted")
    assert accepted is not None
    if refusal:
        assert (accepted.status, accepted.reason) == ("Unknown" if refusal.pending else "False", refusal.reason)
        assert plan.create == plan.first == ()
        assert status.frozen is None
        assert Reason(refusal.reason)
        assert len(refusal.message) < 1500
        assert_nothing_to_do(made(world, plan))
        return "waits" if refusal.pending else "refused"
    assert accepted.status == "True"
    assert status.frozen is not None
    assert plan.create or world.spec.suspend
    for child in (*plan.first, *plan.create):
        assert_legal(child)
    if world.spec.suspend:
        assert_nothing_to_do(made(world, plan))
        return "suspended"
    gpus = sum(int(p["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]) for p in plan.create)
    assert gpus == world.spec.gpu.count
    # What was written is read again as it was, and the pods that are there are not made again.
    assert type(status).model_validate(status.to_json()) == status
    seen = made(world, plan)
    second = plan_run(seen, b.NOW)
    assert (second.create, second.delete, second.first) == ((), (), ())
    assert_nothing_to_do(made(seen, second))
    return "planned"


def test_any_run_is_refused_waited_for_or_planned_into_legal_pods() -> None:
    outcomes: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(worlds())
    def plans(world: RunWorld) -> None:
        outcomes[outcome_of(world)] += 1

    plans()
    assert outcomes.keys() >= {"refused", "waits", "planned"}, outcomes
