"""TrainingJobs that the API server refuses, rule by rule."""

from __future__ import annotations

from typing import Any

from halo_api.recipe_names import BRIDGED as BRIDGED_RECIPES
from halo_api.recipe_names import RETIRED, REUSE2
from tests.refusals import Body, Refused
from tests.refusals.bodies import BRIDGED, DPO, RFT, RFT_BRIDGED, RLVR, SFT, at


def row(what: str, good: Body, changes: dict[str, Any], *words: str, also: tuple[str, ...] = ()) -> Refused:
    """Return the row of a good object with its spec changed at dotted paths."""
    bad = good
    for path, value in changes.items():
        bad = at(bad, f"spec.{path}", value)
    return Refused(what, bad, good, words, tuple(f"spec.{path}" for path in also))


def outside(path: str, good: Body, low: Any, high: Any) -> list[Refused]:
    """Return the rows of a number's bounds: zero or less, a negative, an absurd one, one in words, none at all."""
    name = f"spec.{path}"
    rows = [
        row(f"{path} below its least", good, {path: low}, name, "should be greater than"),
        row(f"{path} of 1e308", good, {path: 1e308}, name),
        row(f"{path} of NaN", good, {path: "NaN"}, name, '"string"'),
        row(f"{path} of .inf", good, {path: ".inf"}, name, '"string"'),
    ]
    return [*rows, row(f"{path} above its most", good, {path: high}, name, "should be less than")] if high else rows


NAMES = [
    Refused(
        "a name of 300 characters", at(SFT, "metadata.name", "a" * 300), SFT, ("metadata.name", "no more than 253")
    ),
    Refused("a name in capitals", at(SFT, "metadata.name", "Run"), SFT, ("metadata.name", '"Run"', "lowercase")),
    Refused("a misspelt field", at(SFT, "spec.lora.learnRate", 1e-4), SFT, ('unknown field "spec.lora.learnRate"',)),
]

COMMON = [
    row("an unknown kind of training", SFT, {"base": "lora"}, "spec.base", '"lora"', '"lora_trl"'),
    row("no base model", SFT, {"baseModel": None}, "spec.baseModel", "Required value"),
    row("a data set that nothing can be called", SFT, {"lora.dataset": "a..b"}, "spec.lora.dataset", '"a..b"'),
    row("no GPU type", SFT, {"gpu.type": None}, "spec.gpu.type", "Required value"),
    row("half a GPU", SFT, {"gpu.count": 0.5}, "spec.gpu.count", "integer"),
    row("half a GPU in words", SFT, {"gpu.count": "0.5 GPU"}, "spec.gpu.count", '"string"', "integer"),
    row("steps that are no number", SFT, {"steps": "many"}, "spec.steps", '"string"', "integer"),
    *outside("gpu.count", SFT, 0, 1025),
    *outside("steps", SFT, 0, 1000001),
    *outside("batch", SFT, 0, 65537),
    *outside("saveSteps", SFT, 0, 1000001),
    *outside("seed", SFT, -1, 2147483648),
    *outside("backoffLimit", SFT, -1, 101),
    *outside("budget.h100Hours", at(SFT, "spec.budget.h100Hours", 12.5), 0, 100001),
    row("a budget that would have to be rounded", at(SFT, "spec.budget.h100Hours", 12.345), {"budget.h100Hours": 12.3456}, "spec.budget.h100Hours", "more than 3 decimals, found 12.3456", "round it"),
    row("no parent's name", at(SFT, "spec.parent.adapter", "support-v3"), {"parent": {}}, "spec.parent.adapter", "Required value"),
    row("an unknown trainable", at(SFT, "spec.trainable", "lora"), {"trainable": "head"}, "spec.trainable", '"head"', '"full"'),
    row("an unknown mode", at(RLVR, "spec.mode", "final"), {"mode": "thinking"}, "spec.mode", '"thinking"', '"reasoning"'),
    row("a mode where nothing is sampled", SFT, {"mode": "final"}, "spec.mode", "bases halo_rlvr and halo_rft", "remove it", also=("base",)),
]  # fmt: skip

