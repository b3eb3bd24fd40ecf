"""GrpoRuns that a check refuses, fact by fact."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from halo_api.conditions import Reason
from halo_operator.plan.grpo.plan import grpo_answer
from halo_operator.plan.grpo.world import GrpoWorld, Prompts, ServingAdapter
from halo_operator.plan.refusal import Refusal
from halo_operator.plan.world import AdapterEntry, Verdict
from tests.refusals import InWorld
from tests.unit.builders_grpo import (
    ADOPT,
    CREATED,
    ENVIRONMENT,
    H100,
    alias,
    base,
    catalog,
    criterion,
    gpu,
    graded,
    starts,
    workspace,
    world,
)


def refusal(found: GrpoWorld) -> Refusal | None:
    """Return what a check says; that training is not built yet is no check's word."""
    answer = grpo_answer(found).refusal
    return None if answer.reason == Reason.NOT_YET_AVAILABLE else answer


def row(
    what: str, reason: Reason, *words: str, bad: GrpoWorld, good: GrpoWorld | None = None, **facts: Any
) -> InWorld[GrpoWorld]:
    """Return the row of a world; its good counterpart is the same run in a world that has everything, unless given."""
    return InWorld(what, bad, good or replace(bad, catalog=catalog(), starts=()), reason, words, **facts)


def judged(name: str, **changes: Any) -> GrpoWorld:
    """A run of one criterion that differs from a good one."""
    return world(catalog(criteria={name: criterion(name, **changes)}), reward={"mode": "single", "criterionId": name})


SERVED = (ServingAdapter("support-v1", "support-round-1", CREATED),)
OLD, NEW = graded(CREATED - timedelta(days=3)), graded(CREATED + timedelta(days=1))
TASKS = [{"goal": [f"task {n}"]} for n in range(12)]
AGENTIC = {"environment": ENVIRONMENT, "reward": {"mode": "single", "criterionId": "solved"}}
SCHEMA = {"mode": "compositional", "criterionIds": ["helpful"], "assertions": [{"type": "json_schema", "value": "{}"}]}
NO_SCHEMA = SCHEMA | {"assertions": [{"type": "json_schema", "value": "{type: object"}]}

START = [
    row("the feature off", Reason.FEATURE_OFF, "features.fineTuning: false", bad=world(catalog(workspace=workspace(features={"fineTuning": False}))), given="the Workspace has features.fineTuning: false", code=404),
    row("more starts than a minute allows", Reason.RATE_LIMITED, "found 20 GrpoRuns", "20 may start a minute", "12:00:30Z", bad=replace(world(), starts=starts(*[30] * 20)), good=replace(world(), starts=starts(*[30] * 19, 61, 90)), given="20 GrpoRuns were made half a minute ago", code=429),
    row("more starts than the Workspace allows", Reason.RATE_LIMITED, "found 2 GrpoRuns", "2 may start a minute", bad=replace(world(catalog(workspace=workspace(startsPerMinute=2))), starts=starts(1, 2)), given="startsPerMinute: 2, and 2 were just made", code=429),
]  # fmt: skip

MODEL = [
    row("an unknown model", Reason.UNKNOWN_BASE_MODEL, "spec.model: found 'qwen3-8', which is not in the catalog", "did you mean qwen3-8b", bad=world(catalog(base=None), model="qwen3-8"), good=world(), given="the catalog has qwen3-8b and qwen3-4b"),
    row("a model that is not fine-tunable", Reason.BASE_NOT_OFFERED, "fineTunable: false", bad=world(catalog(base=base(fineTunable=False))), given="the BaseModel has fineTunable: false", also=("spec.model",)),
    row("a model that does not offer grpo", Reason.BASE_NOT_OFFERED, "offers lora_trl;", bad=world(catalog(base=base(offers=["lora_trl"]))), given="the BaseModel offers lora_trl", also=("spec.model",)),
    row("a name that is taken", Reason.ADAPTER_NAME_TAKEN, "metadata.name: found 'run'", bad=world(catalog(adapter=AdapterEntry("run", "uid-2"))), given="another run made an Adapter of that name"),
]  # fmt: skip

