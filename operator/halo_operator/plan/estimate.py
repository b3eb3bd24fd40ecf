"""The roofline estimate of a run: seconds of each phase, from which a quote is made (`quote.py`).

Pure arithmetic on a `Workload`, which `estimate_runs.py` and `estimate_grpo.py` read from what admission found. The
formulas and the constants stand in docs/estimate.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import get_args

from halo_api.estimate import PhaseName
from halo_operator.plan.estimate_model import Gpu, Model
from halo_operator.plan.estimate_rates import ROOFLINE, Rates
from halo_operator.plan.estimate_rollout import NO_ROLLOUT, Rollout, RolloutTimes, rollout_times
from halo_operator.plan.estimate_training import (
    Training,
    publish_seconds,
    save_seconds,
    scoring_seconds,
    update_seconds,
)

PHASES: tuple[PhaseName, ...] = get_args(PhaseName)
# What comes before training begins, and after its last step.
APART = ("start", "load", "evaluation", "publish")


@dataclass(frozen=True)
class Workload:
    """All that decides how long a run takes."""

    model: Model
    gpu: Gpu
    gpus: int
    steps: int
    save_steps: int
    training: Training
    # A round of episodes before every `updates_per_round` updates.
    rollout: Rollout | None = None
    updates_per_round: int = 1
    # Rounds are sampled while the step before them trains.
    overlapped: bool = False
    unmerged: bool = False
    # Episodes that are sampled once, before the first update (halo_rft).
    sampled_first: Rollout | None = None
    # Episodes that are sampled and judged after the last update (the bake-off of a GrpoRun).
    evaluated: Rollout | None = None
    judge_micro_usd: int = 0

    @property
    def has_engine(self) -> bool:
        """Whether a rollout server must start."""
        return any(r is not None and r.engine for r in (self.rollout, self.sampled_first, self.evaluated))


@dataclass(frozen=True)
class Roofline:
    """The estimate at its centre: seconds on the clock, all GPUs of the run being billed for each of them."""

    seconds: dict[PhaseName, float]
    # What async1 saves: rollouts and training happen at the same time.
    overlap: float
    start: float
    # From the first move of training to its first checkpoint.
    to_first_checkpoint: float
    publish: float
    gpus: int
    h100_equivalent: float
    judge_micro_usd: int
    inputs: dict[str, float]
    rates: Rates

    @property
    def total(self) -> float:
        """Seconds on the clock, from the last pod bound to the last GPU pod's end."""
        return sum(self.seconds.values()) - self.overlap


def estimate(work: Workload, rates: Rates = ROOFLINE) -> Roofline:
    """Return the estimate of a run."""
    seconds, overlap = phases(work, work.steps, rates)
    first, first_overlap = phases(work, min(work.save_steps, work.steps), rates)
    start = seconds["start"] + seconds["load"]
    return Roofline(
        seconds=seconds,
        overlap=overlap,
        start=start,
        to_first_checkpoint=sum(first[name] for name in PHASES if name not in APART) - first_overlap,
        publish=seconds["publish"],
        gpus=work.gpus,
        h100_equivalent=work.gpu.h100_equivalent,
        judge_micro_usd=work.judge_micro_usd,
        inputs=inputs_of(work),
        rates=rates,
    )


def phases(work: Workload, steps: int, rates: Rates) -> tuple[dict[PhaseName, float], float]:
    """Return the seconds of each phase of a run of so many steps, and how many of them overlap others."""
    model, gpu = work.model, work.gpu
    rounds = math.ceil(steps / work.updates_per_round) if work.rollout else 0
    each = rollout_times(model, gpu, work.rollout, rates) if work.rollout else NO_ROLLOUT
    once = rollout_times(model, gpu, work.sampled_first, rates) if work.sampled_first else NO_ROLLOUT
    update = update_seconds(model, gpu, work.training, rates)
    scored = rounds if work.rollout else steps
    score = scoring_seconds(model, gpu, work.training, rates)
    saves = math.ceil(steps / work.save_steps)
    sampled = RolloutTimes(*(rounds * getattr(each, f.name) + getattr(once, f.name) for f in fields(RolloutTimes)))
    found: dict[PhaseName, float] = {
        "start": rates.start_seconds + (rates.engine_start_seconds if work.has_engine else 0.0),
        "load": (2 if work.has_engine else 1) * model.stored / rates.weights_bytes_per_second,
        "prefill": sampled.prefill,
        "decode": sampled.decode,
        "environment": sampled.environment,
        "reward": sampled.reward,
        "score": scored * score,
        "train": steps * update,
        "sync": rounds * (rates.unmerged_sync_seconds if work.unmerged else rates.sync_seconds),
        "save": saves * save_seconds(model, work.training.rank, rates),
        "publish": publish_seconds(model, work.training.rank, rates),
        "evaluation": rollout_times(model, gpu, work.evaluated, rates).total if work.evaluated else 0.0,
    }
    overlap = rounds * min(each.total, score + work.updates_per_round * update) if work.overlapped else 0.0
    # The first round has nothing to train beside it.
    overlap *= (rounds - 1) / rounds if rounds else 0.0
    return found, overlap


def inputs_of(work: Workload) -> dict[str, float]:
    """Return the numbers that the estimate came from, so that it can be made again and held to what was measured."""
    model, gpu, training = work.model, work.gpu, work.training
    found: dict[str, float] = {
        "gpus": work.gpus,
        "steps": work.steps,
        "saveSteps": work.save_steps,
        "parameters": model.parameters,
        "activeParameters": model.active,
        "layers": model.layers,
        "attentionLayers": model.softmax_layers,
        "attentionWidth": model.heads * model.head_dim,
        "kvBytes": model.kv_bytes,
        "flops": gpu.flops,
        "bandwidth": gpu.bandwidth,
        "rows": training.rows,
        "rowTokens": training.row_tokens,
        "longestRow": training.longest,
        "trainerGpus": training.gpus,
        "contextParallel": training.context_parallel,
        "rank": training.rank,
        "updatesPerRound": work.updates_per_round,
    }
    for prefix, rollout in (("round", work.rollout), ("sampling", work.sampled_first), ("evaluation", work.evaluated)):
        if rollout is not None:
            found |= {
                f"{prefix}Episodes": rollout.episodes,
                f"{prefix}Turns": rollout.turns,
                f"{prefix}PromptTokens": rollout.prompt_tokens,
                f"{prefix}AnswerTokens": rollout.answer_tokens,
                f"{prefix}AddedTokens": rollout.added_tokens,
                f"{prefix}Gpus": rollout.gpus,
                f"{prefix}Servers": rollout.replicas,
            }
    return found
