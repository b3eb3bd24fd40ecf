"""The updates of a round: each an optimizer step on all of its rows, over all processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from halo_trainer.checkpoints.folder import TrainedState
from halo_trainer.flops import Work
from halo_trainer.objectives.mismatch import Mismatch
from halo_trainer.parallel.shard import idle_pass
from halo_trainer.rl.online import OnlineRun
from halo_trainer.rl.plan import longest_row
from halo_trainer.rl.scoring import Sampled, StepRows, with_weights
from halo_trainer.rl.update import Facts, Kept, pass_loss, token_log_probs
from halo_trainer.run import own_passes, take_step
from halo_trainer.seeds import derived_seed

CURE = "the recipe fixes the learning rate: look at the episodes of the last steps, and take another recipe or base"


def update_facts(facts: Facts, has_reference: bool, first_of_round: bool) -> dict[str, Any]:
    """Return what is told of an update; the mismatch is that of equal weights, so of a round's first update."""
    tokens = max(facts.tokens, 1.0)
    told: dict[str, Any] = {"clipped": facts.clipped / tokens}
    if has_reference:
        told["kl"] = facts.kl / tokens
    if first_of_round and facts.tokens:
        told |= {"mismatch": facts.mismatch.mean_gap, "mismatch_max": facts.mismatch.gap_most}
    return told


def step_parts(run: OnlineRun, rows: Sequence[Sampled]) -> tuple[StepRows, Sequence[list[int] | None]]:
    """Return the rows of a step, and this process's forward passes of them."""
    found = StepRows(rows, run.scorer, longest_row(run.rlvr))
    return found, own_passes(run, found, list(range(len(rows)))) if rows else []


def kept_log_probs(run: OnlineRun, rows: Sequence[Sampled]) -> list[Kept]:
    """Return, for each of this process's passes, what must be known before the round's first update."""
    objective = run.rlvr.settings.objective
    _, parts = step_parts(run, rows)
    if objective.old_log_probs == "rollout" and run.reference is None:
        return [Kept()] * len(parts)
    with run.report.spending("score"):
        old: list[Tensor | None] = [None] * len(parts)
        reference = list(old)
        if objective.old_log_probs == "recomputed":
            old = passes_log_probs(run, rows, parts)
        if run.reference is not None:
            with with_weights(run.parameters, run.reference):
                reference = passes_log_probs(run, rows, parts)
    return [Kept(*each) for each in zip(old, reference, strict=True)]


def passes_log_probs(run: OnlineRun, rows: Sequence[Sampled], parts: Sequence[list[int] | None]) -> list[Tensor | None]:
    """Return the log-probabilities of each pass's tokens, without a gradient."""
    found: list[Tensor | None] = []
    for part in parts:
        # Others wait for this pass's share of a sharded base, whatever goes through it.
        found.append(token_log_probs(run.scorer, [rows[index] for index in part or [0]]))
    return found


class Updated(NamedTuple):
    """An update that was done: rate, norm and work as of any step, and the facts of it over all processes."""

    rate: float
    norm: float
    work: Work
    facts: Facts


def update_step(run: OnlineRun, rows: Sequence[Sampled], kept: Sequence[Kept]) -> Updated:
    """Do one optimizer step on the rows of a round; none where no group teaches anything: then the policy stays as it is."""
    plan, ranks, step = run.plan, run.ranks, run.state.step
    found, parts = step_parts(run, rows)
    if not rows:
        if ranks.writes:
            print(
                f"step {step + 1}: every group has equal rewards or nothing that trains; the policy stays", flush=True
            )
        run.state = trained(run, Work(0, 0, 0), 0.0)
        return Updated(0.0, 0.0, Work(0, 0, 0), Facts())
    torch.manual_seed(derived_seed(plan.seed, "dropout", step, ranks.rank))
    run.optimizer.zero_grad(set_to_none=True)
    loss = torch.zeros((), dtype=torch.float64, device=run.device)
    facts = Facts()
    for part, before in zip(parts, kept, strict=True):
        if part is None:
            idle_pass(run.model, run.device)
            continue
        added, more = pass_loss(run.scorer, [rows[index] for index in part], run.rlvr.settings.objective, before)
        added.backward()  # type: ignore[no-untyped-call]
        loss += added.detach()
        facts = facts + more
    most = torch.zeros(ranks.world, dtype=torch.float64, device=run.device)
    most[ranks.rank] = facts.mismatch.gap_most
    told = [facts.tokens, facts.clipped, facts.capped, facts.kl, facts.mismatch.gap_sum, facts.mismatch.k3_sum]
    sums = torch.tensor(told, dtype=torch.float64, device=run.device)
    taken = take_step(run, torch.cat([loss.reshape(1), sums, most]), CURE)
    total, tokens, clipped, capped, kl, gap, k3, *gaps = taken.totals
    work = found.work()
    run.state = trained(run, work, total)
    every = Facts(tokens, clipped, capped, kl, Mismatch(round(tokens), gap, max(gaps), k3))
    return Updated(taken.rate, taken.norm, work, every)


def trained(run: OnlineRun, work: Work, loss: float) -> TrainedState:
    """Return the state after one more step."""
    step = run.state.step + 1
    return TrainedState(
        step=step,
        seed=run.plan.seed,
        rows_seen=step * run.plan.batch,
        tokens_seen=run.state.tokens_seen + work.tokens,
        loss=loss,
    )
