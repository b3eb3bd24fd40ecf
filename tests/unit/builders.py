"""Worlds for plan tests, built with defaults, so that a test names only what it is about."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from halo_api.adapter import AdapterFile, AdapterSpec
from halo_api.catalog import BaseModelSpec
from halo_api.conditions import Condition
from halo_api.criterion import CriterionSpec
from halo_api.dataset import DatasetSpec, DatasetStatus, Inspection
from halo_api.digests import files_digest
from halo_api.environment import EnvironmentSpec
from halo_api.gpu_class import GpuClassSpec
from halo_api.report import AdapterReport, CheckpointReport, Outcome
from halo_api.run_file import RUN_ANNOTATION, PublishPlan, RunFile, address
from halo_api.training_job import TrainingJobSpec, TrainingJobStatus
from halo_api.workspace import WorkspaceSpec
from halo_operator.gather import NAMED
from halo_operator.plan import names
from halo_operator.plan.conditions import stamp
from halo_operator.plan.world import (
    AdapterEntry,
    BaseEntry,
    Catalog,
    CriterionEntry,
    DatasetEntry,
    Environment,
    EnvironmentEntry,
    GpuEntry,
    Meta,
    Object,
    ParentEntry,
    PodRef,
    PodView,
    RunWorld,
    Verdict,
    WorkspaceEntry,
)
from halo_operator.recipes import RECIPES

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
DIGEST = "sha256:" + "a" * 64
RECEIPT = "sha256:" + "e" * 64
ENVIRONMENT = Environment(
    trainer_image="trainer:1",
    image_pull_policy="IfNotPresent",
    artifacts_claim="halo-artifacts",
    report_url="https://halo-operator.halo-system.svc/v1/reports",
    ca_bundle="CA",
    operator_version="0.1.0",
    start_timeout_seconds=600,
    rollout_image="rollout:1",
)


def seconds(n: float) -> timedelta:
    return timedelta(seconds=n)


def spec(**changes: Any) -> TrainingJobSpec:
    lora = {"dataset": "chat"} | changes.pop("lora", {})
    return TrainingJobSpec.model_validate(
        {
            "base": "lora_trl",
            "baseModel": "smol",
            "gpu": {"type": "h100", "count": 1},
            "steps": 100,
            "batch": 8,
            "lora": lora,
        }
        | changes
    )


def base(**changes: Any) -> BaseModelSpec:
    facts = {
        "source": "pvc://models/smol",
        "revision": "rev-0001",
        "parametersB": 0.1,
        "contextLength": 2048,
        "offers": ["lora_trl"],
    }
    return BaseModelSpec.model_validate(facts | changes)


def gpu(**changes: Any) -> GpuClassSpec:
    return GpuClassSpec.model_validate({"memoryGiB": 80} | changes)


def inspection(**changes: Any) -> Inspection:
    facts = {
        "baseModel": "smol", "revision": "rev-0001", "sha256": DIGEST, "rows": 10, "tokens": 900, "trainedTokens": 300,
        "longestRow": 120, "at": "2026-11-29T11:00:00Z",
    }  # fmt: skip
    return Inspection.model_validate(facts | changes)


def dataset(
    *,
    stalled: str | None = None,
    inspections: tuple[Inspection, ...] = (inspection(),),
    bases: tuple[str, ...] = ("smol",),
    kind: str = "chat",
) -> DatasetEntry:
    conditions = [
        Condition(
            type="Stalled",
            status="True",
            reason="BadRow",
            message=stalled or "",
            observed_generation=1,
            last_transition_time="2026-11-29T11:00:00Z",
        )
    ]
    return DatasetEntry(
        "chat",
        1,
        DatasetSpec.model_validate({"kind": kind, "source": "pvc://data/chat.jsonl", "baseModels": list(bases)}),
        DatasetStatus(inspections=list(inspections), conditions=conditions if stalled else []),
    )


def catalog(**changes: Any) -> Catalog:
    facts: dict[str, Any] = {
        "base": BaseEntry("smol", base()),
        "base_names": ("smol", "large"),
        "gpu": GpuEntry("h100", gpu()),
        "gpu_names": ("h100",),
        "dataset": dataset(),
        "adapter": None,
    }
    return Catalog(**(facts | changes))


def rlvr_spec(recipe: str = "sql_v3", **changes: Any) -> TrainingJobSpec:
    """A good halo_rlvr job on two GPUs; `rlvr` changes its own part."""
    data = {"envRevision": "desk-v2"} if recipe.startswith("bridged") else {"dataset": "questions"}
    rlvr = {"recipe": recipe} | data | changes.pop("rlvr", {})
    facts = {"base": "halo_rlvr", "baseModel": "smol", "gpu": {"type": "h100", "count": 2}, "steps": 100, "batch": 16}
    return TrainingJobSpec.model_validate(facts | {"rlvr": rlvr} | changes)


def rft_spec(recipe: str = "sql_v3", **changes: Any) -> TrainingJobSpec:
    """A good halo_rft job."""
    data = {"envRevision": "desk-v2"} if recipe.startswith("bridged") else {"dataset": "questions"}
    rft = {"recipe": recipe} | data | changes.pop("rft", {})
    facts = {"base": "halo_rft", "baseModel": "smol", "gpu": {"type": "h100"}, "steps": 100, "batch": 8}
    return TrainingJobSpec.model_validate(facts | {"rft": rft} | changes)


def tasks(rows: int | None = 500, kind: str = "tasks", name: str = "questions", **changes: Any) -> DatasetEntry:
    facts = {"kind": kind, "source": f"pvc://data/{name}.jsonl", "baseModels": ["smol"]} | changes
    counted = [] if rows is None or kind != "tasks" else [inspection(rows=rows)]
    return DatasetEntry(name, 1, DatasetSpec.model_validate(facts), DatasetStatus(rows=rows, inspections=counted))


def counted_tasks(**changes: Any) -> DatasetEntry:
    """A data set of tasks; the changes are its inspection's."""
    return replace(tasks(), status=DatasetStatus(rows=500, inspections=[inspection(rows=500, **changes)]))


