"""Which tasks a step samples: the next ones of an endless stream, behind those that were trained. Pure.

The stream has epochs, each shuffled by (seed, epoch). A step takes the next tasks from its cursor on, and further ones in the
place of groups that teach nothing. The cursor moves when the step has trained, never when it samples, and is in the checkpoint: so
a resumed run repeats no prompt that was trained and skips none (a cursor ahead of the trained frontier lost 675 of 736:
NVIDIA-NeMo/RL#3599). An episode's draws depend on the epoch, its task and which sample of it this is, hence on its place alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from halo_trainer.data.batches import stream_rows
from halo_trainer.environments.base import Task
from halo_trainer.rollouts.engine import Group, Wanted


def wanted_tasks(tasks: Sequence[Task], seed: int, first: int, count: int) -> list[Wanted]:
    """Return the tasks at `count` places of the stream; the epoch is their round, as no epoch has a task twice."""
    numbers = stream_rows(len(tasks), seed, first, count)
    return [Wanted(tasks[number], (first + at) // len(tasks), first + at) for at, number in enumerate(numbers)]


class Refill(NamedTuple):
    """How often a step samples: until it has `wanted` groups that teach, `rounds` times at most, the first included."""

    wanted: int
    rounds: int


class StepGroups(NamedTuple):
    """The groups of a step, in the stream's order: those that teach, and those that were dropped; and the cursor behind them."""

    teaching: list[Group]
    dropped: list[Group]
    cursor: int


def step_groups(
    sample: Callable[[list[Wanted]], Sequence[Group]],
    teaches: Callable[[Group], bool],
    draw: Callable[[int, int], list[Wanted]],
    cursor: int,
    refill: Refill,
) -> StepGroups:
    """Sample what a step trains on: as many tasks as groups are missing each time, so that none is left over for a later step.

    What would be left over is of an older policy by the time that it trains. `draw` returns so many tasks from a cursor on.
    """
    teaching: list[Group] = []
    dropped: list[Group] = []
    for _ in range(refill.rounds):
        missing = refill.wanted - len(teaching)
        if not missing:
            break
        for group in sample(draw(cursor, missing)):
            (teaching if teaches(group) else dropped).append(group)
        cursor += missing
    return StepGroups(teaching, dropped, cursor)
