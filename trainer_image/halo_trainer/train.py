"""`train`: the loop over pure pieces: rows, batches, forward, objective, step, checkpoint, report."""

from __future__ import annotations

import math
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from halo_api.conditions import Reason
from halo_api.digests import files_digest
from halo_api.report import AdapterReport, CheckpointReport, Outcome
from halo_api.run_file import RunFile, TrainPlan, volume_path
from halo_trainer.activations import keep_what_fits
from halo_trainer.adapter import write_adapter
from halo_trainer.budget import Budget
from halo_trainer.checkpoints.digest import Checked, as_written, check_checkpoint
from halo_trainer.checkpoints.folder import TrainedState, load_checkpoint, save_checkpoint
from halo_trainer.checkpoints.retention import bytes_in, prune_checkpoints, room_for, tell_checkpoint
from halo_trainer.data.batches import rank_share, step_rows
from halo_trainer.data.load import load_template
from halo_trainer.failures import RunFailure
from halo_trainer.files import whole_folder
from halo_trainer.flops import Work
from halo_trainer.gauges import Meter
from halo_trainer.history import History
from halo_trainer.methods import Method, PackedSft, Sft, prepared
from halo_trainer.model import attach_lora, load_base, settle_torch, trained_parameters
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.parent import read_parent, start_from
from halo_trainer.progress import Progress
from halo_trainer.reporting import Reporting, now
from halo_trainer.schedule import learning_rate
from halo_trainer.seeds import derived_seed
from halo_trainer.tracking import tracker_of


@dataclass
class Run:
    """What a run holds in memory between steps."""

    file: RunFile
    plan: TrainPlan
    volumes: str
    ranks: Ranks
    report: Reporting
    device: torch.device
    method: Method
    model: Any
    parameters: dict[str, nn.Parameter]
    optimizer: torch.optim.AdamW
    state: TrainedState
    budget: Budget

    def folder(self, *parts: str) -> Path:
        """Return a folder of this attempt; it writes nowhere else."""
        return Path(volume_path(self.plan.output, self.volumes)).joinpath(*parts)

    def checkpoint(self, step: int) -> Path:
        """Return the folder of this attempt's checkpoint after a step."""
        return self.folder("checkpoints", f"step-{step}")


