"""The curves of runs as numbers: which metrics there are, and which points of each are drawn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from halo_api.metrics_history import StepMetrics
from halo_cli.kubectl import CliError


class Metric(NamedTuple):
    """What is drawn of a step, and how it is written."""

    title: str
    value: Callable[[StepMetrics], float | None]
    shown: str = "{:.4g}"


def of_rollouts(name: str) -> Callable[[StepMetrics], float | None]:
    """Return what tells a fact of the step's episodes, of a run that samples any."""
    return lambda step: getattr(step.rollouts, name) if step.rollouts else None


# By the names that the command line takes. The curves of a run, from top to bottom.
METRICS: Mapping[str, Metric] = {
    "reward": Metric("reward", of_rollouts("reward")),
    "passRate": Metric("pass rate", of_rollouts("pass_rate"), "{:.1%}"),
    "kl": Metric("KL a token", of_rollouts("kl")),
    "mismatch": Metric("mismatch", of_rollouts("mismatch"), "{:.2e}"),
    "loss": Metric("loss", lambda step: step.loss),
    "throughput": Metric("tokens/s", lambda step: step.tokens_per_second),
    "gradNorm": Metric("gradient norm", lambda step: step.grad_norm),
    "learningRate": Metric("learning rate", lambda step: step.learning_rate, "{:.2e}"),
    "rewardMargin": Metric("reward margin", lambda step: step.reward_margin),
    "rewardAccuracy": Metric("reward accuracy", lambda step: step.reward_accuracy),
    "staleness": Metric("staleness", of_rollouts("staleness")),
    "unscored": Metric("unscored episodes", of_rollouts("unscored")),
    "sampledThroughput": Metric("sampled tokens/s", of_rollouts("tokens_per_second")),
    "servers": Metric("servers", of_rollouts("servers")),
    "mfu": Metric("MFU", lambda step: step.mfu, "{:.1%}"),
    "memory": Metric(
        "memory", lambda step: step.memory_bytes / 2**30 if step.memory_bytes is not None else None, "{:.4g} GiB"
    ),
}
# Drawn unless others are asked for, where there are any.
USUAL = (
    "reward",
    "passRate",
    "kl",
    "mismatch",
    "loss",
    "throughput",
    "gradNorm",
    "learningRate",
    "rewardMargin",
    "rewardAccuracy",
)


class Point(NamedTuple):
    """A value after a step."""

    step: int
    value: float


@dataclass(frozen=True)
class Panel:
    """One metric of all runs that have it: a curve each."""

    metric: Metric
    curves: Mapping[str, Sequence[Point]] = field(default_factory=dict)


def panels(runs: Mapping[str, Sequence[StepMetrics]], asked: Sequence[str]) -> list[Panel]:
    """Return a panel of each metric that is asked for, else of the usual ones that any run has."""
    found = []
    for name in dict.fromkeys(asked or USUAL):
        metric = METRICS[name]
        curves = {run: points for run, steps in runs.items() if (points := points_of(metric, steps))}
        if curves:
            found.append(Panel(metric, curves))
        elif asked:
            have = ", ".join(name for name in METRICS if any(points_of(METRICS[name], s) for s in runs.values()))
            raise CliError(f"--metric: found {name}, which no step of {', '.join(runs)} has; use {have}")
    return found


def points_of(metric: Metric, steps: Sequence[StepMetrics]) -> list[Point]:
    """Return the points of a run's curve."""
    return [Point(step.step, value) for step in steps if (value := metric.value(step)) is not None]


def averaged(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most so many points: each the mean of some that follow each other, at the last one's step."""
    size = -(-len(points) // most)
    parts = [points[start : start + size] for start in range(0, len(points), size)] if points else []
    return [Point(part[-1].step, sum(point.value for point in part) / len(part)) for part in parts]


def began(steps: Sequence[StepMetrics]) -> list[tuple[int, int]]:
    """Return each attempt after the first, with the step that it began with."""
    pairs = itertools.pairwise(steps)
    return [(after.attempt, after.step) for before, after in pairs if after.attempt != before.attempt]


def caption(run: str, steps: Sequence[StepMetrics]) -> str:
    """Return a run in one line: its last step, as numbers."""
    last = steps[-1]
    parts = [run, f"step {last.step}"]
    for metric in METRICS.values():
        if (value := metric.value(last)) is not None:
            parts.append(f"{metric.title} {metric.shown.format(value)}")
    parts += [f"attempt {attempt} from step {step}" for attempt, step in began(steps)]
    return "  ".join(parts)
