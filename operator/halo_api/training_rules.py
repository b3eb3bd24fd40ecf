"""What a TrainingJob's spec alone decides: CEL rules, each naming the field, what was found and what would do.

All but those of the budget hold at creation only: the fields that they speak of are immutable, so a stored run that an older rule allowed
can still be suspended, labelled and reported on.
"""

from __future__ import annotations

from typing import Any

from halo_api.base import at_creation, rule
from halo_api.recipe_names import ASYNC, BRIDGED, CODE, NO_THINKING, REUSE2, RFT_BRIDGED

HALO_RFT_LORA = ("rank", "alpha", "learningRate")


def names(values: tuple[str, ...]) -> str:
    """Write a list of names in CEL."""
    return "[" + ", ".join(f"'{value}'" for value in values) + "]"


def any_of(*conditions: str) -> str:
    """Join alternatives."""
    return " || ".join(conditions)


LORA_TRL, HALO_RLVR, HALO_RFT = (f"self.base == '{base}'" for base in ("lora_trl", "halo_rlvr", "halo_rft"))
NO_LORA, NO_RLVR, NO_RFT = (f"!has(self.{part})" for part in ("lora", "rlvr", "rft"))
IS_DPO = "(has(self.lora) && has(self.lora.method) && self.lora.method == 'dpo')"
IS_TRL = "(has(self.lora) && has(self.lora.trainer) && self.lora.trainer == 'TRL')"


def part_of(part: str, base: str, least: str) -> dict[str, Any]:
    """Require the part of the spec that belongs to a base."""
    return at_creation(
        f"self.base != '{base}' || has(self.{part})",
        f"'is required by base {base}, found none; add spec.{part} with at least {least}'",
        f".{part}",
    )


def only_with(part: str, base: str) -> dict[str, Any]:
    """Refuse a part that belongs to another base."""
    return at_creation(
        f"self.base == '{base}' || !has(self.{part})",
        f"'belongs to base {base}, found base ' + self.base + '; remove it or set base: {base}'",
        f".{part}",
    )


PARTS = (
    part_of("lora", "lora_trl", "a dataset"),
    part_of("rlvr", "halo_rlvr", "a dataset, or a bridged recipe and its envRevision"),
    part_of("rft", "halo_rft", "a dataset"),
    at_creation(
        f"self.base != 'halo_rlvr' || {NO_LORA}",
        "'belongs to bases lora_trl and halo_rft, found base halo_rlvr, whose recipe decides rank, alpha and learning rate; remove it'",
        ".lora",
    ),
    only_with("rlvr", "halo_rlvr"),
    only_with("rft", "halo_rft"),
    at_creation(
        "self.base != 'lora_trl' || !has(self.mode)",
        "'belongs to bases halo_rlvr and halo_rft, which sample, found base lora_trl with mode ' + self.mode + '; remove it'",
        ".mode",
    ),
)

LORA_FIELDS = (
    "trainer", "method", "dataset", "dropout", "targetModules", "warmupSteps", "schedule", "weightDecay", "maxGradNorm",
    "beta", "maxLength", "overlength", "bundle", "microBatch", "packing",
)  # fmt: skip
# The first of them that is set: joining all would be beyond what CEL may cost.
NOT_OF_RFT = "".join(f"has(self.lora.{name}) ? '{name}' : " for name in LORA_FIELDS) + "''"

