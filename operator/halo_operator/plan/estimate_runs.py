"""Reads the workload of a TrainingJob from what admission found: the rows of its data set, the episodes of its recipe."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from halo_api.dataset import Inspection
from halo_api.recipe import RecipeSpec
from halo_operator.plan.estimate import Workload
from halo_operator.plan.estimate_model import Gpu, Model, gpu_of, model_of
from halo_operator.plan.estimate_rates import ROOFLINE
from halo_operator.plan.estimate_rollout import Rollout
from halo_operator.plan.estimate_training import Training
from halo_operator.plan.resolve import rank_of
from halo_operator.plan.split import GROUPS, WHOLE_ROW, group_for, split_of
from halo_operator.plan.world import CriterionEntry, RunWorld

# An answer without thinking is short, whatever its limit.
SHORT_ANSWER = 400.0


class Episodes(NamedTuple):
    """What an episode of an environment is like, before any was measured: see docs/estimate.md."""

    turns: float
    prompt_tokens: float
    added_tokens: float
    environment_seconds: float
    reward_seconds: float


EPISODES = {
    "sql": Episodes(6, 2000, 300, 0.2, 0.5),
    "support": Episodes(8, 2500, 400, 0.5, 0.5),
    "structured": Episodes(1, 1500, 0, 0.0, 0.1),
    "graded": Episodes(2, 1500, 200, 0.1, 0.5),
    "code_contests": Episodes(3, 1500, 500, 5.0, 5.0),
    "harness": Episodes(10, 3000, 800, 2.0, 2.0),
    "bridged": Episodes(12, 3000, 600, 1.0, 1.0),
}
JUDGE_SECONDS = 5.0
# Tokens in and out of a judgement that was not calibrated yet.
UNMEASURED_JUDGEMENT = (4000, 500)


@dataclass(frozen=True)
class Parts:
    """What every estimate needs; there is none while the catalog lacks it."""

    model: Model
    gpu: Gpu


def workload_of(world: RunWorld) -> Workload | None:
    """Return what the run will do, or None while something that it names is not there."""
    base, gpu = world.catalog.base, world.catalog.gpu
    if base is None or gpu is None:
        return None
    parts = Parts(model_of(base.spec), gpu_of(gpu.spec))
    if world.spec.base == "lora_trl":
        return lora_trl(world, parts)
    return halo_rlvr(world, parts) if world.spec.base == "halo_rlvr" else halo_rft(world, parts)


def lora_trl(world: RunWorld, parts: Parts) -> Workload | None:
    """Rows of the data set as they were counted; DPO trains two a pair and scores each with its reference."""
    spec, lora, counted = world.spec, world.spec.lora, counted_by(world)
    if lora is None or counted is None:
        return None
    limit = float(lora.max_length or (world.catalog.base.spec.context_length if world.catalog.base else math.inf))
    longest = min(float(counted.longest_row), limit)
    dpo = lora.method == "dpo"
    # A pair is counted as one row of both answers, each behind its prompt.
    each = 2 if dpo else 1
    training = Training(
        rows=spec.batch * each,
        row_tokens=max(1.0, min(counted.tokens / max(1, counted.rows * each), longest)),
        longest=longest,
        gpus=spec.gpu.count,
        context_parallel=(group_for(counted.longest_row) or GROUPS[-1]) if spec.context_parallel == "auto" else 1,
        micro_batch=lora.micro_batch or 1,
        rank=rank_of(world),
        scorings=1 if dpo else 0,
    )
    return Workload(parts.model, parts.gpu, spec.gpu.count, spec.steps, spec.save_steps, training)


def halo_rlvr(world: RunWorld, parts: Parts) -> Workload | None:
    """Every step samples episodes, trains their rows and moves the weights; warm-up and retention steps are among them."""
    spec, rlvr, entry = world.spec, world.spec.rlvr, world.catalog.recipe
    if rlvr is None or entry is None:
        return None
    recipe = entry.spec
    split = split_of(world)
    # A split that does not fit is refused by its own check; here it must only make a number.
    serving, training_gpus = max(1, split.rollout), max(1, split.trainer)
    episodes = spec.batch * training_gpus
    rollout = replace(
        episode(world, recipe),
        episodes=episodes * (ROOFLINE.refill if recipe.objective.dynamic_sampling.enabled else 1.0),
        gpus=serving,
        replicas=min(split.replicas, serving),
    )
    judge = world.catalog.criterion if rlvr.judge else None
    if judge is not None:
        rollout = replace(rollout, reward_seconds=rollout.reward_seconds + JUDGE_SECONDS)
    updates = recipe.rollouts.updates_per_round
    rounds = math.ceil(spec.steps / updates)
    context_parallel = spec.context_parallel if isinstance(spec.context_parallel, int) else 1
    scorings = (recipe.objective.old_log_probs == "recomputed") + (recipe.objective.kl > 0)
    return Workload(
        parts.model,
        parts.gpu,
        spec.gpu.count,
        spec.steps,
        spec.save_steps,
        rows_of(rollout, recipe, episodes, training_gpus, context_parallel, scorings),
        rollout=rollout,
        updates_per_round=updates,
        overlapped=recipe.rollouts.mode == "async1",
        unmerged=recipe.serving == "unmerged",
        judge_micro_usd=math.ceil(rounds * rollout.episodes * judgement_micro_usd(judge)) if judge else 0,
    )


def halo_rft(world: RunWorld, parts: Parts) -> Workload | None:
    """All samples first, then a LoRA on the rows of those that passed."""
    spec, rft, entry = world.spec, world.spec.rft, world.catalog.recipe
    if rft is None or entry is None:
        return None
    rows = world.catalog.dataset.status.rows if world.catalog.dataset else None
    tasks = rft.tasks if rows is None else min(rft.tasks, rows)
    sampled = replace(episode(world, entry.spec), episodes=float(tasks * rft.samples))
    row = sampled.turn_rows_tokens / sampled.turns
    training = Training(rows=spec.batch, row_tokens=row, longest=sampled.episode_tokens, rank=rank_of(world))
    return Workload(
        parts.model, parts.gpu, spec.gpu.count, spec.steps, spec.save_steps, training, sampled_first=sampled
    )


def episode(world: RunWorld, recipe: RecipeSpec) -> Rollout:
    """Return what one episode of the recipe is like on this base: within its turns, its answers' limit and the context."""
    kind, rollouts = EPISODES[recipe.environment.name], recipe.rollouts
    base, environment = world.catalog.base, world.catalog.environment
    contexts = [base.spec.context_length if base else None, rollouts.context_tokens]
    context = float(min((c for c in contexts if c), default=WHOLE_ROW))
    limits = [rollouts.max_turns]
    wait = kind.environment_seconds
    if environment is not None:
        limits.append(environment.status.max_turns or environment.spec.max_turns)
        measured = environment.status.qualification
        wait = float(measured.turn_seconds_p95) if measured else wait
    turns = min([kind.turns, *(float(limit) for limit in limits if limit)])
    answer = rollouts.max_tokens_per_turn * ROOFLINE.answer_share
    if not thinks(world, recipe):
        answer = min(answer, SHORT_ANSWER)
    prompt = min(kind.prompt_tokens, context / 2)
    room = max(1.0, (context - prompt) / turns)
    added = min(kind.added_tokens, room / 2)
    return Rollout(
        episodes=1.0,
        turns=turns,
        prompt_tokens=prompt,
        answer_tokens=max(1.0, min(answer, room - added)),
        added_tokens=added,
        environment_seconds=wait,
        reward_seconds=kind.reward_seconds,
    )


