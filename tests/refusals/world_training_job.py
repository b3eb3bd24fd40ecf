"""TrainingJob that the cluster as it is can't train: its catalog, data, recipe, parent, environments and judge."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from halo_api.adapter import AdapterStatus, Verification
from halo_operator.plan.admission import RULES, first_refusal
from halo_operator.plan.conditions import stamp
from halo_operator.plan.refusal import Refusal
from halo_operator.plan.world import BaseEntry, GpuEntry, RunWorld
from tests.refusals import InWorld
from tests.unit import builders as b

Row = InWorld[RunWorld]
GOOD = b.world()


def refusal(world: RunWorld) -> Refusal | None:
    """Return what the checks say, but for what is only not built yet."""
    return first_refusal(world, RULES)


def sft(**spec: Any) -> RunWorld:
    return b.world(spec=b.spec(**spec))


def found(**catalog: Any) -> RunWorld:
    """A good lora_trl job that finds this in the cluster."""
    return b.world(catalog=b.catalog(**catalog))


def base(**changes: Any) -> BaseEntry:
    facts = {"offers": ["lora_trl", "halo_rlvr", "halo_rft"], "chatTemplate": {"thinking": True}}
    return BaseEntry("smol", b.base(**(facts | changes)))


MOE = base(moe=True)
TRL = b.catalog(base=base(defaultTrainer="TRL"))

CATALOG: list[Row] = [
    Row("a namespace without the feature", found(workspace=b.workspace(features={"fineTuning": False})), GOOD, "FeatureOff", ("features.fineTuning: false",), "Workspace: features.fineTuning false", 404),
    Row("a base with a typing error", b.world(spec=b.spec(baseModel="smoll"), catalog=b.catalog(base=None)), GOOD, "UnknownBaseModel", ("spec.baseModel: found 'smoll'", "did you mean smol")),
    Row("a base of another name", b.world(spec=b.spec(baseModel="zz"), catalog=b.catalog(base=None)), GOOD, "UnknownBaseModel", ("there are: large, smol",)),
    Row("a base that is closed", found(base=base(fineTunable=False)), GOOD, "BaseNotOffered", ("fineTunable is false",), "BaseModel smol: fineTunable false"),
    Row("a base that offers other things", found(base=base(offers=["grpo"])), GOOD, "BaseNotOffered", ("smol offers grpo, found base lora_trl",), "BaseModel smol: offers [grpo]"),
    Row("a base without dpo", b.world(spec=b.spec(lora={"method": "dpo", "trainer": "TRL"}), catalog=b.catalog(base=base(methods=["sft"]), dataset=b.dataset(kind="preference"))), GOOD, "BaseNotOffered", ("spec.lora.method: smol offers sft, found dpo",), "BaseModel smol: methods [sft]"),
    Row("the model's own weights", sft(trainable="full"), GOOD, "BaseNotOffered", ("spec.trainable: found full", "use lora")),
    Row("an unknown GPU class", b.world(spec=b.spec(gpu={"type": "h200", "count": 1}), catalog=b.catalog(gpu=None)), GOOD, "UnknownGpuClass", ("found 'h200'", "h100")),
    Row("a name that another run's adapter has", found(adapter=b.taken("other")), GOOD, "AdapterNameTaken", ("metadata.name: found 'run'", "choose another name"), "another run's Adapter of that name"),
    Row("dpo with the base's own trainer", b.world(spec=b.spec(lora={"method": "dpo"}), catalog=b.catalog(dataset=b.dataset(kind="preference"))), b.world(spec=b.spec(lora={"method": "dpo"}), catalog=b.catalog(base=base(defaultTrainer="TRL"), dataset=b.dataset(kind="preference"))), "TrainerUnfit", ("the default of smol", "set spec.lora.trainer: TRL"), "BaseModel smol: defaultTrainer Halo"),
    Row("bundles with TRL", b.world(spec=b.spec(lora={"bundle": 8}), catalog=TRL), sft(lora={"bundle": 8}), "TrainerUnfit", ("spec.lora.bundle: found trainer TRL, the default of smol",), "BaseModel smol: defaultTrainer TRL"),
    Row("packed rows with TRL", b.world(spec=b.spec(lora={"packing": True}), catalog=TRL), sft(lora={"packing": True}), "TrainerUnfit", ("spec.lora.packing: found trainer TRL, the default of smol",), "BaseModel smol: defaultTrainer TRL"),
    Row("split rows with TRL", b.world(spec=b.spec(contextParallel="auto"), catalog=TRL), sft(contextParallel="auto"), "TrainerUnfit", ("spec.contextParallel: found trainer TRL", "set spec.lora.trainer: Halo"), "BaseModel smol: defaultTrainer TRL"),
]  # fmt: skip

LONG = b.catalog(dataset=b.dataset(inspections=(b.inspection(longestRow=4000),)))
COUNTED = ({"tokens": 1024, "rows": 9}, {"tokens": 2048, "rows": 7})
LONGER = b.catalog(dataset=b.dataset(inspections=(b.inspection(longestRow=4000, rows=40, longer=COUNTED),)))
DATA: list[Row] = [
    Row("no data set yet", found(dataset=None), GOOD, "DatasetPending", ("no such Dataset in namespace team", "goes on by itself"), "no Dataset of that name", pending=True),
    Row("an inspection that goes on", found(dataset=b.dataset(inspections=())), GOOD, "DatasetPending", ("is being inspected",), "a Dataset that is not inspected yet", pending=True),
    Row("an inspection at another revision", found(dataset=b.dataset(inspections=(b.inspection(revision="rev-0000"),))), GOOD, "DatasetPending", ("is being inspected",), "a Dataset that another revision has counted", pending=True),
    Row("a base that does not count it", found(dataset=b.dataset(bases=("large",), inspections=())), GOOD, "DatasetNotCounted", ("is counted for large and not for baseModel smol",), "Dataset: baseModels [large]", pending=True),
    Row("a data set that can't be read", found(dataset=b.dataset(stalled="line 7: no assistant turn")), GOOD, "DatasetInvalid", ("line 7: no assistant turn",), "a Dataset that is Stalled"),
    Row("tasks for sft", found(dataset=b.tasks()), GOOD, "DatasetUnfit", ("method sft trains on kind chat, found Dataset questions of kind tasks",), "Dataset: kind tasks"),
    Row("chat for dpo", b.world(spec=b.spec(lora={"method": "dpo", "trainer": "TRL"})), b.world(spec=b.spec(lora={"method": "dpo", "trainer": "TRL"}), catalog=b.catalog(dataset=b.dataset(kind="preference"))), "DatasetUnfit", ("method dpo trains on kind preference, found Dataset chat of kind chat",), "Dataset: kind chat"),
    Row("chat for halo_rlvr", b.of_tasks(b.rlvr_spec(), dataset=b.dataset()), b.of_tasks(b.rlvr_spec()), "DatasetUnfit", ("spec.rlvr.dataset: halo_rlvr trains on kind tasks",), "Dataset: kind chat"),
    Row("traffic for halo_rft", b.of_tasks(b.rft_spec(), dataset=b.tasks(kind="traffic")), b.of_tasks(b.rft_spec()), "DatasetUnfit", ("spec.rft.dataset: halo_rft trains on kind tasks",), "Dataset: kind traffic"),
    Row("no task at all", b.of_tasks(b.rft_spec(), dataset=b.tasks(rows=0)), b.of_tasks(b.rft_spec()), "DatasetUnfit", ("with 0 tasks, and one is needed",), "a Dataset of 0 tasks"),
    Row("fewer tasks than a step samples", b.of_tasks(b.rlvr_spec(batch=64, gpu={"type": "h100", "count": 3}), dataset=b.tasks(rows=15)), b.of_tasks(b.rlvr_spec(batch=64, gpu={"type": "h100", "count": 3})), "DatasetUnfit", ("with 15 tasks", "batch 64 x 2 trainer GPUs / 8 episodes a task = 16"), "a Dataset of 15 tasks", also=("spec.batch",)),
    Row("tasks of another environment", b.of_tasks(b.rlvr_spec(), dataset=b.counted_tasks(environments=[{"name": "sql", "rows": 497}, {"name": "support", "rows": 3}])), b.of_tasks(b.rlvr_spec(), dataset=b.counted_tasks(environments=[{"name": "sql", "rows": 500}])), "DatasetUnfit", ("sql_v3 runs tasks of environment sql, found Dataset questions with 3 of environment support",), "a Dataset with tasks of environment support"),
    Row("an opening prompt that fills the context", b.of_tasks(b.rlvr_spec(), dataset=b.counted_tasks(longestRow=2048)), b.of_tasks(b.rlvr_spec(), dataset=b.counted_tasks(longestRow=2047)), "RowTooLong", ("whose opening prompt has 2048 tokens, and an episode of sql_v3 on smol may have 2048",), "a task with an opening prompt of 2048 tokens, a context of 2048"),
    Row("rows longer than the base sees", b.world(catalog=LONG), b.world(spec=b.spec(lora={"overlength": "drop"}), catalog=LONG), "RowTooLong", ("found rows of up to 4000 tokens, more than the 2048 that fit", "drop or truncate"), "rows of up to 4000 tokens, a context of 2048"),
    Row("rows longer than maxLength", b.world(spec=b.spec(lora={"maxLength": 1500}), catalog=LONGER), b.world(spec=b.spec(lora={"maxLength": 1500, "overlength": "drop"}), catalog=LONGER), "RowTooLong", ("found 7 to 9 of 40 rows of up to 4000 tokens, more than the 1500 that fit",), "7 rows over 2048 tokens, 9 over 1024"),
    Row("rows longer than the context, counted", b.world(catalog=LONGER), b.world(spec=b.spec(lora={"overlength": "drop"}), catalog=LONGER), "RowTooLong", ("found 7 of 40 rows of up to 4000 tokens, more than the 2048 that fit",), "7 rows over 2048 tokens, 9 over 1024"),
    Row("a limit beyond the base's context", sft(lora={"maxLength": 4096}), sft(lora={"maxLength": 2048}), "RowTooLong", ("spec.lora.maxLength: found 4096, more than smol's context of 2048",), "a context of 2048"),
]  # fmt: skip

CHILD = b.spec(parent={"adapter": "support-v3"})
OWN = b.world(spec=CHILD, catalog=b.catalog(parent=b.parent()))


def child(**parent: Any) -> RunWorld:
    return b.world(spec=CHILD, catalog=b.catalog(parent=b.parent(**parent)))


def verified(began: datetime) -> RunWorld:
    """A run that was made now, whose parent's last verification began then."""
    at = stamp(began)
    status = AdapterStatus(verification=Verification(started_at=at, finished_at=at, digest=b.DIGEST))
    world = b.world(spec=CHILD, catalog=b.catalog(parent=replace(b.parent(), status=status)))
    return replace(world, meta=replace(world.meta, created_at=b.NOW))