SPEC = [
    row("a schema with NaN", Reason.INVALID_SPEC, "spec.reward.assertions[0].value", "no JSON schema", bad=world(reward=SCHEMA | {"assertions": [{"type": "json_schema", "value": '{"minimum": NaN}'}]}), good=world(reward=SCHEMA)),
    row("a schema that is no JSON", Reason.INVALID_SPEC, "spec.reward.assertions[0].value", "no JSON schema", bad=world(reward=NO_SCHEMA), good=world(reward=SCHEMA)),
    row("too much data in line", Reason.INVALID_SPEC, "found 12 tasks of", "98304 fit", "spec.tasksFrom", bad=world(promptCount=10, holdoutCount=1, tasksInline=[{"goal": ["x" * 8200]} for _ in range(12)], **AGENTIC), good=world(promptCount=10, holdoutCount=1, tasksInline=[{"goal": ["x" * 8000]} for _ in range(12)], **AGENTIC)),
]  # fmt: skip

JUDGES = [
    row("an unknown criterion", Reason.UNKNOWN_CRITERION, "spec.reward.criterionId: found 'helpfull'", "did you mean helpful?", bad=world(reward={"mode": "single", "criterionId": "helpfull"}), good=world(), given="the namespace has brief, helpful and solved"),
    row("one unknown criterion of several", Reason.UNKNOWN_CRITERION, "spec.reward.criterionIds[1]: found 'short'", bad=world(reward={"mode": "compositional", "criterionIds": ["helpful", "short"]}), good=world(reward={"mode": "compositional", "criterionIds": ["helpful", "brief"]}), given="the namespace has brief, helpful and solved"),
    row("a trace criterion without an environment", Reason.CRITERION_WRONG_UNIT, "a criterion of unit trace", "needs unit request", bad=world(reward={"mode": "single", "criterionId": "solved"}), good=world(), given="its unit is trace"),
    row("a request criterion with an environment", Reason.CRITERION_WRONG_UNIT, "a criterion of unit request", "needs unit trace", bad=world(environment=ENVIRONMENT), good=world(**AGENTIC), given="its unit is request"),
    row("a judge that was never calibrated", Reason.CRITERION_NOT_CALIBRATED, "which is not calibrated;", bad=judged("helpful", calibrated=Verdict()), given="the Criterion has no condition Calibrated", also=("spec.reward.criterionId",)),
    row("a judge that does not agree with people", Reason.CRITERION_NOT_CALIBRATED, "which is not calibrated: agreement 0.4", bad=judged("helpful", calibrated=Verdict("False", "Disagrees", "agreement 0.4")), given="Calibrated is False", also=("spec.reward.criterionId",)),
    row("a judge that has drifted", Reason.CRITERION_DRIFTED, "flagged as drifted: agreement fell to 0.6", bad=judged("helpful", drifted=Verdict("True", "Drifted", "agreement fell to 0.6")), given="Drifted is True", also=("spec.reward.criterionId",)),
    row("grades older than the policy that served the traffic", Reason.GRADES_TOO_OLD, "newest grade is of 2026-11-26", "Adapter support-v1 of GrpoRun support-round-1, published 2026-11-29", bad=world(catalog(criteria={"helpful": criterion("helpful", status=OLD)}, served_by=SERVED)), good=world(catalog(criteria={"helpful": criterion("helpful", status=NEW)}, served_by=SERVED)), given="the traffic was served by an earlier GrpoRun's adapter", also=("spec.reward.criterionId",)),
    row("no grade at all since the policy", Reason.GRADES_TOO_OLD, "newest grade is of no grade", bad=world(catalog(served_by=SERVED)), given="the same, and nobody has graded", also=("spec.reward.criterionId",)),
]  # fmt: skip

