"""Progress for a person: a bar on a terminal, one line a step in a log; and what each step came to, for the history."""

from __future__ import annotations

import collections
import sys
import time
from typing import Any, NamedTuple

from halo_api.metrics_history import StepMetrics
from halo_api.report import ProgressReport, RolloutProgress
from halo_trainer.flops import Work
from halo_trainer.gauges import Meter
from halo_trainer.history import History

WINDOW = 10


class Moment(NamedTuple):
    """What is done by the end of a step, and when that was: on a clock that only goes forward."""

    seconds: float
    tokens: int
    flops: float


class Progress:
    """Turns finished steps into progress reports, shows them, and keeps their history."""

    def __init__(self, steps: int, tokens: int, shows: bool, meter: Meter, history: History | None) -> None:
        """Go on from so many tokens; only the process that writes shows it and has a history."""
        self._steps = steps
        self._begun = 0.0
        self._ended = collections.deque([Moment(time.monotonic(), tokens, 0.0)], WINDOW + 1)
        self._meter = meter
        self._history = history
        self._shows = shows
        self._bar: Any = _bar(steps) if shows and sys.stdout.isatty() else None

    def begun(self) -> None:
        """Take it that a step begins now, so that what was done since the last one, such as a save, is no part of it."""
        self._begun = time.monotonic()

    def finished(
        self,
        step: int,
        loss: float,
        rate: float,
        norm: float,
        work: Work,
        rewards: tuple[float, float] | None = None,
        rollouts: RolloutProgress | None = None,
    ) -> ProgressReport:
        """Take one finished step; `step` counts from 1. `rewards`: margin and accuracy of a preference step; `rollouts`: its episodes."""
        before = self._ended[-1]
        before = before._replace(seconds=max(before.seconds, self._begun))
        ended = Moment(time.monotonic(), before.tokens + work.tokens, before.flops + self._meter.flops(work))
        self._ended.append(ended)
        margin, accuracy = rewards or (None, None)
        memory = self._meter.memory()
        speed, mfu = self._pace(self._ended[0])
        seconds = ended.seconds - self._ended[0].seconds
        report = ProgressReport(
            step=step,
            steps=self._steps,
            loss=loss,
            learning_rate=rate,
            grad_norm=norm,
            reward_margin=margin,
            reward_accuracy=accuracy,
            rollouts=rollouts,
            tokens=ended.tokens,
            tokens_per_second=round(speed, 1),
            mfu=mfu,
            memory_bytes=memory,
            remaining_seconds=round((self._steps - step) * seconds / (len(self._ended) - 1)),
        )
        self._show(report)
        if self._history:
            speed, mfu = self._pace(before)
            self._history.write(
                StepMetrics(
                    attempt=self._history.attempt,
                    step=step,
                    at=round(time.time(), 3),
                    seconds=round(ended.seconds - before.seconds, 6),
                    loss=loss,
                    learning_rate=rate,
                    grad_norm=norm,
                    reward_margin=margin,
                    reward_accuracy=accuracy,
                    rollouts=rollouts,
                    tokens=work.tokens,
                    tokens_per_second=round(speed, 1),
                    mfu=mfu,
                    memory_bytes=memory,
                )
            )
        return report

    def close(self) -> None:
        """Leave the terminal as it was, and the files."""
        if self._bar is not None:
            self._bar.stop()
        if self._history:
            self._history.close()

    def _pace(self, since: Moment) -> tuple[float, float | None]:
        """Return the tokens a second from then to the last step's end, and the MFU, where it can be told."""
        now = self._ended[-1]
        seconds = max(now.seconds - since.seconds, 1e-9)
        flops, peak = now.flops - since.flops, self._meter.peak
        return (now.tokens - since.tokens) / seconds, round(flops / seconds / peak, 4) if flops and peak else None

    def _show(self, told: ProgressReport) -> None:
        speed = f"{told.tokens_per_second:.0f}"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=told.step, loss=f"{told.loss:.4f}", speed=speed)
        elif self._shows:
            parts = [
                f"step {told.step}/{told.steps} loss {told.loss:.4f}",
                *([f"margin {told.reward_margin:.3f}"] if told.reward_margin is not None else []),
                *([f"accuracy {told.reward_accuracy:.2f}"] if told.reward_accuracy is not None else []),
                *(episode_words(told.rollouts) if told.rollouts else []),
                f"lr {told.learning_rate:.1e} grad {told.grad_norm:.2f} tok/s {speed}",
                *([f"mfu {told.mfu:.1%}"] if told.mfu is not None else []),
                *([f"mem {told.memory_bytes / 2**30:.1f} GiB"] if told.memory_bytes is not None else []),
            ]
            print(" ".join(parts), flush=True)


def episode_words(told: RolloutProgress) -> list[str]:
    """Return what a step's episodes came to, a part a fact."""
    return [
        *([f"reward {told.reward:.3f}"] if told.reward is not None else []),
        *([f"pass {told.pass_rate:.1%}"] if told.pass_rate is not None else []),
        *([f"kl {told.kl:.1e}"] if told.kl is not None else []),
        *([f"mismatch {told.mismatch:.1e}"] if told.mismatch is not None else []),
        *([f"unscored {told.unscored}"] if told.unscored else []),
        *([f"sampled tok/s {told.tokens_per_second:.0f}"] if told.tokens_per_second is not None else []),
    ]


def _bar(steps: int) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("loss {task.fields[loss]}  {task.fields[speed]} tok/s"),
        TimeRemainingColumn(),
    )
    bar.add_task("train", total=steps, loss="-", speed="-")
    bar.start()
    return bar
