"""GrpoRuns and their worlds, built with defaults that every check accepts, so that a test names only what it is about."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from halo_api.catalog import BaseModelSpec
from halo_api.criterion import CriterionSpec, CriterionStatus
from halo_api.gpu_class import GpuClassSpec
from halo_api.grpo_run import GrpoRunSpec
from halo_api.model_alias import ModelAliasSpec
from halo_api.workspace import WorkspaceSpec, WorkspaceStatus
from halo_operator.plan import money
from halo_operator.plan.book.place import placed
from halo_operator.plan.grpo.hold import wanted_of
from halo_operator.plan.grpo.world import AliasEntry, GrpoCatalog, GrpoWorld, Prompts, Start
from halo_operator.plan.names import HOLD_FINALIZER
from halo_operator.plan.world import BaseEntry, CriterionEntry, GpuEntry, Meta, Verdict, WorkspaceEntry

CREATED = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
ENVIRONMENT = {"proxyBaseUrl": "http://tools.team.svc:8080/v1"}
H100 = {"gpuType": "h100", "region": "eu-west"}
ADOPT = {"aliasName": "support", "gpuType": "h100", "region": "eu-west"}


def body(**changes: Any) -> dict[str, Any]:
    """A spec as JSON; None takes a field away."""
    spec = {
        "model": "qwen3-8b",
        "reward": {"mode": "single", "criterionId": "helpful"},
        "promptCount": 100,
        "rewardBudgetUsd": 25,
        "gpuHourBudget": 10,
        "platformGpu": H100,
    } | changes
    return {key: value for key, value in spec.items() if value is not None}


def agentic(**changes: Any) -> dict[str, Any]:
    """The spec of an agentic run."""
    return body(**{"environment": ENVIRONMENT, "reward": {"mode": "single", "criterionId": "solved"}, **changes})


def spec(**changes: Any) -> GrpoRunSpec:
    return GrpoRunSpec.model_validate(body(**changes))


def criterion(name: str, unit: str = "request", **changes: Any) -> CriterionEntry:
    judge = {"url": "https://judge.example/v1", "model": "judge-1", "inputUsd": 0.4, "outputUsd": 1.6}
    facts = {"unit": unit, "rubric": "Is the answer right and short?", "judge": judge}
    entry = CriterionEntry(
        name, CriterionSpec.model_validate(facts), calibrated=Verdict("True", "Calibrated", "agrees")
    )
    return replace(entry, **changes)


def graded(at: datetime) -> CriterionStatus:
    """The status of a criterion whose newest grade is of then."""
    found = {
        "examples": 50,
        "agreement": "0.9",
        "datasetDigest": "sha256:x",
        "tokensIn": 500,
        "tokensOut": 50,
        "usd": "1",
    }
    times = {"newestGrade": at.isoformat(), "at": at.isoformat()}
    return CriterionStatus.model_validate({"calibration": found | times})


def workspace(balance: str | None = None, **changes: Any) -> WorkspaceEntry:
    """A Workspace with a wallet of 1000 USD, of which only `balance` is free if it is given."""
    facts = {"wallet": {"creditUsd": 1000}, "storage": {"claim": "halo-artifacts"}, "autoProvision": True} | changes
    held = money.usd(money.micro(1000) - money.micro(balance)) if balance else None
    return WorkspaceEntry(True, WorkspaceSpec.model_validate(facts), WorkspaceStatus(held=held))


def gpu(name: str = "h100", **changes: Any) -> GpuEntry:
    prices = [{"region": "eu-west", "usdPerHour": 2.5, "markup": 1.2}]
    return GpuEntry(name, GpuClassSpec.model_validate({"memoryGiB": 80, "prices": prices} | changes))


def base(**changes: Any) -> BaseEntry:
    facts = {
        "source": "pvc://models/qwen3-8b",
        "revision": "rev-0001",
        "parametersB": 8,
        "contextLength": 32768,
        "offers": ["lora_trl", "grpo"],
    }
    return BaseEntry("qwen3-8b", BaseModelSpec.model_validate(facts | changes))


def alias(**changes: Any) -> AliasEntry:
    return AliasEntry("support", ModelAliasSpec.model_validate({"baseModel": "qwen3-8b"} | changes))


def catalog(**changes: Any) -> GrpoCatalog:
    facts: dict[str, Any] = {
        "base": base(),
        "base_names": ("qwen3-8b", "qwen3-4b"),
        "workspace": workspace(),
        "criteria": {c.name: c for c in (criterion("helpful"), criterion("brief"), criterion("solved", "trace"))},
        "criterion_names": ("brief", "helpful", "solved"),
        "gpus": (gpu(), gpu("own", byo=True, prices=[])),
        "alias": alias(),
        "alias_names": ("support",),
        "traffic": Prompts(500),
        "candidates": Prompts(500),
        "tasks": Prompts(500),
    }
    return GrpoCatalog(**(facts | changes))


def world(found: GrpoCatalog | None = None, **changes: Any) -> GrpoWorld:
    """The world of a run; `changes` are of its spec."""
    meta = Meta(kind="GrpoRun", namespace="team", name="run", uid="uid-1", generation=1)
    return GrpoWorld(meta, CREATED, spec(**changes), catalog=found or catalog())


def starts(*ages: float, **facts: Any) -> tuple[Start, ...]:
    """Other runs, by how many seconds before this one they were made."""
    return tuple(Start(f"other-{i}", CREATED - timedelta(seconds=age), **facts) for i, age in enumerate(ages))


def granted(found: GrpoWorld) -> GrpoWorld:
    """The same run once it has its finalizer and its Workspace has placed what it asks for."""
    wanted = wanted_of(found)
    assert wanted
    holds = {found.meta.uid: placed(wanted, CREATED)}
    entry = found.catalog.workspace
    entry = replace(entry, status=entry.status.model_copy(update={"holds": holds}))
    meta = replace(found.meta, finalizers=(HOLD_FINALIZER,))
    return replace(found, meta=meta, catalog=replace(found.catalog, workspace=entry))
