"""A training run in memory, and what every loop does with it: load it, take a step, write checkpoints and the result."""

from __future__ import annotations

import functools
import math
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from halo_api.conditions import Reason
from halo_api.digests import files_digest
from halo_api.report import AdapterReport, CheckpointReport, Outcome
from halo_api.run_file import BaseRef, RunFile, TrainPlan, volume_path
from halo_trainer.adapter import write_adapter
from halo_trainer.budget import Budget
from halo_trainer.checkpoints.digest import Checked, as_written, check_checkpoint
from halo_trainer.checkpoints.folder import TrainedState, save_checkpoint
from halo_trainer.checkpoints.retention import bytes_in, prune_checkpoints, room_for, tell_checkpoint
from halo_trainer.data.batches import lockstep, rank_share
from halo_trainer.failures import RunFailure
from halo_trainer.files import whole_folder
from halo_trainer.gauges import Meter
from halo_trainer.history import History
from halo_trainer.model import attach_lora, load_base, settle_torch, trained_parameters
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.parallel.roll_call import RollCall
from halo_trainer.parallel.shard import gathered_bytes, load_in_turns
from halo_trainer.parent import Parent, read_parent, start_from
from halo_trainer.progress import Progress
from halo_trainer.reporting import Reporting, now
from halo_trainer.schedule import learning_rate
from halo_trainer.tracking import tracker_of


class Given(NamedTuple):
    """What a run's loop is given: its file, where volumes are, and those that it talks to."""

    file: RunFile
    volumes: str
    report: Reporting
    ranks: Ranks
    budget: Budget


@dataclass
class Run:
    """What a run holds in memory between steps."""

    file: RunFile
    plan: TrainPlan
    volumes: str
    ranks: Ranks
    report: Reporting
    device: torch.device
    model: Any
    # What each forward pass gathers of the base from all ranks, in bytes; 0 of a base that is whole on each.
    gathered: int
    parameters: dict[str, nn.Parameter]
    optimizer: torch.optim.AdamW
    state: TrainedState
    budget: Budget

    @property
    def sharded(self) -> bool:
        """Whether each forward pass gathers the base from all ranks."""
        return self.gathered > 0

    def folder(self, *parts: str) -> Path:
        """Return a folder of this attempt; it writes nowhere else."""
        return Path(volume_path(self.plan.output, self.volumes)).joinpath(*parts)

    def checkpoint(self, step: int) -> Path:
        """Return the folder of this attempt's checkpoint after a step."""
        return self.folder("checkpoints", f"step-{step}")

    @property
    def reward(self) -> float | None:
        """The mean reward of the last step's episodes, of online RL."""
        return None

    def kept(self) -> Mapping[str, bytes]:
        """Return what a checkpoint keeps beside adapter, optimizer and state, by file name; a loop of its own kind has more."""
        return {}


class Beginning(NamedTuple):
    """What a run starts from, held against what was written of it."""

    device: torch.device
    checkpoint: Checked | None
    parent: Parent | None


class Adam(NamedTuple):
    """The settings of AdamW that a step does not change."""

    betas: tuple[float, float]
    epsilon: float


PLAIN = Adam((0.9, 0.999), 1e-8)


def stop_signals() -> threading.Event:
    """Return what SIGTERM and SIGINT set from now on."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def roll_call_of(given: Given) -> RollCall:
    """Return the roll call whose loss of a rank ends this process."""

    def lost(failure: RunFailure) -> None:
        kept = given.report.last_checkpoint
        outcome = Outcome(result="Failed", reason=failure.reason, message=str(failure), checkpoint=kept)
        given.budget.abandon(outcome)

    return RollCall(given.ranks, lost)


def begin(given: Given, plan: TrainPlan, base: BaseRef, holds_to_parent: bool) -> Beginning:
    """Check what can be checked before anything large is loaded.

    A resume's weights are its checkpoint's; it needs the parent's only if it is held to those that the run began with.
    """
    if given.ranks.writes:
        # Hours of steps must not end at a folder that can't be written to.
        Path(volume_path(plan.output, given.volumes)).mkdir(parents=True, exist_ok=True)
    device = settle_torch()
    checkpoint = parent = None
    if plan.resume:
        folder = Path(volume_path(plan.resume.uri, given.volumes))
        checkpoint = Checked(folder, plan.resume, check_checkpoint(folder, plan.resume))
    if plan.parent and (checkpoint is None or holds_to_parent):
        parent = read_parent(plan.parent, plan, base, given.volumes)
    return Beginning(device, checkpoint, parent)


def assemble(given: Given, plan: TrainPlan, beginning: Beginning, roll_call: RollCall, adam: Adam = PLAIN) -> Run:
    """Meet the other ranks and load the base with its LoRA, as the run began; a checkpoint is not in it yet."""
    file, ranks, device = given.file, given.ranks, beginning.device
    base = Path(volume_path(file.base.source, given.volumes))
    ranks.connect(device, file.layout.rendezvous_timeout_seconds)
    roll_call.begin()
    gathered = gathered_bytes(plan, file.base, base, device, ranks)

    def adapted() -> Any:
        model = attach_lora(load_base(file.base, base), plan.lora, plan.seed)
        if beginning.parent:
            start_from(beginning.parent, model, plan.lora)
        return model

    model = load_in_turns(adapted, device, ranks) if gathered else adapted()
    model = model.to(device)
    model.train()
    parameters = trained_parameters(model)
    optimizer = torch.optim.AdamW(
        parameters.values(), lr=0.0, betas=adam.betas, eps=adam.epsilon, weight_decay=plan.lora.weight_decay
    )
    state = TrainedState(step=0, seed=plan.seed, rows_seen=0, tokens_seen=0, loss=None)
    return Run(
        file,
        plan,
        given.volumes,
        ranks,
        given.report,
        device,
        model,
        gathered,
        parameters,
        optimizer,
        state,
        given.budget,
    )


def told_to_stop(run: Run, stop: threading.Event) -> bool:
    """Whether any process is told to stop: all must leave the loop at the same step."""
    told = torch.tensor([float(stop.is_set())], device=run.device)
    return run.ranks.sum_values(told).item() > 0


def progress_of(run: Run) -> Progress:
    """Return what tells of each step: the log, the report and the history, which the first process alone has."""
    meter = Meter.of(run.model, run.file.base.dtype, run.device, run.ranks.world)
    history = History(run.folder(), run.file.run.attempt, tracker_of(run.file)) if run.ranks.writes else None
    return Progress(run.plan.steps, run.state.tokens_seen, run.ranks.writes, meter, history)


def tell_room(run: Run) -> None:
    """Say what room checkpoints have, before there is one."""
    if run.ranks.writes:
        # The weights and two moments of each.
        guess = 3 * sum(parameter.nbytes for parameter in run.parameters.values())
        run.report.room(room_for(run.folder(), guess))


class Rows(Protocol):
    """Rows by their lengths, in tokens, and how those of a process are cut into forward passes."""

    lengths: Sequence[int]

    def passes(self, share: Sequence[int], size: int) -> list[list[int]]:
        """Cut a process's rows of a step, sorted by length, into forward passes that need no more memory than `size` rows."""


