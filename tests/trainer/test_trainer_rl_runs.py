"""Whole runs of online RL: what they sample and train, killed and resumed, and held to servers that are wrong or slow."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from rl_runs import Asked, ModelPeer, online, online_file, settings
from trainer_support import adapter_bytes

from halo_api.conditions import Reason
from halo_api.report import Report
from halo_api.run_file import ResumeFrom
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.publish import publish_at_budget
from halo_trainer.reporting import Reporting
from halo_trainer.rollouts.engine import Group


def resume_from(report: Report) -> ResumeFrom:
    assert report.outcome
    kept = report.outcome.checkpoint
    assert kept
    return ResumeFrom(step=kept.step, uri=kept.uri, digest=kept.digest)


def succeeded(report: Report) -> None:
    assert report.outcome
    assert report.outcome.result == "Succeeded", report.outcome.message


def straight(root: Path, wanted: object, steps: int = 4) -> tuple[dict[str, bytes], list[tuple[int, str, int]], Report]:
    """Train without a break; return the adapter's files, what was asked for, and the report."""
    file, asked = online_file(wanted, "straight", steps=steps), Asked()  # type: ignore[arg-type]
    with ModelPeer(root, file) as peer:
        report = online(root, file, [peer], asked)
    succeeded(report)
    return adapter_bytes(root, "straight"), asked.groups, report


def test_pitfalls_31_to_36_a_killed_run_goes_on_as_if_it_had_not_been(root: Path) -> None:
    """N steps straight are k steps, a kill and N - k: the same prompts, policies and adapter; none skipped, none repeated."""
    wanted = settings("sql_v4_dapo_sync")
    adapter, groups, report = straight(root, wanted)
    assert [step.step for step in report.checkpoints] == [2, 4]

    def dies(number: int) -> None:
        if len(asked.groups) >= len([each for each in groups if each[2] < 3]):
            raise RuntimeError("killed")

    asked = Asked(before=dies)
    first = online_file(wanted, "first")
    with ModelPeer(root, first) as peer:
        cut = online(root, first, [peer], asked)
    assert cut.outcome
    assert cut.outcome.reason == Reason.CRASHED
    # The end of the budget would have published that checkpoint.
    budget = Reporting(root / "budget.json", first)
    budget.adopt(cut)
    ended = publish_at_budget(first, str(root), budget, Ranks())
    assert ended.reason == Reason.BUDGET_REACHED
    assert ended.adapter
    assert ended.adapter.step == 2
    again = online_file(wanted, "again", attempt=2, resume=resume_from(cut))
    assert again.rlvr
    assert again.rlvr.resume
    assert again.rlvr.resume.step == 2
    later = Asked()
    with ModelPeer(root, again) as peer:
        succeeded(online(root, again, [peer], later))
        # A server of the second attempt begins with the restored policy, under a name of its own.
        assert [put.name for put in peer.puts] == ["run-uid-1-a2-s2", "run-uid-1-a2-s3"]
    trained = [each for each in asked.groups if each[2] < 2]
    assert trained + later.groups == groups
    assert [place for place, _, _ in groups] == list(range(len(groups)))
    assert adapter_bytes(root, "again") == adapter


def test_pitfall_32_what_was_sampled_beyond_the_trained_steps_is_not_lost(root: Path) -> None:
    """Told to stop in the middle of a round: its finished groups are in the checkpoint, and are not sampled again."""
    wanted = settings("sql_v3")
    adapter, groups, _ = straight(root, wanted)

    def stops(number: int, group: Group) -> None:
        if number == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    first, asked = online_file(wanted, "first", saveSteps=4), Asked(after=stops)
    kept: list[list[int]] = []
    with ModelPeer(root, first) as peer:

        def hangs(prompt: list[int]) -> None:
            """Of the second round only one task is ever answered."""
            if asked.number == 2:
                kept.append(prompt)
                if prompt != kept[0]:
                    peer.held.wait()

        peer.script = hangs
        cut = online(root, first, [peer], asked)
    assert cut.outcome
    assert cut.outcome.reason == Reason.INTERRUPTED
    assert cut.outcome.checkpoint
    assert cut.outcome.checkpoint.step == 1
    again, later = online_file(wanted, "again", attempt=2, resume=resume_from(cut)), Asked()
    with ModelPeer(root, again) as peer:
        succeeded(online(root, again, [peer], later))
    assert adapter_bytes(root, "again") == adapter
    # One group of the second round was kept, the other one is sampled again.
    assert len(later.groups) == len(groups) - 3
    assert set(later.groups) < set(groups[2:])