def thinks(world: RunWorld, recipe: RecipeSpec) -> bool:
    """Whether answers carry reasoning: as the job says, else as the recipe samples this base."""
    if world.spec.mode:
        return world.spec.mode == "reasoning"
    base = world.catalog.base
    return recipe.rollouts.thinking == "base" and base is not None and base.spec.chat_template.thinking


def rows_of(
    rollout: Rollout, recipe: RecipeSpec, episodes: float, gpus: int, context_parallel: int, scorings: int
) -> Training:
    """Return the rows that episodes are trained as: one each, or one an assistant turn with all that came before it."""
    most = float(recipe.rows.max_tokens or math.inf)
    whole = recipe.rows.layout == "trajectory"
    mean = rollout.episode_tokens if whole else rollout.turn_rows_tokens / rollout.turns
    return Training(
        rows=episodes if whole else episodes * rollout.turns,
        row_tokens=min(mean, most),
        longest=min(rollout.episode_tokens, most),
        gpus=gpus,
        context_parallel=context_parallel,
        rank=recipe.lora.rank,
        scorings=scorings,
    )


def judgement_micro_usd(judge: CriterionEntry) -> float:
    """Return what one judgement costs: a USD per million tokens is a micro-USD a token."""
    measured, price = judge.status.calibration, judge.spec.judge
    tokens_in, tokens_out = (measured.tokens_in, measured.tokens_out) if measured else UNMEASURED_JUDGEMENT
    return float(tokens_in * price.input_usd + tokens_out * price.output_usd)


def counted_by(world: RunWorld) -> Inspection | None:
    """Return what the run's base counted in its data set, at the base's own revision."""
    dataset, base = world.catalog.dataset, world.catalog.base
    if dataset is None or base is None:
        return None
    mine = (i for i in dataset.status.inspections if (i.base_model, i.revision) == (base.name, base.spec.revision))
    return next(mine, None)
