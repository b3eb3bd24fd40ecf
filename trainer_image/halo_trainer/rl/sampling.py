"""A round's sampling by the first process, and its rows in all of them."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence

from halo_api.conditions import Reason
from halo_api.report import RolloutProgress
from halo_trainer.failures import RunFailure
from halo_trainer.rl.batch import RoundFacts, round_facts, sampled_rows, training_rows
from halo_trainer.rl.bundles import bundled
from halo_trainer.rl.frontier import Frontier
from halo_trainer.rl.online import OnlineRun
from halo_trainer.rl.plan import groups_of, longest_row
from halo_trainer.rl.scoring import Sampled
from halo_trainer.rl.tasks import Refill, StepGroups, step_groups, wanted_tasks
from halo_trainer.rl.wire import rows_from_bytes, rows_to_bytes
from halo_trainer.rollouts.engine import Group, Wanted
from halo_trainer.rollouts.fleet import NoServers
from halo_trainer.rollouts.transcript import write_transcript


def sampled_round(run: OnlineRun) -> tuple[list[Sampled], RolloutProgress]:
    """Sample what the next step trains on; return the rows, to all processes, and what is told of the episodes."""
    settings = run.rlvr.settings
    dynamic = settings.objective.dynamic_sampling
    refill = Refill(groups_of(run.rlvr), dynamic.max_rounds if dynamic.enabled else 1)

    def work(halt: threading.Event) -> StepGroups:
        return step_groups(
            lambda wanted: sampled_groups(run, wanted, halt),
            lambda group: bool(training_rows(group, 0, settings)),
            lambda cursor, count: wanted_tasks(run.tasks, run.plan.seed, cursor, count),
            run.frontier.cursor,
            refill,
        )

    began = time.monotonic()
    try:
        groups = run.together.do(work)
    except NoServers as error:
        # Another attempt may find servers.
        raise RunFailure(Reason.ROLLOUT_LOST, f"step {run.state.step + 1}: {error}") from error
    told = RolloutProgress()
    data = b""
    if groups is not None:
        every = sorted([*groups.teaching, *groups.dropped], key=lambda group: group.wanted.place)
        keep_transcript(run, every)
        facts = round_facts(every)
        told = progress_of(run, facts, len(groups.dropped), time.monotonic() - began)
        run.frontier = Frontier(
            groups.cursor,
            run.state.step,
            run.frontier.episodes + facts.scored + facts.unscored,
            run.frontier.sampled_tokens + facts.sampled_tokens,
        )
        run.groups, run.mean_reward = {}, facts.reward
        data = rows_to_bytes(sampled_rows(groups.teaching, settings))
    rows = rows_from_bytes(run.ranks.share(data, run.device))
    run.frontier = shared_frontier(run)
    return bundled(rows, run.scorer.takes_trees, bundle_tokens(run, rows)), told


def bundle_tokens(run: OnlineRun, rows: Sequence[Sampled]) -> int:
    """Return the most tokens of a bundle: those of the longest row that there may be, and no more than a process's share of the step."""
    share = sum(map(len, rows)) // run.ranks.world
    return min(longest_row(run.rlvr), max(share, *map(len, rows), 1))


def shared_frontier(run: OnlineRun) -> Frontier:
    """Return the first process's frontier."""
    told = json.dumps(vars(run.frontier)).encode()
    return Frontier(**json.loads(run.ranks.share(told, run.device)))


def sampled_groups(run: OnlineRun, wanted: Sequence[Wanted], halt: threading.Event) -> list[Group]:
    """Sample groups, but for those that are in the replay buffer; what is done when it is stopped goes there."""
    assert run.sampler
    missing = [each for each in wanted if each.place not in run.groups]
    for group in run.sampler.sample(missing, halt) if missing else ():
        run.groups[group.wanted.place] = group
    return [run.groups[each.place] for each in wanted]


def progress_of(run: OnlineRun, facts: RoundFacts, dropped: int, seconds: float) -> RolloutProgress:
    """Return what is told of a round's episodes."""
    assert run.sampler
    fleet = run.sampler.fleet
    return RolloutProgress(
        reward=facts.reward,
        pass_rate=facts.pass_rate,
        scored=facts.scored,
        unscored=facts.unscored,
        unscored_reasons=facts.unscored_reasons,
        truncated=facts.truncated,
        dropped_groups=dropped,
        policy=run.state.step,
        sampled_tokens=facts.sampled_tokens,
        tokens_per_second=round(facts.sampled_tokens / max(seconds, 1e-9), 1),
        servers=len(fleet.ready),
        servers_wanted=fleet.wanted,
    )


def keep_transcript(run: OnlineRun, groups: Sequence[Group]) -> None:
    """Keep some episodes for a person to read; a disk that is full fails no run."""
    try:
        write_transcript(run.folder(), run.state.step + 1, groups)
    except OSError as error:
        print(f"the episodes of step {run.state.step + 1} can't be written: {error}", file=sys.stderr, flush=True)