LORA = (
    at_creation(
        f"self.base != 'lora_trl' || {NO_LORA} || has(self.lora.dataset)",
        "'is required by base lora_trl, found none; name a Dataset of this namespace'",
        ".lora.dataset",
    ),
    at_creation(
        any_of("self.base != 'halo_rft'", NO_LORA, " && ".join(f"!has(self.lora.{name})" for name in LORA_FIELDS)),
        f"'takes only rank, alpha and learningRate with base halo_rft, found %s; remove it'.format([{NOT_OF_RFT}])",
        ".lora",
    ),
    at_creation(
        any_of(
            "self.base != 'lora_trl'", NO_LORA, "!has(self.lora.warmupSteps)", "self.lora.warmupSteps <= self.steps"
        ),
        "'must be at most spec.steps, found %d of %d steps; lower it'.format([self.lora.warmupSteps, self.steps])",
        ".lora.warmupSteps",
    ),
    at_creation(
        any_of("self.base != 'lora_trl'", f"!{IS_DPO}", "!has(self.lora.trainer)", "self.lora.trainer == 'TRL'"),
        "'must be TRL for method dpo, found ' + self.lora.trainer + '; set trainer: TRL or leave it out'",
        ".lora.trainer",
    ),
    at_creation(
        any_of("self.base != 'lora_trl'", NO_LORA, "!has(self.lora.beta)", IS_DPO),
        "'belongs to method dpo, found method sft; remove it or set method: dpo'",
        ".lora.beta",
    ),
    at_creation(
        any_of("self.base != 'lora_trl'", NO_LORA, "!has(self.lora.bundle)", f"!{IS_DPO} && !{IS_TRL}"),
        f"'belongs to sft with trainer Halo, found %s; remove it'.format([{IS_DPO} ? 'method dpo' : 'trainer TRL'])",
        ".lora.bundle",
    ),
    at_creation(
        any_of(
            "self.base != 'lora_trl'",
            NO_LORA,
            "!has(self.lora.packing)",
            "!self.lora.packing",
            f"!{IS_DPO} && !{IS_TRL}",
        ),
        f"'belongs to sft with trainer Halo, found true with %s; remove it'.format([{IS_DPO} ? 'method dpo' : 'trainer TRL'])",
        ".lora.packing",
    ),
)

CONTEXT_PARALLEL = (
    at_creation(
        any_of("self.base != 'lora_trl'", "!has(self.contextParallel)", "self.contextParallel == 'auto'"),
        "'must be auto with base lora_trl, found %s; set contextParallel: auto or leave it out'.format([self.contextParallel])",
        ".contextParallel",
    ),
    at_creation(
        any_of("self.base != 'lora_trl'", "!has(self.contextParallel)", f"!{IS_DPO} && !{IS_TRL}"),
        f"'belongs to sft with trainer Halo, found %s; remove it'.format([{IS_DPO} ? 'method dpo' : 'trainer TRL'])",
        ".contextParallel",
    ),
    at_creation(
        any_of(
            "self.base != 'lora_trl'",
            NO_LORA,
            "!has(self.contextParallel)",
            "!has(self.lora.packing)",
            "self.lora.packing",
        ),
        "'splits rows that are packed, found lora.packing false; remove one of them'",
        ".contextParallel",
    ),
    at_creation(
        any_of(
            "self.base != 'halo_rlvr'",
            "!has(self.contextParallel)",
            "self.contextParallel == 2",
            "self.contextParallel == 4",
        ),
        "'must be the number 2 or 4 with base halo_rlvr, found %s; set one of them or leave it out'.format([self.contextParallel])",
        ".contextParallel",
    ),
    at_creation(
        any_of("self.base != 'halo_rft'", "!has(self.contextParallel)"),
        "'belongs to bases lora_trl and halo_rlvr, found base halo_rft, which trains on one GPU; remove it'",
        ".contextParallel",
    ),
)

NOT_RLVR = any_of("self.base != 'halo_rlvr'", NO_RLVR)
ROLLOUT_GPUS = "self.rlvr.rolloutGpus"
TRAINER_GPUS = f"(self.gpu.count - {ROLLOUT_GPUS})"
RECIPE = "self.rlvr.recipe"