def with_rank(rank: int) -> RunWorld:
    return b.world(
        spec=b.spec(parent={"adapter": "support-v3"}, lora={"rank": rank}), catalog=b.catalog(parent=b.parent())
    )


RL_CHILD = b.rlvr_spec(parent={"adapter": "support-v3"})
PARENT: list[Row] = [
    Row("a run that continues itself", b.world(spec=b.spec(parent={"adapter": "run"})), OWN, "ParentUnfit", ("spec.parent.adapter: found 'run', the name of the run itself",), "metadata.name: run", also=("spec.parent.adapter",)),
    Row("no parent yet", b.world(spec=CHILD), OWN, "ParentPending", ("spec.parent.adapter: found 'support-v3', but there is no such Adapter",), "no Adapter of that name", pending=True, also=("spec.parent.adapter",)),
    Row("a parent that nobody verified yet", child(verified="Unknown"), OWN, "ParentPending", ("which is not verified yet",), "Adapter: no condition Verified", pending=True, also=("spec.parent.adapter",)),
    Row("a parent that was verified before the run was made", verified(b.NOW - b.seconds(1)), verified(b.NOW), "ParentPending", ("which is being verified again before it is used",), "Adapter: verified earlier", pending=True, also=("spec.parent.adapter",)),
    Row("a parent that was found wrong", child(verified="False"), OWN, "ParentUnfit", ("found wrong (the digest differs)",), "Adapter: Verified=False", also=("spec.parent.adapter",)),
    Row("an imported parent", child(imported=True), OWN, "ParentUnfit", ("was imported and has no training receipt",), "Adapter: no trainedBy", also=("spec.parent.adapter",)),
    Row("a parent without a receipt", child(receipt=None), OWN, "ParentUnfit", ("which was published without a receipt", "never continued"), "Adapter: no receipt", also=("spec.parent.adapter",)),
    Row("a parent of another base", child(base={"name": "large", "revision": "rev-0001"}), OWN, "ParentUnfit", ("support-v3 has baseModel large (found smol here)",), "Adapter of base large", also=("spec.parent.adapter",)),
    Row("a parent of another revision", child(base={"name": "smol", "revision": "rev-0000"}), OWN, "ParentUnfit", ("has revision rev-0000 (found rev-0001 here)",), "Adapter of revision rev-0000", also=("spec.parent.adapter",)),
    Row("another rank than the parent's", with_rank(8), with_rank(16), "ParentUnfit", ("has rank 16 (found 8 here)",), "Adapter of rank 16", also=("spec.parent.adapter",)),
    Row("a parent that the recipe can't continue", b.of_tasks(RL_CHILD, parent=b.parent(rank=8, alpha=16)), b.of_tasks(RL_CHILD, parent=b.parent()), "ParentUnfit", ("has rank 8 (found 16 here), alpha 16 (found 32 here)",), "Adapter of rank 8, alpha 16", also=("spec.parent.adapter", "spec.rlvr.recipe")),
]  # fmt: skip


