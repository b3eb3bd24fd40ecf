"""Checks of what a run is rewarded by beside its data: environments, the phases before and after the task, the judge."""

from __future__ import annotations

from halo_api.conditions import Reason
from halo_operator.plan.references import references
from halo_operator.plan.refusal import Refusal, part
from halo_operator.plan.world import EnvironmentEntry, RunWorld

BRIDGED = ("OpenEnv", "Verifiers", "NeMoGym", "AutomationBench")
HARNESS = ("Harness",)


def environment_is_usable(world: RunWorld) -> Refusal | None:
    """The environment of a bridged recipe is one of the namespace's own."""
    name = references(world.spec).environment
    where = f"in namespace {world.meta.namespace}"
    return usable(f"{part(world)}.envRevision", name, world.catalog.environment, where) if name else None


def harness_is_usable(world: RunWorld) -> Refusal | None:
    """The data set of a harness recipe names the customer's harness that its tasks run in."""
    recipe, dataset = world.catalog.recipe, world.catalog.dataset
    if recipe is None or dataset is None or recipe.spec.environment.name != "harness":
        return None
    name, field = dataset.spec.environment, f"{part(world)}.dataset"
    if name is None:
        return Refusal(
            Reason.DATASET_UNFIT,
            f"{field}: {recipe.name} runs tasks in a harness, found Dataset {dataset.name}, which names none (spec.environment); name a Dataset that does",
        )
    where = f"in namespace {world.meta.namespace} (Dataset {dataset.name} names it)"
    return usable(field, name, world.catalog.environment, where, HARNESS)


def warmup_is_usable(world: RunWorld) -> Refusal | None:
    """The warm-up's environment is a public one."""
    name = references(world.spec).warmup
    return usable("spec.rlvr.warmup.envRevision", name, world.catalog.warmup, PUBLIC) if name else None


def retention_is_usable(world: RunWorld) -> Refusal | None:
    """The retention's environment is a public one."""
    name = references(world.spec).retention
    return usable("spec.rlvr.retention.envRevision", name, world.catalog.retention, PUBLIC) if name else None


PUBLIC = "among the public ones, in the operator's own namespace"


def usable(
    field: str, name: str, found: EnvironmentEntry | None, where: str, packages: tuple[str, ...] = BRIDGED
) -> Refusal | None:
    """Refuse an environment of another package, or that failed its qualification; wait for one that may still pass it."""
    if found is None:
        words = f"{field}: found {name!r}, but there is no such Environment {where}; create it, and the run goes on by itself"
        return Refusal(Reason.ENVIRONMENT_PENDING, words, pending=True)
    if found.spec.package not in packages:
        return Refusal(
            Reason.ENVIRONMENT_UNFIT,
            f"{field}: found {name}, whose package is {found.spec.package}; name one of package {' or '.join(packages)}",
        )
    if found.qualified.status == "False":
        return Refusal(
            Reason.ENVIRONMENT_UNFIT,
            f"{field}: found {name}, which is not qualified for training ({found.qualified.message}); name another revision",
        )
    if found.qualified.status == "Unknown":
        words = f"{field}: found {name}, which is not qualified for training yet; the run starts when it is"
        return Refusal(Reason.ENVIRONMENT_PENDING, words, pending=True)
    return None


def warmup_is_short(world: RunWorld) -> Refusal | None:
    """The warm-up takes at most a fifth of the steps."""
    rlvr, steps = world.spec.rlvr, world.spec.steps
    if rlvr is None or rlvr.warmup is None or rlvr.warmup.steps * 5 <= steps:
        return None
    return Refusal(
        Reason.PHASE_TOO_LONG,
        f"spec.rlvr.warmup.steps: found {rlvr.warmup.steps}, more than 20 % of spec.steps ({steps} / 5 = {steps // 5}); use {at_most(steps // 5)}",
    )


def retention_is_short(world: RunWorld) -> Refusal | None:
    """The retention takes at most a tenth of the steps after the warm-up."""
    rlvr = world.spec.rlvr
    if rlvr is None or rlvr.retention is None:
        return None
    before = rlvr.warmup.steps if rlvr.warmup else 0
    after = max(0, world.spec.steps - before)
    if rlvr.retention.steps * 10 <= after:
        return None
    return Refusal(
        Reason.PHASE_TOO_LONG,
        f"spec.rlvr.retention.steps: found {rlvr.retention.steps}, more than 10 % of the steps after the warm-up "
        f"(({world.spec.steps} - {before}) / 10 = {after // 10}); use {at_most(after // 10)}",
    )


def at_most(steps: int) -> str:
    """Say what would do of a phase's steps."""
    return f"at most {steps}" if steps else "more spec.steps, or leave it out"


def judge_is_usable(world: RunWorld) -> Refusal | None:
    """A judge's reward counts only while it agrees with people, and it judges whole episodes."""
    name, found = references(world.spec).criterion, world.catalog.criterion
    field = "spec.rlvr.judge.criterion"
    if name is None:
        return None
    if found is None:
        words = f"{field}: found {name!r}, but there is no such Criterion in namespace {world.meta.namespace}; create it, and the run goes on by itself"
        return Refusal(Reason.CRITERION_PENDING, words, pending=True)
    if found.spec.unit != "trace":
        return Refusal(
            Reason.CRITERION_WRONG_UNIT,
            f"{field}: an episode is judged as a trace, found {name} of unit {found.spec.unit}; name one of unit trace",
        )
    if found.calibrated.status == "False":
        return Refusal(
            Reason.CRITERION_NOT_CALIBRATED,
            f"{field}: found {name}, whose judge does not agree with people's grades ({found.calibrated.message}); calibrate it, or name another",
        )
    if found.drifted.status == "True":
        return Refusal(
            Reason.CRITERION_DRIFTED,
            f"{field}: found {name}, whose judge has drifted from people's grades ({found.drifted.message}); calibrate it again, or name another",
        )
    if found.calibrated.status == "Unknown":
        words = f"{field}: found {name}, which is not calibrated yet; the run starts when it is"
        return Refusal(Reason.CRITERION_PENDING, words, pending=True)
    return None


ENVIRONMENT = (
    environment_is_usable,
    harness_is_usable,
    warmup_is_short,
    warmup_is_usable,
    retention_is_short,
    retention_is_usable,
    judge_is_usable,
)