PARTS = [
    row("lora_trl without its part", SFT, {"lora": None}, "spec.lora", "required by base lora_trl, found none", "add spec.lora", also=("base",)),
    row("halo_rlvr without its part", RLVR, {"rlvr": None}, "spec.rlvr", "required by base halo_rlvr, found none", "add spec.rlvr", also=("base",)),
    row("halo_rft without its part", RFT, {"rft": None}, "spec.rft", "required by base halo_rft, found none", "add spec.rft", also=("base",)),
    row("lora with halo_rlvr", RLVR, {"lora": {"rank": 8}}, "spec.lora", "found base halo_rlvr", "remove it", also=("base",)),
    row("rlvr with lora_trl", SFT, {"rlvr": {"dataset": "questions"}}, "spec.rlvr", "belongs to base halo_rlvr, found base lora_trl", also=("base",)),
    row("rlvr with halo_rft", RFT, {"rlvr": {"dataset": "questions"}}, "spec.rlvr", "belongs to base halo_rlvr, found base halo_rft", also=("base",)),
    row("rft with lora_trl", SFT, {"rft": {"dataset": "questions"}}, "spec.rft", "belongs to base halo_rft, found base lora_trl", also=("base",)),
    row("rft with halo_rlvr", RLVR, {"rft": {"dataset": "questions"}}, "spec.rft", "belongs to base halo_rft, found base halo_rlvr", also=("base",)),
]  # fmt: skip

LORA = [
    row("lora without a dataset", SFT, {"lora": {"rank": 8}}, "spec.lora.dataset", "required by base lora_trl, found none", "name a Dataset"),
    row("an unknown trainer", at(SFT, "spec.lora.trainer", "Halo"), {"lora.trainer": "halo"}, "spec.lora.trainer", '"halo"', '"Halo", "TRL"'),
    row("an unknown method", at(SFT, "spec.lora.method", "sft"), {"lora.method": "ppo"}, "spec.lora.method", '"ppo"', '"dpo"'),
    row("dpo with the trainer Halo", DPO, {"lora.trainer": "Halo"}, "spec.lora.trainer", "must be TRL for method dpo, found Halo", "set trainer: TRL", also=("lora.method",)),
    row("beta with sft", SFT, {"lora.beta": 0.1}, "spec.lora.beta", "belongs to method dpo, found method sft", "remove it"),
    row("bundle with dpo", DPO, {"lora.bundle": 4}, "spec.lora.bundle", "belongs to sft with trainer Halo, found method dpo", "remove it", also=("lora.method",)),
    row("bundle with the trainer TRL", at(SFT, "spec.lora.bundle", 4), {"lora.trainer": "TRL"}, "spec.lora.bundle", "found trainer TRL", "remove it", also=("lora.bundle",)),
    row("packing with dpo", DPO, {"lora.packing": True}, "spec.lora.packing", "belongs to sft with trainer Halo, found true with method dpo", "remove it", also=("lora.method",)),
    row("packing with the trainer TRL", at(SFT, "spec.lora.packing", True), {"lora.trainer": "TRL"}, "spec.lora.packing", "found true with trainer TRL", "remove it", also=("lora.packing",)),
    row("a longer warm-up than the run", at(SFT, "spec.lora.warmupSteps", 10), {"lora.warmupSteps": 201}, "spec.lora.warmupSteps", "found 201 of 200 steps", "lower it", also=("steps",)),
    row("an unknown schedule", at(SFT, "spec.lora.schedule", "linear"), {"lora.schedule": "step"}, "spec.lora.schedule", '"step"', '"cosine"'),
    row("an unknown overlength", at(SFT, "spec.lora.overlength", "drop"), {"lora.overlength": "cut"}, "spec.lora.overlength", '"cut"', '"truncate"'),
    row("no target module", at(SFT, "spec.lora.targetModules", ["q_proj"]), {"lora.targetModules": []}, "spec.lora.targetModules", "at least 1"),
    row("a target module twice", at(SFT, "spec.lora.targetModules", ["q_proj"]), {"lora.targetModules": ["q_proj", "q_proj"]}, "spec.lora.targetModules", "Duplicate value"),
    row("a target module that is a pattern", at(SFT, "spec.lora.targetModules", ["q_proj"]), {"lora.targetModules": [".*"]}, "spec.lora.targetModules"),
    *outside("lora.rank", at(SFT, "spec.lora.rank", 16), 0, 257),
    *outside("lora.alpha", at(SFT, "spec.lora.alpha", 32), 0, 4097),
    *outside("lora.dropout", at(SFT, "spec.lora.dropout", 0.1), -0.1, 1),
    *outside("lora.learningRate", at(SFT, "spec.lora.learningRate", 2e-4), 0, 1.5),
    *outside("lora.weightDecay", at(SFT, "spec.lora.weightDecay", 0.1), -0.1, 1.5),
    *outside("lora.maxGradNorm", at(SFT, "spec.lora.maxGradNorm", 1), 0, 1001),
    *outside("lora.maxLength", at(SFT, "spec.lora.maxLength", 4096), 0, 16777217),
    *outside("lora.microBatch", at(SFT, "spec.lora.microBatch", 4), 0, 4097),
    *outside("lora.bundle", at(SFT, "spec.lora.bundle", 4), 0, 1025),
    *outside("lora.beta", at(DPO, "spec.lora.beta", 0.1), 0, 11),
    row("a negative rate", at(SFT, "spec.lora.learningRate", 2e-4), {"lora.learningRate": -1e-4}, "spec.lora.learningRate", "-0.0001", "greater than 0"),
]  # fmt: skip

