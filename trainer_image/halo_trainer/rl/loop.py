"""`train` of online RL: sample groups, train on them, give the servers the new policy and hold them to it, checkpoint, report."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from halo_api.conditions import Reason
from halo_api.report import Outcome
from halo_api.run_file import RlvrPlan, RunFile, volume_path
from halo_trainer.activations import keep_what_fits
from halo_trainer.budget import Budget
from halo_trainer.checkpoints.digest import Checked, corrupt
from halo_trainer.checkpoints.folder import load_checkpoint
from halo_trainer.failures import RunFailure
from halo_trainer.parallel.context import Context, rows_can_be_split
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.parallel.roll_call import RollCall
from halo_trainer.progress import Progress
from halo_trainer.reporting import Reporting
from halo_trainer.rl.frontier import FRONTIER, GROUPS, frontier_of
from halo_trainer.rl.online import MakeSource, OnlineRun
from halo_trainer.rl.plan import adam_of, longest_row, train_plan
from halo_trainer.rl.sampling import sampled_round
from halo_trainer.rl.scoring import Scorer
from halo_trainer.rl.steps import kept_log_probs, update_facts, update_step
from halo_trainer.rl.sync import publish_policy
from halo_trainer.rl.together import Together
from halo_trainer.rollouts.background import Stopped
from halo_trainer.run import (
    Given,
    assemble,
    begin,
    checkpoint,
    conclude,
    interrupted,
    progress_of,
    roll_call_of,
    stop_signals,
    tell_room,
    told_to_stop,
)


def train_online(
    file: RunFile, volumes: str, report: Reporting, ranks: Ranks, budget: Budget, make: MakeSource | None = None
) -> Outcome:
    """Train from the run file to the adapter, or to the end of a step after a SIGTERM."""
    stop = stop_signals()
    given = Given(file, volumes, report, ranks, budget)
    if make is None:
        from halo_trainer.rl.source import source_of

        make = source_of
    with roll_call_of(given) as roll_call, contextlib.ExitStack() as stack:
        report.phase("Loading")
        with report.spending("load"):
            run = load(given, roll_call, stop, make, stack)
        report.phase("Working")
        with report.spending("train"):
            finished = loop(run, stop)
        with report.spending("publish"):
            outcome = conclude(run) if finished else interrupted(run)
    ranks.disconnect()
    return outcome


def load(
    given: Given, roll_call: RollCall, stop: threading.Event, make: MakeSource, stack: contextlib.ExitStack
) -> OnlineRun:
    """Bring everything into memory, cheap checks first; what samples is closed with the stack."""
    file, ranks = given.file, given.ranks
    rlvr = file.rlvr
    if rlvr is None or file.data is None:
        raise RunFailure(Reason.INVALID_SPEC, "the run file has no rlvr plan or no data; the operator writes it")
    can_train(rlvr)
    plan = train_plan(rlvr, file.data.name)
    needs_reference = rlvr.settings.objective.kl > 0
    beginning = begin(given, plan, file.base, holds_to_parent=needs_reference)
    base = Path(volume_path(file.base.source, given.volumes))
    if plan.context_parallel and plan.context_parallel.group > 1:
        rows_can_be_split(plan, file.base, base, plan.context_parallel.group)
    source = make(file, rlvr, given.volumes, given.report.folder) if ranks.writes else None
    found = assemble(given, plan, beginning, roll_call, adam_of(rlvr))
    context = Context.of(plan.context_parallel, ranks)
    scorer = Scorer(found.model, found.device, rlvr.settings.rollouts.temperature, context)
    if scorer.padded_since and ranks.writes:
        print(f"rows are padded, not packed: {scorer.padded_since}", flush=True)
    # Before a checkpoint is loaded: it is what the run began with.
    reference = copied(found.parameters) if needs_reference else None
    together = Together(ranks, found.device, stop)
    run = OnlineRun(**vars(found), rlvr=rlvr, scorer=scorer, reference=reference, together=together)
    if beginning.checkpoint:
        resume(run, beginning.checkpoint)
    tokens = scorer.pass_tokens(longest_row(rlvr))
    keep_what_fits(run.model, scorer.trial, tokens, run.device, ranks, run.gathered)
    if source:
        run.tasks = source.tasks
        run.sampler = stack.enter_context(source.sampler)
    return run


def can_train(plan: RlvrPlan) -> None:
    """Refuse what a recipe may ask for and this trainer does not have yet."""
    settings = plan.settings
    missing = [
        words
        for words, asked in (
            (f"objective {settings.objective.name}", settings.objective.name not in ("GRPO", "DAPO")),
            (f"rollouts of mode {settings.rollouts.mode}", settings.rollouts.mode != "sync"),
            ("routing replay", settings.routing_replay),
            (f"reward {settings.reward.name}", settings.reward.name != "verifier"),
        )
        if asked
    ]
    if missing:
        raise RunFailure(
            Reason.NOT_YET_AVAILABLE,
            f"recipe {plan.recipe}: {missing[0]} is not built yet; use sql_v3 or sql_v4_dapo_sync",
        )


def copied(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights as they are now."""
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