def parent(verified: str = "True", imported: bool = False, **changes: Any) -> ParentEntry:
    facts = {
        "base": {"name": "smol", "revision": "rev-0001"}, "rank": 16, "alpha": 32, "uri": "pvc://halo-artifacts/support-v3",
        "digest": DIGEST, "files": [{"path": "adapter_model.safetensors", "sha256": DIGEST, "size": 1}],
        "trainedBy": {"kind": "TrainingJob", "name": "support-v3", "uid": "uid-0", "step": 100},
        "receipt": {"digest": RECEIPT},
    }  # fmt: skip
    if imported:
        facts |= {"trainedBy": None, "receipt": None}
    return ParentEntry(
        "support-v3", AdapterSpec.model_validate(facts | changes), verdict(verified, "the digest differs")
    )


def environment(qualified: str = "True", name: str = "desk-v2", **changes: Any) -> EnvironmentEntry:
    facts = {"package": "OpenEnv", "name": "acme/desk", "revision": "2", "image": "registry.example/desk:2"}
    spec_ = EnvironmentSpec.model_validate(facts | changes)
    return EnvironmentEntry(name, spec_, qualified=verdict(qualified, "the gold solutions got 0.4"))


def criterion(calibrated: str = "True", drifted: str = "False", unit: str = "trace") -> CriterionEntry:
    judge = {"url": "https://judge.example/v1", "model": "judge-1", "inputUsd": 0.4, "outputUsd": 1.6}
    spec_ = CriterionSpec.model_validate({"unit": unit, "rubric": "Is the answer helpful?", "judge": judge})
    found = verdict(calibrated, "agreement 0.6, wanted 0.8"), verdict(drifted, "agreement fell to 0.5")
    return CriterionEntry("helpful", spec_, calibrated=found[0], drifted=found[1])


def verdict(status: str, why: str) -> Verdict:
    """What a condition says; why, where it does not say what is wanted."""
    return Verdict(status, "Why", why)  # type: ignore[arg-type]


def workspace(**changes: Any) -> WorkspaceEntry:
    return WorkspaceEntry(True, WorkspaceSpec.model_validate(changes))


def of_tasks(spec_: TrainingJobSpec, **changes: Any) -> RunWorld:
    """The world of a good halo_rlvr or halo_rft job: everything that it names is there and right."""
    part = spec_.rlvr or spec_.rft
    offers = base(offers=["lora_trl", "halo_rlvr", "halo_rft"], chatTemplate={"thinking": True})
    facts = {
        "base": BaseEntry("smol", offers),
        "dataset": tasks() if part and part.dataset else None,
        "recipe": RECIPES.get(part.recipe) if part else None,
        "recipe_names": NAMED,
        "environment": environment() if part and part.env_revision else None,
        "warmup": environment(name="public-v1") if spec_.rlvr and spec_.rlvr.warmup else None,
        "retention": environment(name="public-v1") if spec_.rlvr and spec_.rlvr.retention else None,
        "criterion": criterion() if spec_.rlvr and spec_.rlvr.judge else None,
    }
    return world(spec=spec_, catalog=catalog(**(facts | changes)))


def taken(by: str | None) -> AdapterEntry:
    return AdapterEntry("run", by)


def world(**changes: Any) -> RunWorld:
    facts: dict[str, Any] = {
        "meta": Meta(kind="TrainingJob", namespace="team", name="run", uid="uid-1", generation=1),
        "spec": spec(),
        "status": TrainingJobStatus(observed_generation=-1),
        "pods": (),
        "environment": ENVIRONMENT,
        "catalog": catalog(),
    }
    return RunWorld(**(facts | changes))


def pod(attempt: int = 1, rank: int = 0, **changes: Any) -> PodView:
    name = names.trainer_pod("run", "uid-1", rank, attempt)
    facts: dict[str, Any] = {
        "ref": PodRef("team", name, f"pod-{attempt}-{rank}"),
        "owner_uid": "uid-1",
        "role": "trainer",
        "attempt": attempt,
        "rank": rank,
        "phase": "Pending",
        "created_at": NOW,
        "metered": True,
        "ca": "CA",
    }
    return PodView(**(facts | changes))