def listing(*recipes: str, **changes: Any) -> BaseEntry:
    return base(recipes=list(recipes), **changes)


def rl(recipe: str = "sql_v3", entry: BaseEntry | None = None, **spec: Any) -> RunWorld:
    return b.of_tasks(b.rlvr_spec(recipe, **spec), **({"base": entry} if entry else {}))


LARGE = "sql_v4_dapo_r3_122b"
RECIPE: list[Row] = [
    Row("a recipe that is none", b.of_tasks(b.rlvr_spec("sql_v5")), rl(), "UnknownRecipe", ("spec.rlvr.recipe: found 'sql_v5'", "did you mean"),),
    Row("a retired recipe", rl("sql_v1"), rl(), "RecipeRetired", ("found sql_v1, which is retired", "use sql_v3")),
    Row("a retired recipe, for halo_rft", b.of_tasks(b.rft_spec("graded_v1")), b.of_tasks(b.rft_spec("graded_v2")), "RecipeRetired", ("spec.rft.recipe: found graded_v1", "use graded_v2")),
    Row("a recipe that is not for halo_rft", b.of_tasks(b.rft_spec("bridged_v3")), b.of_tasks(b.rft_spec("bridged_v1")), "RecipeNotOffered", ("bridged_v3 is for halo_rlvr, found base halo_rft",)),
    Row("a base that trains one recipe only", rl("sql_v3", listing(LARGE, moe=True)), rl(LARGE, listing(LARGE, moe=True)), "RecipeNotOffered", (f"smol trains only {LARGE}, found sql_v3",), f"BaseModel smol: recipes [{LARGE}]"),
    Row("a recipe of one base only", rl(LARGE, MOE), rl(LARGE, listing(LARGE, moe=True)), "RecipeNotOffered", ("trains only base models that list it in spec.recipes, found smol",), "BaseModel smol: no recipes", also=("spec.rlvr.recipe",)),
    Row("expert routing of a dense base", rl("sql_v4_dapo_sync_r3"), rl("sql_v4_dapo_sync_r3", MOE), "RecipeNotOffered", ("needs a mixture of experts, found smol, which is dense", "use sql_v4_dapo_sync or"), "BaseModel smol: moe false", also=("spec.rlvr.recipe",)),
    Row("reasoning of a base without thinking", rl(mode="reasoning", entry=base(chatTemplate={"thinking": False})), rl(mode="reasoning"), "ModeUnfit", ("spec.mode: found reasoning, but smol's chat template has no thinking",), "BaseModel smol: chatTemplate.thinking false", also=("spec.mode",)),
    Row("reasoning of a recipe without thinking", rl(LARGE, listing(LARGE, moe=True), mode="reasoning"), rl(LARGE, listing(LARGE, moe=True), mode="final"), "ModeUnfit", (f"{LARGE} samples without thinking",)),
    Row("a judge beside a code recipe", rl("code_contests_v4", rlvr={"judge": {"criterion": "helpful", "weight": 1}}), rl("code_contests_v4"), "RecipeNotOffered", ("spec.rlvr.judge: code_contests_v4 takes none",)),
]  # fmt: skip