CONTEXT_PARALLEL = [
    row("a number with lora_trl", at(SFT, "spec.contextParallel", "auto"), {"contextParallel": 4}, "spec.contextParallel", "must be auto with base lora_trl, found 4", also=("base",)),
    row("auto with dpo", DPO, {"contextParallel": "auto"}, "spec.contextParallel", "belongs to sft with trainer Halo, found method dpo", "remove it", also=("lora.method",)),
    row("auto with the trainer TRL", at(SFT, "spec.contextParallel", "auto"), {"lora.trainer": "TRL"}, "spec.contextParallel", "found trainer TRL", "remove it", also=("contextParallel",)),
    row("auto without packing", at(SFT, "spec.contextParallel", "auto"), {"lora.packing": False}, "spec.contextParallel", "splits rows that are packed, found lora.packing false", "remove one", also=("contextParallel",)),
    row("auto with halo_rlvr", at(RLVR, "spec.contextParallel", 2), {"contextParallel": "auto"}, "spec.contextParallel", "the number 2 or 4 with base halo_rlvr, found auto", also=("base",)),
    row("3 with halo_rlvr", at(RLVR, "spec.contextParallel", 2), {"contextParallel": 3}, "spec.contextParallel", "the number 2 or 4 with base halo_rlvr, found 3", also=("base",)),
    row("2 in quotes with halo_rlvr", at(RLVR, "spec.contextParallel", 2), {"contextParallel": "2"}, "spec.contextParallel", "the number 2 or 4 with base halo_rlvr", also=("base",)),
    row("another group than the trainer's GPUs", at(RLVR, "spec.contextParallel", 2), {"contextParallel": 4}, "spec.contextParallel", "found 4 for 2 (gpu.count 4 less rolloutGpus 2)", "make them equal", also=("gpu.count", "rlvr.rolloutGpus")),
    row("halo_rft over several GPUs", RFT, {"contextParallel": 2}, "spec.contextParallel", "found base halo_rft", "remove it", also=("base",)),
    row("half a GPU a group", at(RLVR, "spec.contextParallel", 2), {"contextParallel": 2.5}, "spec.contextParallel"),
]  # fmt: skip