def running(view: PodView, since: datetime = NOW) -> PodView:
    return replace(view, phase="Running", running=True, bound_at=since)


def ended(view: PodView, outcome: Outcome, at: datetime = NOW) -> PodView:
    return replace(
        view,
        phase="Succeeded" if outcome.result == "Succeeded" else "Failed",
        running=False,
        ended=True,
        bound_at=view.bound_at or at,
        finished_at=at,
        outcome=outcome,
    )


def publisher(child: Object, outcome: Outcome | None = None, **changes: Any) -> PodView:
    """The pod that was made to publish; it runs, or has ended so."""
    meta = child["metadata"]
    attempt, rank = (int(meta["labels"][label]) for label in (names.ATTEMPT_LABEL, names.RANK_LABEL))
    ref = PodRef("team", meta["name"], f"uid-of-{meta['name']}")
    facts = {"ref": ref, "owner_uid": meta["ownerReferences"][0]["uid"], "role": "publish", "metered": False}
    view = running(pod(attempt, rank, **facts, image_id="publisher@sha256:2", **changes))
    return ended(view, outcome) if outcome else view


def run_file(child: Object) -> RunFile:
    """What a pod is told to do."""
    return RunFile.model_validate_json(child["metadata"]["annotations"][RUN_ANNOTATION])


def checkpoint(step: int, attempt: int = 1) -> CheckpointReport:
    uri = f"pvc://halo-artifacts/uid-1/a{attempt}/checkpoints/step-{step}"
    return CheckpointReport(step=step, uri=uri, digest=DIGEST, at="2026-11-29T11:30:00Z")


def success(step: int = 100, attempt: int = 1) -> Outcome:
    files = (AdapterFile(path="adapter_model.safetensors", sha256=DIGEST, size=1),)
    uri = f"pvc://halo-artifacts/uid-1/a{attempt}/adapter"
    made = AdapterReport(uri=uri, digest=files_digest(files), step=step, files=files)
    return Outcome(result="Succeeded", reason="Succeeded", checkpoint=checkpoint(step, attempt), adapter=made)


def published(plan: PublishPlan | None = None, step: int = 100) -> Outcome:
    """What a pod leaves that published, as its plan says, the adapter that success() tells of."""
    made = success(plan.source.step if plan else step).adapter
    assert made
    store = plan.store if plan else "pvc://halo-artifacts/adapters"
    made = made.model_copy(update={"uri": f"{store}/{address(made.digest)}"})
    return Outcome(result="Succeeded", reason="Succeeded", adapter=made)


def failure(reason: str, message: str = "it broke", step: int | None = None, attempt: int = 1) -> Outcome:
    return Outcome(
        result="Failed", reason=reason, message=message, checkpoint=checkpoint(step, attempt) if step else None
    )


def trainer_object(
    attempt: int = 1,
    rank: int = 0,
    *,
    bound: datetime | None = NOW,
    finished: datetime | None = None,
    ahead: float = 0.0,
    **status: Any,
) -> Object:
    """A trainer pod as the API server shows it; the clock of its node is `ahead` by so many seconds."""

    def of_node(at: datetime) -> str:
        return stamp(at + seconds(ahead))

    role, facts = "trainer", {"phase": "Pending"}
    if bound:
        ran = {"terminated": {"finishedAt": of_node(finished), "exitCode": 0}} if finished else {"running": {}}
        facts = {
            "phase": "Succeeded" if finished else "Running",
            "startTime": of_node(bound),
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(bound)}],
            "containerStatuses": [{"name": role, "state": ran}],
        }
    labels = {names.ROLE_LABEL: role, names.ATTEMPT_LABEL: str(attempt), names.RANK_LABEL: str(rank)}
    name = names.trainer_pod("run", "uid-1", rank, attempt)
    meta = {"namespace": "team", "name": name, "uid": f"pod-{attempt}-{rank}", "labels": labels}
    return {"metadata": meta, "spec": {"nodeName": f"node-{rank}"}, "status": facts | status}


def online(trainers: int = 1, servers: int = 1, gpus_each: int = 1, **changes: Any) -> RunWorld:
    """The world of a good halo_rlvr run of so many trainer GPUs and rollout servers."""
    recipe, per_node = changes.pop("recipe", "sql_v3"), changes.pop("perNode", 8)
    split_ = {"rolloutGpus": servers * gpus_each, "rolloutReplicas": servers} | changes.pop("rlvr", {})
    asked = {"gpu": {"type": "h100", "count": trainers + servers * gpus_each}, "batch": 16} | changes
    return of_tasks(rlvr_spec(recipe, rlvr=split_, **asked), gpu=GpuEntry("h100", gpu(perNode=per_node)))


def server_pod(server: int = 0, incarnation: int = 1, attempt: int = 1, **changes: Any) -> PodView:
    """A rollout server's pod."""
    name = names.rollout_pod("run", "uid-1", server, incarnation, attempt)
    ref = PodRef("team", name, f"rollout-{attempt}-{server}-{incarnation}")
    return pod(attempt, server, **({"ref": ref, "role": "rollout", "incarnation": incarnation} | changes))