def resume(run: OnlineRun, kept: Checked) -> None:
    """Go on from a checkpoint: weights, optimizer, and the frontier of what was trained."""
    run.state = load_checkpoint(kept, run.model, run.parameters, run.optimizer, run.plan.seed)
    try:
        run.frontier, groups = frontier_of(kept.read(f"trainer/{FRONTIER}"), kept.read(f"trainer/{GROUPS}"))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise corrupt(kept.checkpoint, f"no frontier of online RL ({type(error).__name__})") from error
    run.groups = {group.wanted.place: group for group in groups}
    if run.ranks.writes:
        print(
            f"resuming after step {run.state.step} from {kept.folder}, at place {run.frontier.cursor} of the tasks, "
            f"with {len(groups)} groups that were sampled beyond",
            flush=True,
        )


def loop(run: OnlineRun, stop: threading.Event) -> bool:
    """Train round after round; return False when it was told to stop before the last step."""
    plan = run.plan
    progress = progress_of(run)
    saved = run.state.step
    stopping = told_to_stop(run, stop)
    tell_room(run)
    try:
        with contextlib.suppress(Stopped):
            if not stopping and run.state.step < plan.steps:
                publish_policy(run)
            while run.state.step < plan.steps and not stopping:
                run.budget.pause()
                due = play_round(run, progress)
                stopping = told_to_stop(run, stop)
                if due or stopping:
                    checkpoint(run)
                    saved = run.state.step
    finally:
        progress.close()
    if saved != run.state.step:
        checkpoint(run)
    return run.state.step == plan.steps


def play_round(run: OnlineRun, progress: Progress) -> bool:
    """Sample a round, do its updates, and give the servers the policy that they made; return whether a checkpoint is due."""
    plan, first = run.plan, run.state.step
    progress.begun()
    began = time.monotonic()
    with run.report.spending("decode"):
        rows, told = sampled_round(run)
    sampled = time.monotonic()
    updates = min(run.rlvr.settings.rollouts.updates_per_round, plan.steps - first)
    kept = kept_log_probs(run, rows)
    for update in range(updates):
        done = update_step(run, rows, kept)
        told = told.model_copy(
            update={
                **update_facts(done.facts, run.reference is not None, first_of_round=update == 0),
                "staleness": run.state.step - 1 - run.frontier.policy if rows else None,
                "rollout_seconds": round(sampled - began, 3),
                "train_seconds": round(time.monotonic() - sampled, 3),
            }
        )
        last = update == updates - 1
        if last and run.state.step < plan.steps:
            synced = time.monotonic()
            publish_policy(run)
            told = told.model_copy(update={"sync_seconds": round(time.monotonic() - synced, 3)})
        assert run.state.loss is not None
        run.report.progress(
            progress.finished(run.state.step, run.state.loss, done.rate, done.norm, done.work, None, told)
        )
    return run.state.step == plan.steps or any(
        step % plan.save_steps == 0 for step in range(first + 1, run.state.step + 1)
    )
