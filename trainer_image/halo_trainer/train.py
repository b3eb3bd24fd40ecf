"""`train`: the loop over pure pieces: rows, batches, forward, objective, step, checkpoint, report."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from halo_api.conditions import Reason
from halo_api.report import Outcome
from halo_api.run_file import RunFile, volume_path
from halo_trainer.activations import keep_what_fits
from halo_trainer.budget import Budget
from halo_trainer.checkpoints.folder import TrainedState, load_checkpoint
from halo_trainer.data.batches import step_rows
from halo_trainer.data.load import load_template
from halo_trainer.failures import RunFailure
from halo_trainer.flops import Work
from halo_trainer.methods import Method, PackedSft, Sft, prepared
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.parallel.roll_call import RollCall
from halo_trainer.parallel.shard import idle_pass
from halo_trainer.reporting import Reporting
from halo_trainer.run import (
    Given,
    Run,
    assemble,
    begin,
    checkpoint,
    conclude,
    interrupted,
    own_passes,
    progress_of,
    roll_call_of,
    stop_signals,
    take_step,
    tell_room,
    told_to_stop,
)
from halo_trainer.seeds import derived_seed

CURE = "lower spec.lora.learningRate or raise spec.lora.warmupSteps"


@dataclass
class DataRun(Run):
    """A run on rows of a data set."""

    method: Method


def train(file: RunFile, volumes: str, report: Reporting, ranks: Ranks, budget: Budget) -> Outcome:
    """Train from the run file to the adapter, or to the step boundary after a SIGTERM."""
    stop = stop_signals()
    given = Given(file, volumes, report, ranks, budget)
    with roll_call_of(given) as roll_call:
        report.phase("Loading")
        with report.spending("load"):
            run = load(given, roll_call)
        report.phase("Working")
        with report.spending("train"):
            finished = loop(run, stop)
        with report.spending("publish"):
            outcome = conclude(run) if finished else interrupted(run)
    ranks.disconnect()
    return outcome


def load(given: Given, roll_call: RollCall) -> DataRun:
    """Bring everything into memory, cheap checks first."""
    file, ranks = given.file, given.ranks
    plan = file.train
    if plan is None or file.data is None:
        raise RunFailure(Reason.INVALID_SPEC, "the run file has no train plan or no data; the operator writes it")
    # dpo holds a resumed run's weights to those that the run began with.
    beginning = begin(given, plan, file.base, holds_to_parent=plan.lora.method == "dpo")
    base, data = (Path(volume_path(source, given.volumes)) for source in (file.base.source, file.data.source))
    make = prepared(plan, file.base, file.data, data, base, load_template(file.base, base), ranks)
    found = assemble(given, plan, beginning, roll_call)
    # Before a checkpoint is loaded: a reference model is what the run began with.
    method = make(found.model, found.device)
    run = DataRun(**vars(found), method=method)
    if beginning.checkpoint:
        run.state = load_checkpoint(beginning.checkpoint, run.model, run.parameters, run.optimizer, plan.seed)
        print(f"resuming after step {run.state.step} from {beginning.checkpoint.folder}", flush=True)
    if isinstance(method, Sft | PackedSft):
        tokens = method.pass_tokens(plan.lora.micro_batch or 1)
        keep_what_fits(run.model, method.trial, tokens, run.device, ranks, run.gathered)
    return run


def loop(run: DataRun, stop: threading.Event) -> bool:
    """Train step after step; return False when it was told to stop before the last."""
    plan = run.plan
    progress = progress_of(run)
    saved = run.state.step
    stopping = told_to_stop(run, stop)
    tell_room(run)
    try:
        while run.state.step < plan.steps and not stopping:
            run.budget.pause()
            progress.begun()
            done = train_step(run, stop)
            stopping = done.stopping
            assert run.state.loss is not None
            told = progress.finished(run.state.step, run.state.loss, done.rate, done.norm, done.work, done.rewards)
            run.report.progress(told.model_copy(update={"bundle_ratio": run.method.bundle_ratio}))
            due = run.state.step % plan.save_steps == 0 or run.state.step == plan.steps
            if due or stopping:
                checkpoint(run)
                saved = run.state.step
    finally:
        progress.close()
    assert saved == run.state.step
    return run.state.step == plan.steps


class Done(NamedTuple):
    """What a step came to, beside its loss; `stopping`: whether any process is told to stop."""

    rate: float
    norm: float
    work: Work
    rewards: tuple[float, float] | None
    stopping: bool


def train_step(run: DataRun, stop: threading.Event) -> Done:
    """Do one optimizer step."""
    plan, ranks, step = run.plan, run.ranks, run.state.step
    indices = step_rows(len(run.method.lengths), plan.batch, plan.seed, step)
    parts = own_passes(run, run.method, indices)
    torch.manual_seed(derived_seed(plan.seed, "dropout", step, ranks.rank))
    run.optimizer.zero_grad(set_to_none=True)
    loss = torch.zeros((), dtype=torch.float64, device=run.device)
    margin = accuracy = 0.0
    for part in parts:
        if part is None:
            idle_pass(run.model, run.device)
            continue
        added = run.method.share(part, indices)
        added.loss.backward()  # type: ignore[no-untyped-call]
        loss += added.loss.detach()
        margin, accuracy = margin + added.reward_margin, accuracy + added.reward_accuracy
    told = torch.tensor([float(stop.is_set()), margin, accuracy], dtype=torch.float64, device=run.device)
    taken = take_step(run, torch.cat([loss.reshape(1), told]), CURE)
    total, stopping, margin, accuracy = taken.totals
    work = run.method.work(indices)
    run.state = TrainedState(
        step=step + 1,
        seed=plan.seed,
        rows_seen=(step + 1) * plan.batch,
        tokens_seen=run.state.tokens_seen + work.tokens,
        loss=total,
    )
    rewards = (margin, accuracy) if run.method.rewards else None
    return Done(taken.rate, taken.norm, work, rewards, stopping > 0)