EIGHT = {"type": "h100", "count": 8}


def phase(which: str, steps: int = 10, **catalog: Any) -> RunWorld:
    return b.of_tasks(b.rlvr_spec(rlvr={which: {"envRevision": "public-v1", "steps": steps}}), **catalog)


def judged(**catalog: Any) -> RunWorld:
    return b.of_tasks(b.rlvr_spec(rlvr={"judge": {"criterion": "helpful", "weight": 0.5}}), **catalog)


BRIDGED = b.rlvr_spec("bridged_v1")
ENV, JUDGE = ("spec.rlvr.envRevision",), ("spec.rlvr.judge.criterion",)
HARNESS = b.rlvr_spec("harness_v1")
DATASET = ("spec.rlvr.recipe", "spec.rlvr.dataset")


def harnessed(environment: object = None, names: str | None = "desk-harness") -> RunWorld:
    """A harness_v1 job whose Dataset names its harness."""
    return b.of_tasks(HARNESS, dataset=b.tasks(environment=names), environment=environment)


STAGED = b.environment(package="Harness", staging={"url": "https://staging.example"})
ENVIRONMENT: list[Row] = [
    Row("no environment yet", b.of_tasks(BRIDGED, environment=None), b.of_tasks(BRIDGED), "EnvironmentPending", ("spec.rlvr.envRevision: found 'desk-v2', but there is no such Environment in namespace team",), "no Environment of that name", pending=True, also=ENV),
    Row("an environment that is being qualified", b.of_tasks(BRIDGED, environment=b.environment("Unknown")), b.of_tasks(BRIDGED), "EnvironmentPending", ("is not qualified for training yet",), "Environment: no condition Qualified", pending=True, also=ENV),
    Row("an environment that failed", b.of_tasks(BRIDGED, environment=b.environment("False")), b.of_tasks(BRIDGED), "EnvironmentUnfit", ("is not qualified for training (the gold solutions got 0.4)",), "Environment: Qualified=False", also=ENV),
    Row("a harness for a bridged recipe", b.of_tasks(BRIDGED, environment=b.environment(package="Harness", staging={"url": "https://staging.example"})), b.of_tasks(BRIDGED), "EnvironmentUnfit", ("whose package is Harness; name one of package OpenEnv or Verifiers",), "Environment: package Harness", also=ENV),
    Row("an environment of halo_rft that failed", b.of_tasks(b.rft_spec("bridged_v1"), environment=b.environment("False")), b.of_tasks(b.rft_spec("bridged_v1")), "EnvironmentUnfit", ("spec.rft.envRevision: found desk-v2",), "Environment: Qualified=False", also=("spec.rft.envRevision",)),
    Row("a data set without a harness", harnessed(names=None), harnessed(STAGED), "DatasetUnfit", ("harness_v1 runs tasks in a harness, found Dataset questions, which names none",), "Dataset: no environment", also=DATASET),
    Row("no harness yet", harnessed(), harnessed(STAGED), "EnvironmentPending", ("found 'desk-harness', but there is no such Environment in namespace team (Dataset questions names it)",), "no Environment of that name", pending=True, also=DATASET),
    Row("a bridged environment for a harness", harnessed(b.environment()), harnessed(STAGED), "EnvironmentUnfit", ("whose package is OpenEnv; name one of package Harness",), "Environment: package OpenEnv", also=DATASET),
    Row("a warm-up that takes too long", phase("warmup", 21), phase("warmup", 20), "PhaseTooLong", ("found 21, more than 20 % of spec.steps (100 / 5 = 20); use at most 20",), also=("spec.steps",)),
    Row("a warm-up that is not public", phase("warmup", warmup=None), phase("warmup"), "EnvironmentPending", ("spec.rlvr.warmup.envRevision: found 'public-v1'", "in the operator's own namespace"), "no public Environment of that name", pending=True, also=("spec.rlvr.warmup.envRevision",)),
    Row("a retention that takes too long", b.of_tasks(b.rlvr_spec(rlvr={"warmup": {"envRevision": "public-v1", "steps": 20}, "retention": {"envRevision": "public-v1", "steps": 9}})), b.of_tasks(b.rlvr_spec(rlvr={"warmup": {"envRevision": "public-v1", "steps": 20}, "retention": {"envRevision": "public-v1", "steps": 8}})), "PhaseTooLong", ("((100 - 20) / 10 = 8); use at most 8",), also=("spec.steps", "spec.rlvr.warmup.steps")),
    Row("a retention that failed", phase("retention", retention=b.environment("False")), phase("retention"), "EnvironmentUnfit", ("spec.rlvr.retention.envRevision",), "Environment: Qualified=False", also=("spec.rlvr.retention.envRevision",)),
    Row("no criterion yet", judged(criterion=None), judged(), "CriterionPending", ("spec.rlvr.judge.criterion: found 'helpful'",), "no Criterion of that name", pending=True, also=JUDGE),
    Row("a criterion that is being calibrated", judged(criterion=b.criterion("Unknown")), judged(), "CriterionPending", ("not calibrated yet",), "Criterion: no condition Calibrated", pending=True, also=JUDGE),
    Row("a criterion that people don't agree with", judged(criterion=b.criterion("False")), judged(), "CriterionNotCalibrated", ("agreement 0.6, wanted 0.8",), "Criterion: Calibrated=False", also=JUDGE),
    Row("a criterion that has drifted", judged(criterion=b.criterion(drifted="True")), judged(), "CriterionDrifted", ("has drifted", "calibrate it again"), "Criterion: Drifted=True", also=JUDGE),
    Row("a criterion of another unit", judged(criterion=b.criterion(unit="request")), judged(), "CriterionWrongUnit", ("judged as a trace, found helpful of unit request",), "Criterion: unit request", also=JUDGE),
]  # fmt: skip