MONEY = [
    row("no such alias", Reason.ALIAS_MISSING, "spec.autoAdopt.aliasName: found 'support', but there is no such ModelAlias", bad=world(catalog(alias=None, alias_names=()), autoAdopt=ADOPT), given="no ModelAlias support", also=("spec.autoAdopt.aliasName",)),
    row("an alias without canaries", Reason.CANARY_NOT_ALLOWED, "canaries.allowed is false", bad=world(catalog(alias=alias(canaries={"allowed": False})), autoAdopt=ADOPT), given="the ModelAlias has canaries.allowed: false", also=("spec.autoAdopt.aliasName",)),
    row("no storage", Reason.STORAGE_NOT_CONFIGURED, "orchestration is not configured", bad=world(catalog(workspace=workspace(storage=None))), given="the Workspace has no storage"),
    row("provisioning that is not configured", Reason.PROVISIONING_NOT_CONFIGURED, "spec.autoProvision: found true", bad=world(catalog(workspace=workspace(autoProvision=False)), platformGpu=None, autoProvision=True), given="the Workspace has no autoProvision", also=("spec.autoProvision",)),
    row("an unknown GPU type", Reason.UNKNOWN_GPU_CLASS, "spec.platformGpu.gpuType: found 'h10'", "did you mean h100?", bad=world(platformGpu=H100 | {"gpuType": "h10"}), good=world(), given="the cluster has h100 and own"),
    row("no compute of one's own", Reason.UNKNOWN_GPU_CLASS, "spec.platformGpu: found none", "byo: true", bad=world(catalog(gpus=(gpu(),)), platformGpu=None), given="no GpuClass has byo: true"),
    row("no price in that region", Reason.NO_PRICE, "spec.platformGpu.region: found 'us-east'", "it has one in eu-west", bad=world(platformGpu=H100 | {"region": "us-east"}), good=world(), given="h100 has a price in eu-west"),
    row("a price that is not active", Reason.NO_PRICE, "h100 has none in any region", bad=world(catalog(gpus=(gpu(prices=[{"region": "eu-west", "usdPerHour": 2.5, "active": False}]),))), given="the only price of h100 has active: false", also=("spec.platformGpu.region",)),
    row("nothing that could be provisioned", Reason.NO_PRICE, "no GpuClass has an active price", bad=world(catalog(gpus=(gpu(prices=[]),)), platformGpu=None, autoProvision=True), given="no GpuClass has a price", also=("spec.autoProvision",)),
    row("no wallet", Reason.NO_WALLET, "No wallet for this workspace", bad=world(catalog(workspace=workspace(wallet=None))), given="the Workspace has no wallet"),
    row("a wallet that is a micro-dollar short", Reason.INSUFFICIENT_FUNDS, "30 USD of GPU time", "in all 55 USD, but the wallet has 54.999999 USD free", bad=world(catalog(workspace=workspace(balance="54.999999"))), good=world(catalog(workspace=workspace(balance="55"))), given="54.999999 USD are free; h100 costs 2.5 USD with a markup of 1.2", code=402, also=("spec.rewardBudgetUsd", "spec.gpuHourBudget")),
    row("a wallet short of the provisioned ceiling", Reason.INSUFFICIENT_FUNDS, "240 USD of GPU time (8 GPUs at the highest active rate)", "in all 265 USD", bad=world(catalog(workspace=workspace(balance="264"), gpus=(gpu(), gpu("cheap", prices=[{"region": "a", "usdPerHour": 1}]))), platformGpu=None, autoProvision=True), given="264 USD are free; the highest active rate is 3 USD", code=402, also=("spec.autoProvision", "spec.gpuHourBudget")),
    row("a wallet short of the judges on one's own compute", Reason.INSUFFICIENT_FUNDS, "0 USD of GPU time", "in all 25 USD", bad=world(catalog(workspace=workspace(balance="24")), platformGpu=None), given="24 USD are free; the GPUs are not billed", code=402, also=("spec.rewardBudgetUsd",)),
    row("a Workspace that goes, and holds nothing new", Reason.HOLD_PENDING, "found team, whose Workspace is being deleted", "wait until it is gone", bad=world(catalog(workspace=replace(workspace(), deleting=True))), given="the Workspace has a deletionTimestamp", pending=True),
]  # fmt: skip