RLVR = (
    at_creation(
        "self.base != 'halo_rlvr' || self.gpu.count >= 2",
        "'must be at least 2 with base halo_rlvr, found 1; some GPUs train and the others serve rollouts'",
        ".gpu.count",
    ),
    at_creation(
        any_of(
            NOT_RLVR,
            "self.gpu.count < 2",
            f"!has({ROLLOUT_GPUS})",
            f"{ROLLOUT_GPUS} > 1023",
            f"{ROLLOUT_GPUS} < self.gpu.count",
        ),
        f"'must be below gpu.count, found %d of %d, which leaves no GPU to train; lower it or raise gpu.count'.format([{ROLLOUT_GPUS}, self.gpu.count])",
        ".rlvr.rolloutGpus",
    ),
    at_creation(
        # Zero servers are a bound's to refuse, and no divisor.
        any_of(
            NOT_RLVR,
            f"!has({ROLLOUT_GPUS})",
            "self.rlvr.rolloutReplicas < 1",
            "self.rlvr.rolloutReplicas > 512",
            f"{ROLLOUT_GPUS} % self.rlvr.rolloutReplicas == 0",
        ),
        f"'must divide rolloutGpus, found %d servers for %d GPUs; give each server as many'.format([self.rlvr.rolloutReplicas, {ROLLOUT_GPUS}])",
        ".rlvr.rolloutReplicas",
    ),
    at_creation(
        any_of(NOT_RLVR, f"!({RECIPE} in {names(ASYNC)})", "self.rlvr.rolloutReplicas >= 2"),
        f"'must be at least 2 with recipe ' + {RECIPE} + ', which collects rollouts while it trains, found 1; set rolloutReplicas: 2 or more'",
        ".rlvr.rolloutReplicas",
    ),
    at_creation(
        any_of(NOT_RLVR, f"{RECIPE} in {names(BRIDGED)}", "has(self.rlvr.dataset)"),
        f"'is required with recipe ' + {RECIPE} + ', found none; name a Dataset of kind tasks'",
        ".rlvr.dataset",
    ),
    at_creation(
        any_of(NOT_RLVR, f"!({RECIPE} in {names(BRIDGED)})", "!has(self.rlvr.dataset)"),
        f"'is refused with recipe ' + {RECIPE} + ', whose tasks are those of envRevision, found ' + self.rlvr.dataset + '; remove it'",
        ".rlvr.dataset",
    ),
    at_creation(
        any_of(NOT_RLVR, f"!({RECIPE} in {names(BRIDGED)})", "has(self.rlvr.envRevision)"),
        f"'is required with recipe ' + {RECIPE} + ', found none; name a qualified Environment of this namespace'",
        ".rlvr.envRevision",
    ),
    at_creation(
        any_of(NOT_RLVR, f"{RECIPE} in {names(BRIDGED)}", "!has(self.rlvr.envRevision)"),
        f"'belongs to the recipes bridged_v1 to bridged_v5, found recipe ' + {RECIPE} + '; remove it or use one of those'",
        ".rlvr.envRevision",
    ),
    at_creation(
        any_of(NOT_RLVR, f"!({RECIPE} in {names(CODE)})", "!has(self.rlvr.judge)"),
        f"'is refused with recipe ' + {RECIPE} + ', where the tests of the programs are the reward; remove it'",
        ".rlvr.judge",
    ),
    at_creation(
        any_of(NOT_RLVR, f"!({RECIPE} in {names(REUSE2)})", "self.saveSteps % 2 == 0"),
        f"'must be even with recipe %s, whose rounds are two steps, found %d; use %d'.format([{RECIPE}, self.saveSteps, self.saveSteps + 1])",
        ".saveSteps",
    ),
    at_creation(
        any_of(NOT_RLVR, f"!({RECIPE} in {names(NO_THINKING)})", "!has(self.mode)", "self.mode != 'reasoning'"),
        f"'must be final with recipe ' + {RECIPE} + ', which samples without thinking, found reasoning; set mode: final or leave it out'",
        ".mode",
    ),
    at_creation(
        any_of(
            NOT_RLVR,
            "!has(self.contextParallel)",
            f"!has({ROLLOUT_GPUS})",
            f"{ROLLOUT_GPUS} >= self.gpu.count",
            "self.contextParallel != 2 && self.contextParallel != 4",
            f"self.contextParallel == {TRAINER_GPUS}",
        ),
        f"'must be the number of trainer GPUs, found %s for %d (gpu.count %d less rolloutGpus %d); make them equal'.format([self.contextParallel, {TRAINER_GPUS}, self.gpu.count, {ROLLOUT_GPUS}])",
        ".contextParallel",
    ),
)

