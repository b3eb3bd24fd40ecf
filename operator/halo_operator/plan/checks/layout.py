"""Checks of a run's GPUs: how many train and serve, and whether that comes out even. Each shows its arithmetic."""

from __future__ import annotations

from halo_operator.plan.checks.data import longest_row_of
from halo_operator.plan.refusal import Refusal, unfit
from halo_operator.plan.split import GROUPS, WHOLE_ROW, group_for, split_of
from halo_operator.plan.world import RunWorld


def some_gpus_train(world: RunWorld) -> Refusal | None:
    """Rollouts must leave GPUs for the trainer: as many as the base takes."""
    base, split = world.catalog.base, split_of(world)
    if base is None or world.spec.rlvr is None:
        return None
    least = base.spec.gpus
    if split.trainer >= least:
        return None
    why = f"{base.name} trains on at least {least}" if least > 1 else "at least 1 must train"
    return unfit(
        f"spec.gpu.count: found {split.arithmetic}, and {why}; use at least {split.rollout + least}, or fewer rolloutGpus"
    )


def servers_share_alike(world: RunWorld) -> Refusal | None:
    """Every rollout server has as many GPUs as the others."""
    split = split_of(world)
    if world.spec.rlvr is None or split.rollout % split.replicas == 0:
        return None
    return unfit(
        f"spec.rlvr.rolloutReplicas: found {split.replicas} servers for rolloutGpus {split.rollout}{split.because}, and {split.rollout} / {split.replicas} is no whole number; "
        f"set rolloutGpus to a multiple of {split.replicas}"
    )


def servers_have_the_bases_gpus(world: RunWorld) -> Refusal | None:
    """A base of several GPUs is served on exactly that many a server; no server spans nodes."""
    base, gpu, split = world.catalog.base, world.catalog.gpu, split_of(world)
    if base is None or world.spec.rlvr is None or split.rollout % split.replicas:
        return None
    each, needed = split.rollout // split.replicas, base.spec.gpus
    sum_ = f"rolloutGpus {split.rollout}{split.because} / rolloutReplicas {split.replicas} = {each} GPUs a server"
    if needed > 1 and each != needed:
        fix = (
            f"set rolloutReplicas: {split.rollout // needed}"
            if split.rollout % needed == 0
            else f"set rolloutGpus to a multiple of {needed}, and rolloutReplicas to rolloutGpus / {needed}"
        )
        return unfit(f"spec.rlvr.rolloutGpus: found {sum_}, and {base.name} is served on {needed}; {fix}")
    if gpu is not None and each > gpu.spec.per_node:
        return unfit(
            f"spec.rlvr.rolloutGpus: found {sum_}, more than a node's {gpu.spec.per_node} (GpuClass {gpu.name}), and a server never spans nodes; raise rolloutReplicas"
        )
    return None


def enough_servers(world: RunWorld) -> Refusal | None:
    """A recipe that samples while it trains needs a server that is not being updated."""
    recipe, rlvr = world.catalog.recipe, world.spec.rlvr
    if recipe is None or rlvr is None or rlvr.rollout_replicas >= recipe.spec.rollouts.min_replicas:
        return None
    least = recipe.spec.rollouts.min_replicas
    return unfit(
        f"spec.rlvr.rolloutReplicas: found {rlvr.rollout_replicas}, and {recipe.name} collects rollouts while it trains, on {least} servers or more; set rolloutReplicas: {least}"
    )


def rft_has_one_gpu(world: RunWorld) -> Refusal | None:
    """Rejection sampling runs on one GPU, which must hold the base."""
    base = world.catalog.base
    if base is None or world.spec.base != "halo_rft" or base.spec.gpus == 1:
        return None
    return unfit(
        f"spec.baseModel: {base.name} takes {base.spec.gpus} GPUs, found base halo_rft, which runs on 1; use halo_rlvr, or a base model of one GPU"
    )


def trainers_fill_their_nodes(world: RunWorld) -> Refusal | None:
    """A run that trains on several nodes uses every one of them alike."""
    gpu, split = world.catalog.gpu, split_of(world)
    if gpu is None or split.trainer <= gpu.spec.per_node or split.trainer % gpu.spec.per_node == 0:
        return None
    per, train = gpu.spec.per_node, split.trainer
    low, high = train // per * per + split.rollout, (train // per + 1) * per + split.rollout
    found = f"found {split.count}" if world.spec.rlvr is None else f"found {split.arithmetic}"
    return unfit(f"spec.gpu.count: {found}, more than one node's {per} and not a multiple of it; use {low} or {high}")