def train(file: RunFile, volumes: str, report: Reporting, ranks: Ranks, budget: Budget) -> Outcome:
    """Train from the run file to the adapter, or to the step boundary after a SIGTERM."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    report.phase("Loading")
    with report.spending("load"):
        run = load(file, volumes, report, ranks, budget)
    report.phase("Working")
    with report.spending("train"):
        finished = loop(run, stop)
    with report.spending("publish"):
        outcome = conclude(run) if finished else interrupted(run)
    ranks.disconnect()
    return outcome


def load(file: RunFile, volumes: str, report: Reporting, ranks: Ranks, budget: Budget) -> Run:
    """Bring everything into memory, cheap checks first."""
    plan = file.train
    if plan is None or file.data is None:
        raise RunFailure(Reason.INVALID_SPEC, "the run file has no train plan or no data; the operator writes it")
    if ranks.writes:
        # Hours of steps must not end at a folder that can't be written to.
        Path(volume_path(plan.output, volumes)).mkdir(parents=True, exist_ok=True)
    device = settle_torch()
    checkpoint = None
    if plan.resume:
        kept = Path(volume_path(plan.resume.uri, volumes))
        checkpoint = Checked(kept, plan.resume, check_checkpoint(kept, plan.resume))
    parent = None
    # A resume's weights are its checkpoint's, but dpo holds them to those that the run began with.
    if plan.parent and (checkpoint is None or plan.lora.method == "dpo"):
        parent = read_parent(plan.parent, plan, file.base, volumes)
    base = Path(volume_path(file.base.source, volumes))
    template = load_template(file.base, base)
    make = prepared(plan, file.base, file.data, Path(volume_path(file.data.source, volumes)), base, template, ranks)
    model = attach_lora(load_base(file.base, base), plan.lora, plan.seed)
    if parent:
        start_from(parent, model, plan.lora)
    model = model.to(device)
    model.train()
    parameters = trained_parameters(model)
    optimizer = torch.optim.AdamW(
        parameters.values(), lr=0.0, betas=(0.9, 0.999), eps=1e-8, weight_decay=plan.lora.weight_decay
    )
    state = TrainedState(step=0, seed=plan.seed, rows_seen=0, tokens_seen=0, loss=None)
    ranks.connect(device, file.layout.rendezvous_timeout_seconds)
    # Before a checkpoint is loaded: a reference model is what the run began with.
    method = make(model, device)
    if checkpoint:
        state = load_checkpoint(checkpoint, model, parameters, optimizer)
        print(f"resuming after step {state.step} from {checkpoint.folder}", flush=True)
    if isinstance(method, Sft | PackedSft):
        keep_what_fits(model, method.trial, method.pass_tokens(plan.lora.micro_batch or 1), device, ranks)
    return Run(file, plan, volumes, ranks, report, device, method, model, parameters, optimizer, state, budget)


def loop(run: Run, stop: threading.Event) -> bool:
    """Train step after step; return False when it was told to stop before the last."""
    plan, ranks = run.plan, run.ranks
    meter = Meter.of(run.model, run.file.base.dtype, run.device, ranks.world)
    history = History(run.folder(), run.file.run.attempt, tracker_of(run.file)) if ranks.writes else None
    progress = Progress(plan.steps, run.state.tokens_seen, ranks.writes, meter, history)
    saved = run.state.step
    stopping = told_to_stop(run, stop)
    if ranks.writes:
        # The weights and two moments of each.
        guess = 3 * sum(parameter.nbytes for parameter in run.parameters.values())
        run.report.room(room_for(run.folder(), guess))
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


def told_to_stop(run: Run, stop: threading.Event) -> bool:
    """Whether any process is told to stop: all must leave the loop at the same step."""
    told = torch.tensor([float(stop.is_set())], device=run.device)
    return run.ranks.sum_values(told).item() > 0


class Done(NamedTuple):
    """What a step came to, beside its loss; `stopping`: whether any process is told to stop."""

    rate: float
    norm: float
    work: Work
    rewards: tuple[float, float] | None
    stopping: bool


def train_step(run: Run, stop: threading.Event) -> Done:
    """Do one optimizer step."""
    plan, lora, ranks, step = run.plan, run.plan.lora, run.ranks, run.state.step
    indices = step_rows(len(run.method.lengths), plan.batch, plan.seed, step)
    # Of ranks that split rows, each has its whole group's.
    sharing = plan.context_parallel.group if plan.context_parallel else 1
    share = rank_share(indices, run.method.lengths, ranks.rank // sharing, ranks.world // sharing)
    torch.manual_seed(derived_seed(plan.seed, "dropout", step, ranks.rank))
    run.optimizer.zero_grad(set_to_none=True)
    loss = torch.zeros((), dtype=torch.float64, device=run.device)
    margin = accuracy = 0.0
    for part in run.method.passes(share, lora.micro_batch or 1):
        added = run.method.share(part, indices)
        added.loss.backward()  # type: ignore[no-untyped-call]
        loss += added.loss.detach()
        margin, accuracy = margin + added.reward_margin, accuracy + added.reward_accuracy
    ranks.sum_gradients(run.parameters.values())
    told = torch.tensor([float(stop.is_set()), margin, accuracy], dtype=torch.float64, device=run.device)
    total, stopping, margin, accuracy = ranks.sum_values(torch.cat([loss.reshape(1), told])).tolist()
    norm = float(nn.utils.clip_grad_norm_(run.parameters.values(), lora.max_grad_norm))
    if not (math.isfinite(total) and math.isfinite(norm)):
        raise RunFailure(
            Reason.NON_FINITE_LOSS,
            f"step {step + 1} has loss {total} and gradient norm {norm}; "
            "lower spec.lora.learningRate or raise spec.lora.warmupSteps",
        )
    rate = learning_rate(lora.learning_rate or 2e-4, step, plan.steps, lora.warmup_steps, lora.schedule)
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    run.optimizer.step()
    work = run.method.work(indices)
    run.state = TrainedState(
        step=step + 1,
        seed=plan.seed,
        rows_seen=(step + 1) * plan.batch,
        tokens_seen=run.state.tokens_seen + work.tokens,
        loss=total,
    )
    rewards = (margin, accuracy) if run.method.rewards else None
    return Done(rate, norm, work, rewards, stopping > 0)


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
        digest = save_checkpoint(folder, run.model, run.file.base, run.parameters, run.optimizer, run.state)
    uri = f"{run.plan.output}/checkpoints/{folder.name}"
    made = CheckpointReport(step=run.state.step, uri=uri, digest=digest, loss=run.state.loss, at=now())
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