NOT_RFT = any_of("self.base != 'halo_rft'", NO_RFT)
RFT_RECIPE = "self.rft.recipe"
OTHER_BRIDGED = names(tuple(name for name in BRIDGED if name != RFT_BRIDGED))

RFT = (
    at_creation(
        "self.base != 'halo_rft' || self.gpu.count == 1",
        "'must be 1 with base halo_rft, found %d; set count: 1'.format([self.gpu.count])",
        ".gpu.count",
    ),
    at_creation(
        any_of(NOT_RFT, f"!({RFT_RECIPE} in {OTHER_BRIDGED})"),
        f"'must be {RFT_BRIDGED} among the bridged ones with base halo_rft, found ' + {RFT_RECIPE} + '; use {RFT_BRIDGED}'",
        ".rft.recipe",
    ),
    at_creation(
        any_of(NOT_RFT, f"{RFT_RECIPE} in {names(BRIDGED)}", "has(self.rft.dataset)"),
        f"'is required with recipe ' + {RFT_RECIPE} + ', found none; name a Dataset of kind tasks'",
        ".rft.dataset",
    ),
    at_creation(
        any_of(NOT_RFT, f"{RFT_RECIPE} != '{RFT_BRIDGED}'", "!has(self.rft.dataset)"),
        f"'is refused with recipe {RFT_BRIDGED}, whose tasks are those of envRevision, found ' + self.rft.dataset + '; remove it'",
        ".rft.dataset",
    ),
    at_creation(
        any_of(NOT_RFT, f"{RFT_RECIPE} != '{RFT_BRIDGED}'", "has(self.rft.envRevision)"),
        f"'is required with recipe {RFT_BRIDGED}, found none; name a qualified Environment of this namespace'",
        ".rft.envRevision",
    ),
    at_creation(
        any_of(NOT_RFT, f"{RFT_RECIPE} in {names(BRIDGED)}", "!has(self.rft.envRevision)"),
        f"'belongs to recipe {RFT_BRIDGED}, found recipe ' + {RFT_RECIPE} + '; remove it or set recipe: {RFT_BRIDGED}'",
        ".rft.envRevision",
    ),
    at_creation(
        any_of(NOT_RFT, f"!({RFT_RECIPE} in {names(NO_THINKING)})", "!has(self.mode)", "self.mode != 'reasoning'"),
        f"'must be final with recipe ' + {RFT_RECIPE} + ', which samples without thinking, found reasoning; set mode: final or leave it out'",
        ".mode",
    ),
)

BUDGET_ONLY_RISES = (
    rule(
        "has(self.budget) == has(oldSelf.budget)",
        "'can neither be added nor removed after creation, found it %s; apply a new TrainingJob under another name'.format([has(self.budget) ? 'added' : 'removed'])",
        ".budget",
    ),
    rule(
        any_of("!has(self.budget)", "!has(oldSelf.budget)", "self.budget.h100Hours >= oldSelf.budget.h100Hours"),
        "'may only be raised, found %s after %s; put it back or raise it'.format([string(self.budget.h100Hours), string(oldSelf.budget.h100Hours)])",
        ".budget.h100Hours",
    ),
)

SPEC_RULES = (*PARTS, *LORA, *CONTEXT_PARALLEL, *RLVR, *RFT, *BUDGET_ONLY_RISES)


def frozen_field(name: str) -> dict[str, Any]:
    """Build the rule that a run's field is a record: neither changed, added nor removed after creation."""
    return rule(
        f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
        "'is immutable: a run is a record of what was asked; apply a new TrainingJob under another name'",
        f".{name}",
    )
