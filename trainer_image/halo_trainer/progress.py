"""Progress for a person: a bar on a terminal, one line a step in a log."""

from __future__ import annotations

import collections
import sys
import time
from typing import Any

from halo_api.report import ProgressReport

WINDOW = 10


class Progress:
    """Turns finished steps into progress reports and shows them."""

    def __init__(self, steps: int, tokens: int, shows: bool) -> None:
        self._steps = steps
        self._tokens = tokens
        self._ended: collections.deque[tuple[float, int]] = collections.deque([(time.monotonic(), tokens)], WINDOW + 1)
        self._shows = shows
        self._bar: Any = _bar(steps) if shows and sys.stdout.isatty() else None

    def finished(
        self, step: int, tokens: int, loss: float, rate: float, norm: float, rewards: tuple[float, float] | None = None
    ) -> ProgressReport:
        """Take one finished step; `step` counts from 1. `rewards`: margin and accuracy of a preference step."""
        self._tokens += tokens
        self._ended.append((time.monotonic(), self._tokens))
        (start, before), (end, after) = self._ended[0], self._ended[-1]
        seconds = max(end - start, 1e-9)
        speed = (after - before) / seconds
        left = round((self._steps - step) * seconds / (len(self._ended) - 1))
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=step, loss=f"{loss:.4f}", speed=f"{speed:.0f}")
        elif self._shows:
            told = f" margin {rewards[0]:.3f} accuracy {rewards[1]:.2f}" if rewards else ""
            print(
                f"step {step}/{self._steps} loss {loss:.4f}{told} lr {rate:.1e} grad {norm:.2f} tok/s {speed:.0f}",
                flush=True,
            )
        return ProgressReport(
            step=step,
            steps=self._steps,
            loss=loss,
            learning_rate=rate,
            grad_norm=norm,
            reward_margin=rewards[0] if rewards else None,
            reward_accuracy=rewards[1] if rewards else None,
            tokens=self._tokens,
            tokens_per_second=round(speed, 1),
            remaining_seconds=left,
        )

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()


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