def own_passes(run: Run, rows: Rows, indices: list[int]) -> Sequence[list[int] | None]:
    """Return this process's forward passes of a step; None is one that it makes because others do."""
    size, split = run.plan.lora.micro_batch or 1, run.plan.context_parallel
    # Of ranks that split rows, each has its whole group's.
    sharing = split.group if split else 1
    rank, world = run.ranks.rank // sharing, run.ranks.world // sharing
    if run.sharded:
        return lockstep(indices, rows.lengths, rank, world, functools.partial(rows.passes, size=size))
    return rows.passes(rank_share(indices, rows.lengths, rank, world), size)


class Taken(NamedTuple):
    """A step that was taken: sums over all processes, the learning rate, and the gradient's norm before it was clipped."""

    totals: list[float]
    rate: float
    norm: float


def take_step(run: Run, totals: Tensor, cure: str) -> Taken:
    """Add up gradients and `totals` (fp64; the loss is the first) over all processes, and let the optimizer do its step."""
    plan, lora, step = run.plan, run.plan.lora, run.state.step
    run.ranks.sum_gradients(run.parameters.values())
    summed = run.ranks.sum_values(totals).tolist()
    norm = float(nn.utils.clip_grad_norm_(run.parameters.values(), lora.max_grad_norm))
    if not (math.isfinite(summed[0]) and math.isfinite(norm)):
        raise RunFailure(
            Reason.NON_FINITE_LOSS, f"step {step + 1} has loss {summed[0]} and gradient norm {norm}; {cure}"
        )
    rate = learning_rate(lora.learning_rate or 2e-4, step, plan.steps, lora.warmup_steps, lora.schedule)
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    run.optimizer.step()
    return Taken(summed, rate, norm)


def checkpoint(run: Run) -> None:
    """Write a checkpoint after this step and report it once it is whole."""
    if not run.ranks.writes:
        return
    with run.budget.writing():
        _write_checkpoint(run)


def _write_checkpoint(run: Run) -> None:
    folder = run.checkpoint(run.state.step)
    with run.report.spending("save"):
        # Before the save, which needs the room.
        prune_checkpoints(run.report, run.checkpoint)
        digest = save_checkpoint(folder, run.model, run.file.base, run.parameters, run.optimizer, run.state, run.kept())
    uri = f"{run.plan.output}/checkpoints/{folder.name}"
    made = CheckpointReport(
        step=run.state.step, uri=uri, digest=digest, loss=run.state.loss, reward=run.reward, at=now()
    )
    tell_checkpoint(run.report, made, room_for(folder, bytes_in(folder)), run.checkpoint)


def conclude(run: Run) -> Outcome:
    """Write the adapter of the finished run."""
    with run.budget.writing():
        run.budget.outcome = _write_result(run)
    return run.budget.outcome


def _write_result(run: Run) -> Outcome:
    message = f"{run.plan.steps} steps, last loss {run.state.loss:.4f}"
    if not run.ranks.writes:
        return Outcome(result="Succeeded", reason=Reason.SUCCEEDED, message=message)
    run.report.phase("Finishing")
    with whole_folder(run.folder("adapter")) as partial:
        files = as_written(partial, write_adapter(run.model, run.file.base, partial))
    adapter = AdapterReport(
        uri=f"{run.plan.output}/adapter", digest=files_digest(files), step=run.state.step, files=files
    )
    return Outcome(
        result="Succeeded",
        reason=Reason.SUCCEEDED,
        message=message,
        checkpoint=run.report.last_checkpoint,
        adapter=adapter,
    )


def interrupted(run: Run) -> Outcome:
    """Say where a stopped run can go on."""
    kept = run.report.last_checkpoint
    where = f"its checkpoint of step {kept.step}" if kept else "where it started"
    message = f"told to stop after step {run.state.step} of {run.plan.steps}; it can go on from {where}"
    return Outcome(result="Failed", reason=Reason.INTERRUPTED, message=message, checkpoint=kept)