TWO = base(gpus=2, moe=True)


def split(
    count: int, entry: BaseEntry | None = None, recipe: str = "sql_v3", spec: dict[str, Any] | None = None, **rlvr: Any
) -> RunWorld:
    facts = {"gpu": {"type": "h100", "count": count}, "rlvr": rlvr} | (spec or {})
    return b.of_tasks(b.rlvr_spec(recipe, **facts), **({"base": entry} if entry else {}))


def rows(longest: int, count: int, batch: int = 8, per_node: int = 8) -> RunWorld:
    """An sft job with rows of up to so many tokens on a base that sees them, contextParallel auto."""
    counted = b.dataset(inspections=(b.inspection(longestRow=longest),))
    found_ = b.catalog(
        base=base(contextLength=1_000_000), dataset=counted, gpu=GpuEntry("h100", b.gpu(perNode=per_node))
    )
    return b.world(
        spec=b.spec(contextParallel="auto", gpu={"type": "h100", "count": count}, batch=batch), catalog=found_
    )


COUNT, TWO_GPUS = ("spec.gpu.count",), "BaseModel smol: gpus 2"
LAYOUT: list[Row] = [
    Row("GPUs that fill no whole nodes", sft(gpu={"type": "h100", "count": 12}, batch=64), sft(gpu={"type": "h100", "count": 16}, batch=64), "Unfit", ("found 12, more than one node's 8 and not a multiple of it; use 8 or 16",), "GpuClass h100: perNode 8"),
    Row("fewer rows than GPUs", sft(gpu={"type": "h100", "count": 4}, batch=2), sft(gpu={"type": "h100", "count": 4}, batch=4), "Unfit", ("found 2 rows a step for 4 GPUs", "use at least 4"), also=COUNT),
    Row("a base whose server takes every GPU", split(3, TWO), split(4, TWO), "Unfit", ("gpu.count 3 - rolloutGpus 2 (unset: smol's gpus) = 1 to train, and smol trains on at least 2", "use at least 4"), TWO_GPUS),
    Row("rollout GPUs of the Workspace that leave none", b.of_tasks(b.rlvr_spec(), workspace=b.workspace(pipeline={"rolloutGpus": 2})), b.of_tasks(b.rlvr_spec()), "Unfit", ("gpu.count 2 - rolloutGpus 2 (unset: the Workspace's pipeline.rolloutGpus) = 0 to train",), "Workspace: pipeline.rolloutGpus 2", also=COUNT),
    Row("servers of more GPUs than the base is served on", split(8, TWO, rolloutGpus=4), split(8, TWO, rolloutGpus=4, rolloutReplicas=2), "Unfit", ("rolloutGpus 4 / rolloutReplicas 1 = 4 GPUs a server, and smol is served on 2; set rolloutReplicas: 2",), TWO_GPUS, also=("spec.rlvr.rolloutGpus",)),
    Row("servers of fewer GPUs than the base is served on", split(8, TWO, rolloutGpus=1), split(8, TWO, rolloutGpus=2), "Unfit", ("= 1 GPUs a server, and smol is served on 2; set rolloutGpus to a multiple of 2",), TWO_GPUS),
    Row("servers that don't divide the unset GPUs", split(2, rolloutReplicas=2), split(4, rolloutGpus=2, rolloutReplicas=2), "Unfit", ("found 2 servers for rolloutGpus 1 (unset)", "set rolloutGpus to a multiple of 2")),
    Row("a server across nodes", split(40, spec={"batch": 16}, rolloutGpus=16), split(40, spec={"batch": 16}, rolloutGpus=16, rolloutReplicas=2), "Unfit", ("= 16 GPUs a server, more than a node's 8", "raise rolloutReplicas"), "GpuClass h100: perNode 8", also=("spec.rlvr.rolloutGpus",)),
    Row("one server for sampling while training", split(4, recipe="sql_v4_dapo_async1", rolloutGpus=2), split(4, recipe="sql_v4_dapo_async1", rolloutGpus=2, rolloutReplicas=2), "Unfit", ("found 1, and sql_v4_dapo_async1 collects rollouts while it trains, on 2 servers or more",)),
    Row("trainers that fill no whole nodes", split(14, spec={"batch": 8}, rolloutGpus=2), split(18, spec={"batch": 8}, rolloutGpus=2), "Unfit", ("gpu.count 14 - rolloutGpus 2 = 12 to train, more than one node's 8", "use 10 or 18"), "GpuClass h100: perNode 8", also=("spec.rlvr.rolloutGpus",)),
    Row("halo_rft on a base of several GPUs", b.of_tasks(b.rft_spec(), base=TWO), b.of_tasks(b.rft_spec()), "Unfit", ("spec.baseModel: smol takes 2 GPUs, found base halo_rft, which runs on 1",), TWO_GPUS, also=("spec.base",)),
    Row("a batch that cuts a group", b.of_tasks(b.rlvr_spec(batch=20)), b.of_tasks(b.rlvr_spec(batch=16)), "Unfit", ("20 = 2 x 8 + 4; use 16 or 24",), also=("spec.rlvr.recipe",)),
    Row("a batch below a group", b.of_tasks(b.rlvr_spec("sql_v4_dapo_sync", batch=8)), b.of_tasks(b.rlvr_spec("sql_v4_dapo_sync", batch=16)), "Unfit", ("sql_v4_dapo_sync compares 16 of each task", "use 16"), also=("spec.rlvr.recipe",)),
    Row("split rows of a mixture of experts", split(4, MOE, spec={"contextParallel": 2}, rolloutGpus=2), split(4, spec={"contextParallel": 2}, rolloutGpus=2), "Unfit", ("smol is a mixture of experts",), "BaseModel smol: moe true", also=("spec.contextParallel",)),
    Row("a group that is not all trainers", split(4, spec={"contextParallel": 2}), split(3, spec={"contextParallel": 2}), "Unfit", ("found 2, but gpu.count 4 - rolloutGpus 1 (unset) = 3 to train", "use gpu.count 3"), also=("spec.contextParallel",)),
    Row("rows that 8 GPUs can't hold", rows(300_000, 8), rows(262_144, 8), "Unfit", ("300000 / 32768 = 10 pieces, found more than 8", "262144 tokens"), "rows of up to 300000 tokens", also=("spec.contextParallel",)),
    Row("GPUs that are not whole groups", rows(100_000, 6), rows(100_000, 8), "Unfit", ("100000 / 32768 = 4 pieces, so that 4 GPUs share a row, found 6, no multiple of 4; use 8",), "rows of up to 100000 tokens", also=("spec.contextParallel",)),
    Row("a group across nodes", rows(200_000, 8, per_node=4), rows(100_000, 8, per_node=4), "Unfit", ("8 GPUs share a row, found nodes of 4",), "rows of up to 200000 tokens, perNode 4", also=("spec.contextParallel",)),
    Row("groups that fill no whole nodes", rows(100_000, 12, per_node=6), rows(60_000, 12, per_node=6), "Unfit", ("4 GPUs share a row, found 12 on nodes of 6", "no multiple of 4", "use 4"), "rows of up to 100000 tokens, perNode 6", also=("spec.contextParallel", *COUNT)),
    Row("fewer rows than groups", rows(60_000, 8, batch=3), rows(60_000, 8, batch=4), "Unfit", ("found 3 rows a step for 4 groups of 2 GPUs", "use at least 4"), "rows of up to 60000 tokens", also=COUNT),
]  # fmt: skip

ROWS: list[Row] = [*CATALOG, *DATA, *PARENT, *RECIPE, *ENVIRONMENT, *LAYOUT]