def batch_reaches_every_gpu(world: RunWorld) -> Refusal | None:
    """Each group of GPUs that trains rows together has one in every step."""
    if world.spec.base != "lora_trl":
        return None
    count, batch, group = world.spec.gpu.count, world.spec.batch, context_group(world) or 1
    takers = count // group if count % group == 0 else count
    if batch >= takers:
        return None
    who = "GPUs" if group == 1 else f"groups of {group} GPUs"
    return unfit(
        f"spec.batch: found {batch} rows a step for {takers} {who}, so that some would have none; use at least {takers}"
    )


def batch_is_whole_groups(world: RunWorld) -> Refusal | None:
    """Episodes of one task are compared with each other: a group is never cut."""
    recipe, batch = world.catalog.recipe, world.spec.batch
    if recipe is None or world.spec.rlvr is None:
        return None
    size = recipe.spec.rollouts.group_size
    if batch % size == 0:
        return None
    would = f"{batch // size * size} or {(batch // size + 1) * size}" if batch > size else f"{size}"
    return unfit(
        f"spec.batch: found {batch} episodes a step and trainer GPU, and {recipe.name} compares {size} of each task: {batch} = {batch // size} x {size} + {batch % size}; use {would}"
    )


def context_group(world: RunWorld) -> int | None:
    """Return how many GPUs share a long row; 1 when rows train whole, None when no group would do."""
    asked = world.spec.context_parallel
    if asked is None:
        return 1
    if isinstance(asked, int):
        return asked
    longest = longest_row_of(world)
    return 1 if longest is None else group_for(longest)


def long_rows_find_a_group(world: RunWorld) -> Refusal | None:
    """contextParallel auto takes 2, 4 or 8 GPUs a row, and all GPUs are in such groups."""
    longest, gpu = longest_row_of(world), world.catalog.gpu
    if world.spec.base != "lora_trl" or world.spec.context_parallel is None or longest is None:
        return None
    group, count = group_for(longest), world.spec.gpu.count
    pieces = -(-longest // WHOLE_ROW)
    sum_ = f"the longest row has {longest} tokens: {longest} / {WHOLE_ROW} = {pieces} pieces"
    if group is None:
        most = GROUPS[-1]
        return unfit(
            f"spec.contextParallel: {sum_}, found more than {most}, the most GPUs that share a row; shorten the rows to {most * WHOLE_ROW} tokens"
        )
    if count % group:
        return unfit(
            f"spec.gpu.count: {sum_}, so that {group} GPUs share a row, found {count}, no multiple of {group}; use {(count // group + 1) * group}"
        )
    if gpu is not None and group > gpu.spec.per_node:
        return unfit(
            f"spec.contextParallel: {sum_}, so that {group} GPUs share a row, found nodes of {gpu.spec.per_node} (GpuClass {gpu.name}), and a group never leaves its node; shorten the rows, or use another class"
        )
    if gpu is not None and count > gpu.spec.per_node and gpu.spec.per_node % group:
        return unfit(
            f"spec.gpu.count: {sum_}, so that {group} GPUs share a row, found {count} on nodes of {gpu.spec.per_node} (GpuClass {gpu.name}), no multiple of {group}, and a group never leaves its node; use {gpu.spec.per_node // group * group}"
        )
    return None


def trainers_are_one_group(world: RunWorld) -> Refusal | None:
    """With halo_rlvr all trainer GPUs share every row: a dense base's LoRA only."""
    base, gpu, asked, split = world.catalog.base, world.catalog.gpu, world.spec.context_parallel, split_of(world)
    if world.spec.rlvr is None or not isinstance(asked, int):
        return None
    if base is not None and base.spec.moe:
        return unfit(
            f"spec.contextParallel: found {asked}, but {base.name} is a mixture of experts, and only a dense base's rows are split; leave it out"
        )
    if split.trainer != asked:
        return unfit(
            f"spec.contextParallel: found {asked}, but {split.arithmetic}, and all of them are one group; use gpu.count {split.rollout + asked}"
        )
    if gpu is not None and asked > gpu.spec.per_node:
        return unfit(
            f"spec.contextParallel: found {asked}, but nodes of GpuClass {gpu.name} have {gpu.spec.per_node} GPUs, and a group never leaves its node; use another class"
        )
    return None


LAYOUT = (
    rft_has_one_gpu,
    servers_share_alike,
    servers_have_the_bases_gpus,
    enough_servers,
    some_gpus_train,
    trainers_are_one_group,
    trainers_fill_their_nodes,
    batch_is_whole_groups,
    long_rows_find_a_group,
    batch_reaches_every_gpu,
)
