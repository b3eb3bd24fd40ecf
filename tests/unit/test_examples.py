"""Each TrainingJob of examples/ is right among the other examples, once all that it names is ready: only what is not built yet is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from halo_api.catalog import BaseModelSpec
from halo_api.gpu_class import GpuClassSpec
from halo_api.training_job import TrainingJobSpec
from halo_operator import gather
from halo_operator.plan.admission import RULES, first_refusal
from halo_operator.plan.claim import wanted_of
from halo_operator.plan.references import References, references
from halo_operator.plan.world import BaseEntry, Catalog, EnvironmentEntry, GpuEntry, RunWorld, Verdict
from halo_operator.recipes import RECIPES
from tests.unit import builders

Body = dict[str, Any]
FOLDER = Path(__file__).resolve().parents[2] / "examples"
BODIES: list[Body] = [
    body for file in sorted(FOLDER.glob("*.yaml")) for body in yaml.safe_load_all(file.read_text()) if body
]
JOBS = [body for body in BODIES if body["kind"] == "TrainingJob"]
SHARED = "support-budget"
DONE = Verdict("True")


def example(kind: str, name: str, file: str = "*.yaml") -> Body:
    bodies = [b for f in sorted(FOLDER.glob(file)) for b in yaml.safe_load_all(f.read_text()) if b]
    found = [b for b in bodies if b["kind"] == kind and b["metadata"]["name"] == name]
    assert found, f"{kind} {name} is in no example"
    return found[0] | {"metadata": found[0]["metadata"] | {"namespace": "team"}}


def qualified(name: str | None, public: bool = False) -> EnvironmentEntry | None:
    if name is None:
        return None
    if public:
        return replace(builders.environment(name=name), public=True)
    return replace(gather.environment_entry(example("Environment", name), "halo-system"), qualified=DONE)


def catalog(spec: TrainingJobSpec, to: References, workspace: str) -> Catalog:
    """The cluster of the examples, with everything inspected, qualified and calibrated."""
    base = BaseModelSpec.model_validate(example("BaseModel", spec.base_model)["spec"])
    dataset = gather.dataset_entry(example("Dataset", to.dataset)) if to.dataset else None
    if dataset:
        counted = {
            "baseModel": spec.base_model,
            "revision": base.revision,
            # Behind the prompt of a task there must be room for an answer.
            "longestRow": min(40000, base.context_length if spec.base == "lora_trl" else base.context_length // 2),
        }
        read = dataset.status.model_copy(update={"rows": 5000, "inspections": [builders.inspection(**counted)]})
        dataset = replace(dataset, status=read)
    parent = builders.parent(base={"name": spec.base_model, "revision": base.revision})
    criterion = gather.criterion_entry(example("Criterion", to.criterion)) if to.criterion else None
    return Catalog(
        base=BaseEntry(spec.base_model, base),
        gpu=GpuEntry(
            spec.gpu.type, GpuClassSpec.model_validate(example("GpuClass", spec.gpu.type, "gpu-classes.yaml")["spec"])
        ),
        dataset=dataset,
        workspace=gather.workspace_entry(example("Workspace", "workspace", workspace)),
        parent=replace(parent, name=to.parent) if to.parent else None,
        recipe=RECIPES.get(to.recipe) if to.recipe else None,
        recipe_names=tuple(RECIPES),
        environment=qualified(to.environment),
        warmup=qualified(to.warmup, public=True),
        retention=qualified(to.retention, public=True),
        criterion=replace(criterion, calibrated=DONE, drifted=Verdict("False")) if criterion else None,
    )


def world(body: Body) -> RunWorld:
    spec = TrainingJobSpec.model_validate(body["spec"])
    workspace = "workspace-shared.yaml" if body["metadata"]["name"] == SHARED else "workspace.yaml"
    return builders.world(spec=spec, catalog=catalog(spec, references(spec), workspace))


@pytest.mark.parametrize("body", JOBS, ids=lambda body: body["metadata"]["name"])
def test_a_job_is_right_among_the_others(body: Body) -> None:
    assert first_refusal(world(body), RULES) is None


@pytest.mark.parametrize("body", JOBS, ids=lambda body: body["metadata"]["name"])
def test_a_budget_is_a_share_of_the_allocation_and_other_jobs_are_held_on_the_wallet(body: Body) -> None:
    wanted = wanted_of(world(body))
    assert wanted is not None
    assert wanted.unit == ("H100Hours" if body["metadata"]["name"] == SHARED else "USD")
    if wanted.unit == "H100Hours":
        assert wanted.amount == 12_500_000


def test_there_is_a_job_of_each_base_and_story() -> None:
    specs = [TrainingJobSpec.model_validate(body["spec"]) for body in JOBS]
    assert {spec.base for spec in specs} == {"lora_trl", "halo_rlvr", "halo_rft"}
    assert {"sft", "dpo", "sql_v3", "sql_v4_dapo_async1", "bridged_v3"} <= {spec.method for spec in specs}
    assert {spec.context_parallel for spec in specs} == {None, "auto", 4}
