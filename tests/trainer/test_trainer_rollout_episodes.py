"""Episodes: turns with tools, limits, failures that are left unscored, and rows that hold exactly what was sampled."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from episode_support import BASE, CALLS, QUICK, RULES, Counting, rollouts, same, sampled, spoken, wanted
from rollout_peer import Peer, log_probs_of, table
from test_trainer_rollout_chat import template

from halo_api.rollouts import Servers
from halo_api.transcript import seen
from halo_trainer.environments.registry import checking_settings
from halo_trainer.environments.sql_tasks import generate
from halo_trainer.environments.workers import Workers
from halo_trainer.rollouts.background import Stopped
from halo_trainer.rollouts.engine import Wanted
from halo_trainer.rollouts.fleet import NoServers
from halo_trainer.rollouts.rows import RowRules, group_rows
from halo_trainer.rollouts.transcript import write_transcript


def test_turns_with_tools_become_rows_of_exactly_what_was_sampled() -> None:
    with Peer() as peer:
        peer.script = spoken(*CALLS)
        with rollouts([peer], Counting(), replace(RULES, max_tokens_per_turn=400)) as found:
            (group,) = sampled(found, wanted(1))
    requests = {tuple(body["prompt"]): body for body in peer.requests}
    assert [episode.sample for episode in group.episodes] == [0, 1, 2, 3]
    for episode in group.episodes:
        assert (episode.reward, episode.passed, episode.reason, episode.checks) == (
            1.0,
            True,
            "3 calls",
            {"called": True},
        )
        assert [message["role"] for message in episode.messages] == [
            "user", "assistant", "tool", "assistant", "tool", "tool", "assistant"
        ]  # fmt: skip
        assert [tuple(turn.prompt) in requests for turn in episode.turns] == [True] * 3
    rows = group_rows(group.episodes, 0, RowRules("trajectory", None, "train"))
    assert len(rows) == 4
    for row, episode in zip(rows, group.episodes, strict=True):
        answers = [row.row.ids[span.start : span.end] for span in row.answers]
        assert answers == [turn.answer for turn in episode.turns]
        expected = [
            value
            for span in row.answers
            for value in log_probs_of(table, 1, row.row.ids[: span.start], row.row.ids[span.start : span.end], 1.0)
        ]
        assert row.log_probs.tolist() == pytest.approx(expected, abs=1e-12)
        # Sampled in single characters, and never tokenised again.
        assert max(map(len, answers)) > 40


def test_every_draw_is_decided_by_seed_round_task_sample_and_turn() -> None:
    """Not by servers, nor by failures of others: with one server, with two, and with faults, the same episodes."""
    plain = replace(RULES, max_turns=1)
    with Peer(0) as one, Peer(1) as two, Peer(0) as breaks:
        with rollouts([one], Counting(), plain) as found:
            first = sampled(found, wanted())
        with rollouts([one, two], Counting(), plain) as found:
            second = sampled(found, wanted())
        with rollouts([breaks], Counting(), plain) as found:
            breaks.faults.extend(["reset", "nan", "500", "short"])
            third = sampled(found, wanted())
            other_round = sampled(found, wanted(round=2))
    told = [[same(episode) for group in groups for episode in group.episodes] for groups in (first, second, third)]
    assert told[0] == told[1] == told[2]
    seeds = [body["seed"] for body in one.requests[:12]]
    assert len(set(seeds)) == 12
    assert [same(episode) for group in other_round for episode in group.episodes] != told[0]


@pytest.mark.parametrize("where", ["open", "call", "score"])
def test_an_environment_that_fails_leaves_its_episode_unscored_and_another_takes_its_place(where: str) -> None:
    environments = Counting()
    with Peer() as peer:
        peer.script = spoken(*CALLS)
        with rollouts([peer], environments, replace(RULES, max_tokens_per_turn=400)) as found:
            environments.faults[where] = ["fail", "fail"]
            (group,) = sampled(found, wanted(1))
    assert [(episode.failure, episode.detail, episode.reward) for episode in group.unscored] == [
        ("EnvironmentFailed", f"the worker died in {where}", None)
    ] * 2
    assert [episode.reward for episode in group.episodes] == [1.0] * 4
    # A replacement is another sample in the same place, whatever else failed.
    assert sorted(episode.sample % 4 for episode in group.episodes) == [0, 1, 2, 3]
    assert not {episode.sample for episode in group.unscored} & {episode.sample for episode in group.episodes}


def test_an_episode_that_takes_too_long_is_unscored() -> None:
    environments = Counting()
    with Peer() as peer:
        peer.script = spoken(*CALLS)
        with rollouts([peer], environments, replace(RULES, max_tokens_per_turn=400, seconds=3.0)) as found:
            environments.faults["call"] = ["hang"]
            (group,) = sampled(found, wanted(1))
    assert {(episode.failure, episode.detail) for episode in group.unscored} == {("TimedOut", "it took more than 3 s")}
    assert [episode.reward for episode in group.episodes] == [1.0] * 4


SERVER_FAULTS = ["reset", "500", "429", "truncated", "nan", "none", "short", "alien", "prompt", "model", "abort"]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_whatever_fails_in_a_round_no_reward_is_made_up_and_no_sample_is_lost_or_taken_twice(
    seed: int, tmp_path: Path
) -> None:
    """Servers that break and lie at random, one of them killed and replaced, environments that fail: every group is full."""
    random = Random(seed)
    environments = Counting()
    rules = replace(RULES, max_tokens_per_turn=400, replacements=40)
    peers = [Peer(0), Peer(1), Peer(1, 2)]
    with contextlib.ExitStack() as stack:
        for peer in peers:
            stack.enter_context(peer)
            peer.script = spoken(*CALLS)
            peer.faults.extend(random.choice(SERVER_FAULTS) if random.random() < 0.3 else "" for _ in range(100))
        found = stack.enter_context(rollouts(peers[:2], environments, rules, tmp_path / "servers.json"))
        for faults in environments.faults.values():
            faults.extend("fail" if random.random() < 0.2 else "" for _ in range(20))
        threading.Timer(random.random(), replaced, (peers[1], peers[2], tmp_path / "servers.json")).start()
        groups = sampled(found, wanted(6))
        assert found.failures
    assert [group.wanted.place for group in groups] == list(range(6))
    for group in groups:
        assert sorted(episode.sample % 4 for episode in group.episodes) == [0, 1, 2, 3]
        every = [episode.sample for episode in (*group.episodes, *group.unscored)]
        assert len(every) == len(set(every))
        assert all(episode.failure and episode.reward is None for episode in group.unscored)
        for episode in group.episodes:
            assert (episode.reward, episode.failure) == (1.0, None)
            for turn in episode.turns:
                expected = log_probs_of(table, 1, turn.prompt, turn.answer, 1.0)
                assert turn.log_probs.tolist() == pytest.approx(expected, abs=1e-12)


def replaced(old: Peer, new: Peer, file: Path) -> None:
    """Kill a server, and tell of the one in its place."""
    old.kill()
    told = Servers(attempt=1, servers=(new.address,)).model_dump_json(by_alias=True)
    file.with_suffix(".new").write_text(told)
    file.with_suffix(".new").replace(file)


@pytest.mark.parametrize("right", [True, False])
def test_a_replaced_server_is_held_to_the_trainers_numbers_before_it_samples(right: bool, tmp_path: Path) -> None:
    """It says that it has the policy; whether it has is seen by what it computes."""
    prompts = [array("i", [5, 6, 7, 8]), array("i", [9, 10, 11])]
    trainers = [value for each in prompts for value in log_probs_of(table, 1, each[:1], each[1:], 1.0)]

    def wrong(values: list[float]) -> str | None:
        return None if values == pytest.approx(trainers) else "it computes other numbers"

    def other(version: int, tokens: Sequence[int]) -> np.ndarray:
        return table(version + 1, tokens)

    with (
        Peer(0) as first,
        Peer(1) as second,
        Peer(1, 2, logits=table if right else other) as third,
        rollouts([first, second], Counting(), replace(RULES, max_turns=1), tmp_path / "servers.json") as found,
    ):
        scored = found.scored(prompts, 8)
        assert {server: wrong(values) for server, values in scored.values.items()} == {0: None, 1: None}
        found.hold(prompts, 8, wrong, scored.values)
        replaced(second, third, tmp_path / "servers.json")
        while (1 in found.fleet.ready) != right or not third.requests:
            sampled(found, wanted(1))
        sampled(found, wanted())
        assert found.fleet.problems == ({} if right else {1: "it computes other numbers"})
    assert any("seed" in body for body in third.requests) == right


def test_environment_workers_that_are_killed_cost_their_episodes_alone() -> None:
    """SQL in real worker processes: the right answers pass, and those whose worker was killed are sampled again."""
    tasks = tuple(generate(3, seed=1, difficulty="easy", style="chat"))
    workers = Workers(checking_settings("sql"), workers=2)
    asked = 0

    def say(prompt: list[int]) -> list[int]:
        nonlocal asked
        asked += 1
        if asked == 3:
            os.kill(workers.pids[0], signal.SIGKILL)
        text = template(BASE).decode(prompt)
        gold = next(task.payload["gold"] for task in tasks if task.payload["question"] in text)
        return [*template(BASE).ids(f"```sql\n{gold}\n```"), *template(BASE).ids("<|im_end|>")]

    with Peer() as peer:
        peer.script = say
        with rollouts([peer], workers, replace(RULES, context=20_000, max_tokens_per_turn=400)) as found:
            groups = sampled(found, [Wanted(task, 1, place) for place, task in enumerate(tasks)])
    assert [[episode.reward for episode in group.episodes] for group in groups] == [[1.0] * 4] * 3
    failures = {episode.failure for group in groups for episode in group.unscored}
    assert failures == {"EnvironmentFailed"}
    assert workers.replaced == 1


def test_what_cannot_be_replaced_any_more_is_left_out_of_its_group() -> None:
    with Peer() as peer, rollouts([peer], Counting(), replace(RULES, replacements=2)) as found:
        peer.broken = "400"
        (group,) = sampled(found, wanted(1))
    assert (len(group.episodes), len(group.unscored)) == (0, 6)
    assert {episode.failure for episode in group.unscored} == {"ServerFailed"}
    assert group_rows(group.unscored, 0, RowRules("turn", None, "train")) == []


@pytest.mark.parametrize(
    ("change", "turns", "reward"),
    [
        # The call is cut off, so nothing is called.
        ({"max_tokens_per_turn": 20}, 1, 0.0),
        # The second prompt leaves no room, or some that is too little.
        ({"context": 440}, 1, 1 / 3),
        ({"context": 480}, 2, 1 / 3),
    ],
)
def test_a_token_limit_ends_an_episode_which_is_scored_as_it_is(
    change: dict[str, int], turns: int, reward: float
) -> None:
    with Peer() as peer:
        peer.script = spoken(*CALLS)
        with rollouts([peer], Counting(), replace(RULES, **{"max_tokens_per_turn": 400} | change)) as found:
            (group,) = sampled(found, wanted(1))
    for episode in group.episodes:
        assert (len(episode.turns), episode.truncated, episode.reward) == (turns, True, reward)


def test_turns_end_at_their_limit_and_a_prompt_that_is_too_long_is_told() -> None:
    with Peer() as peer:
        peer.script = spoken(*CALLS)
        with rollouts([peer], Counting(), replace(RULES, max_turns=2, max_tokens_per_turn=400)) as found:
            (group,) = sampled(found, wanted(1))
            assert {(len(each.turns), each.truncated, each.reward) for each in group.episodes} == {(2, False, 1 / 3)}
        with rollouts([peer], Counting(), replace(RULES, context=10)) as found:
            (group,) = sampled(found, wanted(1))
            assert {each.failure for each in group.unscored} == {"PromptTooLong"}
            assert "the context of an episode 10" in group.unscored[0].detail


def test_a_malformed_call_is_answered_with_what_is_wrong() -> None:
    with Peer() as peer:
        peer.script = spoken("<tool_call>{</tool_call>", "Sorry.")
        with rollouts([peer], Counting(), replace(RULES, max_tokens_per_turn=400)) as found:
            (group,) = sampled(found, wanted(1))
    for episode in group.episodes:
        assert episode.reward == 0.0
        assert episode.messages[2]["content"].startswith("error: the call is no JSON")


def test_a_round_that_is_stopped_closes_its_sessions_and_the_next_one_plays() -> None:
    stop, environments = threading.Event(), Counting()
    with Peer() as peer, rollouts([peer], environments) as found:
        peer.broken = "hang"
        groups = found.sample(wanted(), stop)
        threading.Timer(0.3, stop.set).start()
        with pytest.raises(Stopped):
            next(groups)
        assert environments.opened == environments.closed > 0
        peer.broken = None
        assert len(sampled(found, wanted())) == 3


def test_a_run_without_servers_says_so() -> None:
    with Peer() as peer, rollouts([peer], Counting()) as found:
        found.fleet.patience = replace(QUICK, alone=0.2)
        peer.kill()
        with pytest.raises(NoServers, match="server 0"):
            list(found.sample(wanted()))


def test_episodes_can_be_read_afterwards(tmp_path: Path) -> None:
    environments = Counting()
    with Peer() as peer:
        peer.script = spoken(*CALLS)
        with rollouts([peer], environments, replace(RULES, max_tokens_per_turn=400)) as found:
            environments.faults["open"] = ["fail"] * 3
            groups = list(found.sample(wanted()))
    for step in range(5):
        path = write_transcript(tmp_path, step, groups, most=7, steps=3)
    assert sorted(each.name for each in path.parent.iterdir()) == [f"step-{step}.jsonl" for step in (2, 3, 4)]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    # Some of every group, and of what was not scored.
    assert {line["group"] for line in lines} == {0, 1, 2}
    assert [line.get("failure") for line in lines if "reward" not in line] == ["EnvironmentFailed"]
    assert len(lines) == 7
    told = seen(path.read_text().splitlines()[0])
    assert told
    assert (told.task, told.turns) == ("task-0", 3)
    assert (lines[0]["reward"], lines[0]["reason"], lines[0]["turns"]) == (1.0, "3 calls", 3)
    assert lines[0]["messages"][2] == {
        "role": "tool", "tool_call_id": "call00000", "name": "query", "content": 'query {"sql": "select 1"}'
    }  # fmt: skip


def test_sampled_text_is_never_needed() -> None:
    """A model that says anything: what comes back is in its vocabulary and goes into rows as it is."""
    with Peer() as peer, rollouts([peer], Counting()) as found:
        groups = sampled(found, wanted())
    answers = [turn.answer for group in groups for episode in group.episodes for turn in episode.turns]
    retokenised = [array("i", template(BASE).ids(template(BASE).decode(answer.tolist()))) for answer in answers]
    assert retokenised != answers
    rows = [row for group in groups for row in group_rows(group.episodes, 0, RowRules("turn", None, "train"))]
    assert [row.row.ids[row.answers[0].start :] for row in rows] == answers