PROMPTS = [
    row("too little traffic", Reason.NOT_ENOUGH_PROMPTS, "found 119 logged prompts, and 120 are needed (promptCount 100 and a holdout of 20)", bad=world(catalog(traffic=Prompts(119))), good=world(catalog(traffic=Prompts(120))), given="119 successful prompts are logged", also=("spec.promptCount",)),
    row("too little traffic with a tag", Reason.NOT_ENOUGH_PROMPTS, "found 0 logged prompts with tag 'support'", bad=world(catalog(traffic=Prompts(0)), promptTag="support"), given="no prompt has that tag", also=("spec.promptCount", "spec.promptTag")),
    row("too few candidates", Reason.NOT_ENOUGH_PROMPTS, "found 119 queued candidates of criterion helpful, and 120 are needed", bad=world(catalog(candidates=Prompts(119)), useCandidateQueue=True), good=world(catalog(candidates=Prompts(120), traffic=Prompts(0)), useCandidateQueue=True), given="119 candidates are queued", also=("spec.useCandidateQueue",)),
    row("too few candidates beside a mix", Reason.NOT_ENOUGH_PROMPTS, "found 90 queued candidates", "and 91 are needed (71 to train on and 20 held out)", bad=world(catalog(candidates=Prompts(90)), useCandidateQueue=True, curriculumMixRatio=0.29), good=world(catalog(candidates=Prompts(91)), useCandidateQueue=True, curriculumMixRatio=0.29), given="90 candidates are queued", also=("spec.curriculumMixRatio",)),
    row("too little traffic to mix in", Reason.NOT_ENOUGH_PROMPTS, "spec.curriculumMixRatio: found 28 logged prompts, and 29 are needed", bad=world(catalog(traffic=Prompts(28)), useCandidateQueue=True, curriculumMixRatio=0.29), good=world(catalog(traffic=Prompts(29)), useCandidateQueue=True, curriculumMixRatio=0.29), given="28 successful prompts are logged", also=("spec.curriculumMixRatio",)),
    row("too few tasks in line", Reason.NOT_ENOUGH_PROMPTS, "spec.tasksInline: found 12 tasks, and 13 are needed", bad=world(promptCount=10, tasksInline=TASKS, **AGENTIC), good=world(promptCount=10, holdoutCount=2, tasksInline=TASKS, **AGENTIC), also=("spec.promptCount",)),
    row("too few tasks in a Dataset", Reason.NOT_ENOUGH_PROMPTS, "spec.tasksFrom: found 100 tasks in Dataset booking", bad=world(catalog(tasks=Prompts(100)), tasksFrom="booking", **AGENTIC), given="the Dataset has 100 rows", also=("spec.tasksFrom", "spec.promptCount")),
    row("a Dataset of another kind", Reason.NOT_ENOUGH_PROMPTS, "(it is of kind chat)", bad=world(catalog(tasks=Prompts(0, "it is of kind chat")), tasksFrom="booking", **AGENTIC), given="the Dataset is of kind chat", also=("spec.tasksFrom",)),
    row("traffic that nobody has counted", Reason.DATASET_PENDING, "found no logged prompts that are counted: there is no Dataset of kind traffic", bad=world(catalog(traffic=Prompts(None, "there is no Dataset of kind traffic in the namespace"))), given="no Dataset of kind traffic", pending=True, also=("spec.promptCount",)),
]  # fmt: skip

ROWS = [*START, *MODEL, *SPEC, *JUDGES, *MONEY, *PROMPTS]