def test_a_run_says_what_its_episodes_are_like(root: Path) -> None:
    _, groups, report = straight(root, settings("sql_v3"), steps=2)
    assert report.progress
    told = report.progress.rollouts
    assert told
    assert (told.scored, told.unscored, told.policy, told.staleness) == (8, 0, 1, 0)
    assert told.reward is not None
    assert 0 < told.reward < 1
    assert report.checkpoints[-1].reward == told.reward
    # The same weights on both sides, in fp32.
    assert told.mismatch is not None
    assert told.mismatch < 1e-5
    assert told.kl is not None
    assert told.kl > 0
    assert (told.servers, told.servers_wanted) == (1, 1)
    assert len(groups) == 4
    output = root / "artifacts" / "straight"
    assert sorted(path.name for path in (output / "episodes").iterdir()) == ["step-1.jsonl", "step-2.jsonl"]
    assert [path.name for path in (output / "policies").iterdir()] == ["s1"]


def test_pitfalls_16_and_17_a_server_that_kept_its_old_weights_ends_the_run_before_it_samples(root: Path) -> None:
    file, asked = online_file(settings("sql_v3"), saveSteps=1), Asked()
    with ModelPeer(root, file, stale=True) as peer:
        report = online(root, file, [peer], asked)
    assert report.outcome
    assert report.outcome.reason == Reason.WEIGHT_SYNC_MISMATCH
    assert "server 0 took policy run-uid-1-a1-s1" in report.outcome.message
    # The refused step is in no checkpoint, and nothing was sampled with it.
    assert report.outcome.checkpoint is None
    assert {policy for _, _, policy in asked.groups} == {0}


def test_pitfall_27_the_reference_of_a_run_that_continues_an_adapter_is_that_adapter(root: Path) -> None:
    """And not the base: before anything is trained there is no KL, whatever the parent learned."""
    _, _, parent = straight(root, settings("sql_v3"), steps=1)
    assert parent.outcome
    adapter = parent.outcome.adapter
    assert adapter
    plan = {
        "name": "parent",
        "uri": adapter.uri,
        "digest": adapter.digest,
        "files": {f.path: f.sha256 for f in adapter.files},
    }
    file, asked = online_file(settings("sql_v3"), "child", steps=1, parent=plan), Asked()
    with ModelPeer(root, file) as peer:
        report = online(root, file, [peer], asked)
        # The servers begin with the parent too.
        assert [(put.version, put.adapter is not None) for put in peer.puts] == [(0, True)]
    succeeded(report)
    assert report.progress
    assert report.progress.rollouts
    assert report.progress.rollouts.kl == pytest.approx(0, abs=1e-9)


def test_pitfall_34_a_round_of_two_updates_is_one_policy_and_is_saved_at_its_end(root: Path) -> None:
    wanted = settings(
        "sql_v3", rollouts__updatesPerRound=2, objective__oldLogProbs="recomputed", objective__importanceCap=2
    )
    _, groups, report = straight(root, wanted)
    assert [kept.step for kept in report.checkpoints] == [2, 4]
    assert {policy for _, _, policy in groups} == {0, 2}
    assert report.progress
    assert report.progress.rollouts
    # The last update trains on what the policy of two updates ago sampled.
    assert report.progress.rollouts.staleness == 1


@pytest.mark.parametrize("faults", [["500"], ["reset"]])
def test_a_server_that_does_not_take_a_policy_at_once_is_asked_again(root: Path, faults: list[str]) -> None:
    file = online_file(settings("sql_v3"), steps=2)
    with ModelPeer(root, file) as peer:
        peer.put_faults.extend(faults)
        succeeded(online(root, file, [peer]))


def test_servers_that_take_no_policy_end_the_run_with_what_that_cost(root: Path) -> None:
    file = online_file(settings("sql_v3"), steps=2, saveSteps=1)
    with ModelPeer(root, file) as peer:
        asked = Asked(before=lambda number: peer.put_faults.extend(["500"] * 1000))
        report = online(root, file, [peer], asked)
    assert report.outcome
    assert report.outcome.reason == Reason.WEIGHT_SYNC_TIMEOUT
    assert "s of 1 trainer GPUs and of the GPUs of 1 rollout servers went by" in report.outcome.message


def test_a_recipe_that_is_not_built_yet_is_refused(root: Path) -> None:
    file = online_file(settings("sql_v4_cispo_reuse2"))
    report = online(root, file, [])
    assert report.outcome
    assert report.outcome.reason == Reason.NOT_YET_AVAILABLE
    assert "objective CISPO is not built yet" in report.outcome.message