ASYNC = at(at(RLVR, "spec.rlvr.recipe", "sql_v4_dapo_async1"), "spec.rlvr.rolloutReplicas", 2)
REUSE = at(at(RLVR, "spec.rlvr.recipe", REUSE2[0]), "spec.saveSteps", 50)
JUDGED = at(RLVR, "spec.rlvr.judge", {"criterion": "polite", "weight": 0.5})
WARM = at(RLVR, "spec.rlvr.warmup", {"envRevision": "echo-v1", "steps": 20})

RLVR_ROWS = [
    row("one GPU for training and rollouts", at(RLVR, "spec.rlvr.rolloutGpus", None), {"gpu.count": 1}, "spec.gpu.count", "at least 2 with base halo_rlvr, found 1", also=("base",)),
    row("rollouts on every GPU", RLVR, {"rlvr.rolloutGpus": 4}, "spec.rlvr.rolloutGpus", "found 4 of 4, which leaves no GPU to train", also=("gpu.count",)),
    row("servers of unequal shares", RLVR, {"rlvr.rolloutGpus": 3, "rlvr.rolloutReplicas": 2}, "spec.rlvr.rolloutReplicas", "must divide rolloutGpus, found 2 servers for 3 GPUs"),
    row("an async recipe on one server", ASYNC, {"rlvr.rolloutReplicas": 1}, "spec.rlvr.rolloutReplicas", "at least 2 with recipe sql_v4_dapo_async1", "found 1", also=("rlvr.recipe",)),
    row("no dataset", RLVR, {"rlvr.dataset": None}, "spec.rlvr.dataset", "required with recipe sql_v3, found none", also=("rlvr.recipe",)),
    row("a dataset with a bridged recipe", BRIDGED, {"rlvr.dataset": "questions"}, "spec.rlvr.dataset", "refused with recipe bridged_v1", "found questions", also=("rlvr.recipe",)),
    row("an environment without a bridged recipe", RLVR, {"rlvr.envRevision": "returns-desk-v2"}, "spec.rlvr.envRevision", "found recipe sql_v3", "remove it", also=("rlvr.recipe",)),
    *(row(f"{name} without an environment", at(BRIDGED, "spec.rlvr.recipe", name), {"rlvr.envRevision": None}, "spec.rlvr.envRevision", f"required with recipe {name}, found none", also=("rlvr.recipe",)) for name in BRIDGED_RECIPES),
    row("a judge of programs", JUDGED, {"rlvr.recipe": "code_contests_v4"}, "spec.rlvr.judge", "refused with recipe code_contests_v4", "remove it", also=("rlvr.judge.criterion",)),
    row("a judge without a criterion", JUDGED, {"rlvr.judge": {"weight": 1}}, "spec.rlvr.judge.criterion", "Required value"),
    *outside("rlvr.judge.weight", JUDGED, 0, 11),
    *(row(f"an odd saveSteps with {name}", at(REUSE, "spec.rlvr.recipe", name), {"saveSteps": 25}, "spec.saveSteps", f"even with recipe {name}", "found 25; use 26", also=("rlvr.recipe",)) for name in REUSE2),
    row("reasoning without thinking", at(RLVR, "spec.rlvr.recipe", "sql_v4_dapo_r3_122b"), {"mode": "reasoning"}, "spec.mode", "must be final with recipe sql_v4_dapo_r3_122b", also=("rlvr.recipe",)),
    row("an unknown recipe", RLVR, {"rlvr.recipe": "sql_v9"}, "spec.rlvr.recipe", "found sql_v9, which is no recipe; use one of sql_v2, sql_v3"),
    *(row(f"the retired recipe {old}", RLVR, {"rlvr.recipe": old}, "spec.rlvr.recipe", f"found {old}, which is retired", f"use {new}") for old, new in RETIRED.items()),
    row("a warm-up without steps", WARM, {"rlvr.warmup": {"envRevision": "echo-v1"}}, "spec.rlvr.warmup.steps", "Required value"),
    *outside("rlvr.warmup.steps", WARM, 0, 1000001),
    row("a retention without an environment", at(RLVR, "spec.rlvr.retention", {"envRevision": "echo-v1", "steps": 5}), {"rlvr.retention": {"steps": 5}}, "spec.rlvr.retention.envRevision", "Required value"),
    *outside("rlvr.rolloutGpus", RLVR, 0, 1024),
    *outside("rlvr.rolloutReplicas", RLVR, 0, 513),
]  # fmt: skip

