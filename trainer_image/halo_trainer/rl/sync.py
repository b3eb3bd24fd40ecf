"""After a step: its policy to every server, and servers and trainer held to the same numbers before anything is sampled."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from array import array

from halo_api.conditions import Reason
from halo_api.rollouts import Policy
from halo_trainer.failures import RunFailure
from halo_trainer.rl.online import OnlineRun
from halo_trainer.rl.policies import (
    FOLDER,
    agreement,
    check_agreement,
    disagreement,
    own_scores,
    prune_policies,
    written_policy,
)
from halo_trainer.rollouts.fleet import NoServers, Published


def publish_policy(run: OnlineRun) -> None:
    """Give every server the policy of the last step, and refuse that step if one computes with other numbers than the trainer."""
    serving = run.rlvr.settings.serving
    run.budget.pause()
    with run.report.spending("sync"):
        policy = None
        if run.ranks.writes:
            policy = written_policy(run, serving, begins=run.state.step == 0 and run.plan.parent is None)
        began = time.monotonic()

        def take(halt: threading.Event) -> Published:
            assert run.sampler
            assert policy
            try:
                return run.sampler.publish(policy, halt)
            except NoServers as error:
                raise not_taken(error, policy, began, run) from error

        taken = run.together.do(take)
        hold_to(run, policy)
        if policy and taken:
            prune_policies(run.folder(FOLDER))
            for server, problem in sorted(taken.problems.items()):
                print(f"server {server} did not take policy {policy.name}: {problem}", file=sys.stderr, flush=True)


def hold_to(run: OnlineRun, policy: Policy | None) -> None:
    """Let servers and trainer score the same prompts, and refuse the step if they disagree."""
    sync = run.rlvr.settings.weight_sync
    if not run.prompts:
        run.prompts = check_prompts(run)
    own = own_scores(run.scorer.alone(), run.prompts, sync.tokens, run.rlvr.settings.serving == "folded")
    began = time.monotonic()

    def compare(halt: threading.Event) -> None:
        assert run.sampler
        assert policy
        try:
            found = agreement(own, run.sampler.scored(run.prompts, sync.tokens, halt))
        except NoServers as error:
            raise not_taken(error, policy, began, run) from error
        check_agreement(found, policy, sync)
        # A server that comes later, as one that was replaced, is held to the same.
        run.sampler.hold(run.prompts, sync.tokens, lambda values: disagreement(own, values, sync), found.gaps, halt)
        print(f"policy {policy.name}: {found}", flush=True)

    run.together.do(compare)


def check_prompts(run: OnlineRun) -> list[array[int]]:
    """Return the prompts that policies are checked on: those of the data set's first tasks, the same in every attempt."""
    sync = run.rlvr.settings.weight_sync

    def opened(halt: threading.Event) -> list[array[int]]:
        assert run.sampler
        return run.sampler.openings(itertools.islice(run.tasks, 4 * sync.prompts), sync.prompts, halt)

    found = run.together.do(opened) or []
    # A server generates a token behind each, which must fit.
    usable = [prompt[: run.rlvr.context_length - 1].tolist() for prompt in found]
    told = json.loads(run.ranks.share(json.dumps([each for each in usable if len(each) > 1]).encode(), run.device))
    if not told:
        raise RunFailure(
            Reason.DATASET_UNFIT, f"none of the first tasks of data set {run.plan.lora.dataset} can be opened; mend it"
        )
    return [array("i", each) for each in told]


def not_taken(error: NoServers, policy: Policy, began: float, run: OnlineRun) -> RunFailure:
    """Say that no server took a policy, and what waiting for it cost: every GPU of the run is billed all along."""
    spent, layout = time.monotonic() - began, run.file.layout
    servers = run.sampler.fleet.wanted if run.sampler else 0
    return RunFailure(
        Reason.WEIGHT_SYNC_TIMEOUT,
        f"step {policy.version}: no server took policy {policy.name} ({error}); {spent:.0f} s of "
        f"{layout.nodes * layout.gpus_per_node} trainer GPUs and of the GPUs of {servers} rollout servers went by; "
        "read the servers' logs",
    )
