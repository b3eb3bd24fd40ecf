"""Reads the workload of a GrpoRun: colocated training and sampling on the same GPUs, judged rewards, and the bake-off after."""

from __future__ import annotations

import math
from dataclasses import replace

from halo_api.estimate import Estimate
from halo_api.grpo_status import FrozenGrpo
from halo_operator.plan import money
from halo_operator.plan.estimate import Workload, estimate
from halo_operator.plan.estimate_model import gpu_of, model_of
from halo_operator.plan.estimate_rates import ROOFLINE
from halo_operator.plan.estimate_rollout import Rollout
from halo_operator.plan.estimate_runs import JUDGE_SECONDS, judgement_micro_usd
from halo_operator.plan.estimate_training import Training
from halo_operator.plan.grpo.commitment import PROVISIONED_GPUS, committed, rates
from halo_operator.plan.grpo.world import GrpoWorld
from halo_operator.plan.quote import quote
from halo_operator.plan.world import GpuEntry

# Prompts of a step: no field of the API says it; a step of 8 prompts has 64 answers at the default group size.
PROMPTS_PER_STEP = 8
PROMPT_TOKENS = 1000.0
AGENTIC_PROMPT_TOKENS = 3000.0
AGENTIC_TURNS = 12.0
TOOL_TOKENS = 600.0
TOOL_SECONDS = 1.0
RANK = 16
# A checkpoint comes as often as a TrainingJob's by default.
SAVE_STEPS = 50


def grpo_quote(world: GrpoWorld, frozen: FrozenGrpo) -> Estimate | None:
    """Return the quote of a GrpoRun, at no more than its two budgets; None while its model or GPUs are not known."""
    work, found = grpo_workload(world, frozen), committed(world.spec, world.catalog.gpus)
    if work is None or found is None:
        return None
    hours = money.gpu_milliseconds(world.spec.gpu_hour_budget)
    budget = money.weighed(hours, work.gpu.h100_equivalent)
    judged = replace(work, judge_micro_usd=min(work.judge_micro_usd, found.reward))
    return quote(estimate(judged), found.rate, budget, judges=found.reward)


def grpo_workload(world: GrpoWorld, frozen: FrozenGrpo) -> Workload | None:
    """Return what the run will do, or None while something that it names is not there."""
    base, entry = world.catalog.base, gpus_of(world)
    if base is None or entry is None:
        return None
    model, gpu = model_of(base.spec), gpu_of(entry.spec)
    if frozen.params_b:
        model = replace(model, parameters=frozen.params_b * 1e9, active=frozen.params_b * 1e9)
    if frozen.qlora:
        model = replace(model, nf4=True)
    if frozen.vllm_gpu_memory_utilization and gpu.memory:
        gpu = replace(gpu, memory=gpu.memory * frozen.vllm_gpu_memory_utilization / ROOFLINE.memory_share)
    count = PROVISIONED_GPUS if world.spec.auto_provision else frozen.gpu_count or 1
    episodes = float(PROMPTS_PER_STEP * frozen.group_size)
    rollout = replace(episode(frozen), episodes=episodes, gpus=count, replicas=count)
    evaluated = replace(rollout, episodes=2.0 * frozen.holdout_count)
    calls = len(world.catalog.criteria) * frozen.max_steps * episodes + 2 * frozen.holdout_count
    price = max((judgement_micro_usd(c) for c in world.catalog.criteria.values()), default=0.0)
    return Workload(
        model,
        gpu,
        count,
        frozen.max_steps,
        SAVE_STEPS,
        Training(rows=episodes, row_tokens=rollout.episode_tokens, gpus=count, rank=RANK, scorings=1),
        rollout=rollout,
        unmerged=True,
        evaluated=evaluated,
        judge_micro_usd=math.ceil(calls * price),
    )


def episode(frozen: FrozenGrpo) -> Rollout:
    """Return what one answer, or one episode with tools, is like: its completion tokens are spread over its turns."""
    turns = 1.0 if frozen.episode_steps is None else min(AGENTIC_TURNS, float(frozen.episode_steps))
    agentic = frozen.episode_steps is not None
    return Rollout(
        episodes=1.0,
        turns=turns,
        prompt_tokens=AGENTIC_PROMPT_TOKENS if agentic else PROMPT_TOKENS,
        answer_tokens=frozen.max_completion_tokens * ROOFLINE.answer_share / turns,
        added_tokens=TOOL_TOKENS if agentic else 0.0,
        environment_seconds=TOOL_SECONDS if agentic else 0.0,
        reward_seconds=JUDGE_SECONDS,
        engine=frozen.use_vllm,
    )


def gpus_of(world: GrpoWorld) -> GpuEntry | None:
    """Return the GPU class that it will run on: as asked, the dearest that may be provisioned, or the user's own."""
    known, wanted = world.catalog.gpus, world.spec.platform_gpu
    if wanted is not None:
        return next((gpu for gpu in known if gpu.name == wanted.gpu_type), None)
    if world.spec.auto_provision:
        return max((gpu for gpu in known if rates([gpu])), key=lambda gpu: max(rates([gpu])), default=None)
    return next((gpu for gpu in known if gpu.spec.byo), None)