RFT_ROWS = [
    row("halo_rft on two GPUs", RFT, {"gpu.count": 2}, "spec.gpu.count", "must be 1 with base halo_rft, found 2", also=("base",)),
    *(row(f"lora.{name} with halo_rft", at(RFT, "spec.lora", {"rank": 8, "alpha": 16, "learningRate": 1e-4}), {f"lora.{name}": value}, "spec.lora", "only rank, alpha and learningRate with base halo_rft", f"found {name}", also=("base",)) for name, value in {"trainer": "Halo", "method": "sft", "dataset": "tickets", "dropout": 0, "targetModules": ["q_proj"], "warmupSteps": 0, "schedule": "linear", "weightDecay": 0, "maxGradNorm": 1, "beta": 0.1, "maxLength": 4096, "overlength": "drop", "bundle": 2, "microBatch": 1, "packing": True}.items()),
    *(row(f"{name} with halo_rft", RFT_BRIDGED, {"rft.recipe": name}, "spec.rft.recipe", "must be bridged_v1 among the bridged ones", f"found {name}", also=("base",)) for name in BRIDGED_RECIPES[1:]),
    row("no dataset", RFT, {"rft.dataset": None}, "spec.rft.dataset", "required with recipe sql_v3, found none", also=("rft.recipe",)),
    row("a dataset with bridged_v1", RFT_BRIDGED, {"rft.dataset": "questions"}, "spec.rft.dataset", "refused with recipe bridged_v1", "found questions", also=("rft.recipe",)),
    row("bridged_v1 without an environment", RFT_BRIDGED, {"rft.envRevision": None}, "spec.rft.envRevision", "required with recipe bridged_v1, found none", also=("rft.recipe",)),
    row("an environment without bridged_v1", RFT, {"rft.envRevision": "returns-desk-v2"}, "spec.rft.envRevision", "belongs to recipe bridged_v1, found recipe sql_v3", also=("rft.recipe",)),
    row("reasoning without thinking", at(RFT, "spec.rft.recipe", "sql_v4_dapo_r3_122b"), {"mode": "reasoning"}, "spec.mode", "must be final with recipe sql_v4_dapo_r3_122b", also=("rft.recipe",)),
    row("an unknown recipe", RFT, {"rft.recipe": "sql_v9"}, "spec.rft.recipe", "found sql_v9, which is no recipe"),
    *(row(f"the retired recipe {old}", RFT, {"rft.recipe": old}, "spec.rft.recipe", f"found {old}, which is retired", f"use {new}") for old, new in RETIRED.items()),
    row("rolloutGpus with halo_rft", RFT, {"rft.rolloutGpus": 1}, 'unknown field "spec.rft.rolloutGpus"'),
    *outside("rft.samples", RFT, 0, 257),
    *outside("rft.tasks", RFT, 0, 1000001),
]  # fmt: skip

ROWS = [*NAMES, *COMMON, *PARTS, *LORA, *CONTEXT_PARALLEL, *RLVR_ROWS, *RFT_ROWS]
