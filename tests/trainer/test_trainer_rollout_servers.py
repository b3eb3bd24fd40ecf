"""Sampling from servers that break, hang, lie, are replaced and come back: only good answers come back, each drawn by its seed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollout_peer import VOCABULARY, Peer, ids, log_probs_of, policy, table

from halo_api.rollouts import Policy, ServerAddress, Servers
from halo_trainer.rollouts.client import Client, Retries
from halo_trainer.rollouts.completion import Ask, Sampling, ServerFailed, turn_of
from halo_trainer.rollouts.episode import Turn
from halo_trainer.rollouts.fleet import Fleet, NoServers, Patience, choice
from halo_trainer.rollouts.guard import Guards
from halo_trainer.rollouts.lines import http_client

SAMPLING = Sampling(temperature=0.7, top_p=1.0, top_k=-1, min_p=0.0, stops=(5, 9), vocabulary=VOCABULARY)
QUICK = Patience(in_flight=4, again=(0.01, 0.05), look=0.02, alone=20.0)
RETRIES = Retries(attempts=6, pause=(0.001, 0.01), attempt_seconds=20.0)


@contextlib.asynccontextmanager
async def client_of(
    peers: Sequence[Peer],
    first: Policy | None = None,
    file: Path | None = None,
    patience: Patience = QUICK,
    retries: Retries = RETRIES,
) -> AsyncIterator[Client]:
    addresses = [peer.address for peer in peers]
    async with http_client() as http, Fleet(addresses, Guards(http, 5.0, 5.0), 1, file, patience) as fleet:
        await fleet.publish(first or policy(1))
        yield Client(fleet, http, SAMPLING, retries)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def ask(seed: int = 3, most: int = 12) -> Ask:
    return Ask(ids(1, 2, 3 + seed % 100), most, seed)


def check(turn: Turn, asked: Ask, version: int = 1) -> None:
    """Whoever sampled it: it is what the policy gives by the seed, with the log-probabilities that the policy has."""
    expected = log_probs_of(table, version, asked.prompt, turn.answer, SAMPLING.temperature)
    assert turn.log_probs.tolist() == pytest.approx(expected, abs=1e-12)
    assert (turn.prompt, turn.policy, turn.model) == (asked.prompt, version, f"run-a1-s{version}")
    assert (turn.answer[-1] in SAMPLING.stops) == (turn.finish == "stop")


async def test_an_answer_is_the_policys_own_by_its_seed() -> None:
    with Peer() as peer:
        async with client_of([peer]) as client:
            turns = [await client.sample(ask(seed), ("a",)) for seed in range(12)]
            again = [await client.sample(ask(seed), ("a",)) for seed in range(12)]
    assert turns == again
    # One behind the other, over kept connections.
    assert peer.connections < len(peer.requests)
    for seed, turn in enumerate(turns):
        check(turn, ask(seed))
    assert {turn.finish for turn in turns} == {"stop", "length"}
    body = peer.requests[0]
    assert (body["top_p"], body["top_k"], body["min_p"], body["stop_token_ids"]) == (1.0, -1, 0.0, [5, 9])
    assert (body["skip_special_tokens"], body["return_token_ids"], body["cache_salt"]) == (False, True, "run-a1-s1")


LIES = ["nan", "none", "impossible", "short", "alien", "prompt", "model", "abort", "runs on"]


@pytest.mark.parametrize("fault", ["reset", "500", "429", "truncated", *LIES])
async def test_what_went_wrong_is_tried_again_with_the_same_seed(fault: str) -> None:
    with Peer() as peer:
        async with client_of([peer]) as client:
            peer.faults.extend([fault, fault])
            turn = await client.sample(ask(), ("a",))
            assert client.failures.total() == 2
    check(turn, ask())
    assert len(peer.requests) == 3
    assert len({json.dumps(body, sort_keys=True) for body in peer.requests}) == 1


async def test_a_hanging_server_is_left_when_its_time_is_over_and_another_answers() -> None:
    with Peer(0) as hangs, Peer(1) as works:
        async with client_of([hangs, works], retries=replace(RETRIES, attempt_seconds=0.2)) as client:
            hangs.broken = "hang"
            turn = await client.sample(ask(), ("a",))
    check(turn, ask())
    assert (len(hangs.requests), turn.server) == (1, 1)


async def test_a_request_that_is_refused_is_not_tried_again() -> None:
    with Peer() as peer:
        async with client_of([peer]) as client:
            peer.faults.append("400")
            with pytest.raises(ServerFailed, match=r"answered 400: .*told to"):
                await client.sample(ask(), ("a",))
            assert client.fleet.ready == [0]
    assert len(peer.requests) == 1


async def test_a_server_that_keeps_failing_is_set_aside_until_its_guard_has_spoken() -> None:
    with Peer(0) as lies, Peer(1) as works:
        async with client_of([lies, works], patience=replace(QUICK, again=(60.0, 60.0))) as client:
            lies.broken = "nan"
            turns = [await client.sample(ask(seed), (f"episode {seed}",)) for seed in range(20)]
            assert {turn.server for turn in turns} == {1}
            assert client.fleet.problems == {0: "a sampled token has the log-probability nan"}
    # Three strikes, and as many once its guard had said that all is well.
    assert len(lies.requests) == 2 * QUICK.strikes


async def test_a_server_that_forgot_its_policy_gets_it_again() -> None:
    with Peer() as peer:
        async with client_of([peer]) as client:
            peer.policy = None
            check(await client.sample(ask(), ("a",)), ask())
    assert [each.version for each in peer.puts] == [1, 1]


async def test_a_replaced_server_has_the_current_policy_before_it_is_sampled_from(tmp_path: Path) -> None:
    """Killed in the middle of a round: what it sampled is lost, asked again, and the new one samples policy 2."""
    file = tmp_path / "servers.json"
    with Peer(0, 1) as first, Peer(0, 2) as second:
        async with client_of([first], file=file) as client:
            await client.fleet.publish(policy(2))
            first.broken = "hang"
            sampling = [asyncio.create_task(client.sample(ask(seed), (str(seed),))) for seed in range(6)]
            await until(lambda: len(first.requests) == QUICK.in_flight)
            write(file, [second.address])
            turns = await asyncio.gather(*sampling)
    for seed, turn in enumerate(turns):
        check(turn, ask(seed), version=2)
    assert [each.version for each in second.puts] == [2]
    assert len(second.requests) == 6


class Watched(type(Path())):  # type: ignore[misc]
    """A file that counts how often it was read."""

    looks = 0

    def read_bytes(self) -> bytes:
        try:
            return super().read_bytes()  # type: ignore[no-any-return]
        finally:
            self.looks += 1


async def test_all_servers_may_be_gone_for_a_while(tmp_path: Path) -> None:
    file = Watched(tmp_path / "servers.json")
    with Peer(0) as first, Peer(1) as other, Peer(1, 2) as second:
        async with client_of([first, other], file=file, retries=replace(RETRIES, attempts=3)) as client:
            first.kill()
            other.kill()
            sampling = [asyncio.create_task(client.sample(ask(seed), (str(seed),))) for seed in range(6)]
            await until(lambda: not client.fleet.ready)
            # An answer for another attempt's servers is none.
            write(file, [second.address], attempt=2)
            since = file.looks
            # One look may have begun before the answer was there.
            await until(lambda: file.looks >= since + 2)
            assert client.fleet.ready == []
            write(file, [first.address, second.address])
            for seed, turn in enumerate(await asyncio.gather(*sampling)):
                check(turn, ask(seed))
                assert turn.server == 1


async def test_without_any_server_the_round_is_given_up_with_what_each_says() -> None:
    with Peer() as peer:
        async with client_of([peer], patience=replace(QUICK, alone=0.2)) as client:
            peer.kill()
            with pytest.raises(
                NoServers, match=r"no rollout server was ready for 0.2 s \(server 0: its guard can't be"
            ):
                await client.sample(ask(), ("a",))


async def test_a_policy_is_published_to_all_at_once_and_who_does_not_take_it_is_set_aside() -> None:
    with Peer(0) as works, Peer(1) as refuses, Peer(2) as stumbles:
        async with client_of([works, refuses, stumbles], patience=replace(QUICK, again=(0.01, 60.0))) as client:
            refuses.put_faults.extend(["409"] * 10)
            stumbles.put_faults.extend(["500", "reset"])
            published = await client.fleet.publish(policy(2))
            assert set(published.seconds) == {0, 2}
            assert published.problems == {1: "told to"}
            # A refusal is final, a stumble is not.
            assert len(refuses.put_faults) >= 8
            turns = [await client.sample(ask(seed), (str(seed),)) for seed in range(4)]
    assert {turn.policy for turn in turns} == {2}
    assert [each.version for each in stumbles.puts] == [1, 2]


async def test_what_was_sampled_while_folded_weights_changed_is_sampled_again() -> None:
    with Peer() as peer:
        async with client_of([peer], policy(1, "folded")) as client:
            peer.faults.append("hang")
            peer.held.clear()
            slow = asyncio.create_task(client.sample(ask(), ("a",)))
            await until(lambda: bool(peer.requests))
            await client.fleet.publish(policy(2, "folded"))
            peer.held.set()
            turn = await slow
    assert (turn.policy, turn.model) == (2, "base")


async def test_no_server_has_more_requests_than_it_may() -> None:
    with Peer(0) as one, Peer(1) as two:
        async with client_of([one, two]) as client:
            keys = [(f"{group}/{sample}", str(group)) for group in range(8) for sample in range(4)]
            await asyncio.gather(*(client.sample(ask(seed), key) for seed, key in enumerate(keys)))
    assert max(one.most, two.most) <= QUICK.in_flight
    assert min(len(one.requests), len(two.requests)) > 0


async def test_a_group_and_the_turns_of_an_episode_stay_where_their_prefix_is() -> None:
    with Peer(0) as one, Peer(1) as two:
        async with client_of([one, two]) as client:
            for _ in range(3):
                for group in range(4):
                    for sample in range(4):
                        await client.sample(ask(group), (f"{group}/{sample}", str(group)))
    # Nothing was ever full, so no prompt was at both.
    prompts = [{tuple(body["prompt"]) for body in peer.requests} for peer in (one, two)]
    assert prompts[0].isdisjoint(prompts[1])


@given(
    st.dictionaries(st.integers(0, 5), st.integers(0, 4)),
    st.none() | st.integers(0, 5),
    st.frozensets(st.integers(0, 5)),
)
def test_the_choice_of_a_server(loads: dict[int, int], home: int | None, avoid: frozenset[int]) -> None:
    found = choice(loads, 4, home, avoid)
    free = [server for server, load in loads.items() if load < 4]
    if found is None:
        assert not free
        return
    assert found in free
    assert found not in avoid or set(free) <= avoid
    if home in free and home not in avoid:
        assert found == home
    elif home != found:
        assert loads[found] == min(loads[server] for server in free if server not in avoid or set(free) <= avoid)


def routed(shape: tuple[int, ...], dtype: str = "uint8") -> str:
    data = io.BytesIO()
    np.save(data, np.arange(np.prod(shape)).reshape(shape).astype(dtype))
    return base64.b64encode(data.getvalue()).decode()


@pytest.mark.parametrize(
    ("routes", "problem"),
    [
        (routed((4, 2, 3)), None),
        # The last sampled token goes through no layer any more.
        (routed((5, 2, 3)), r"shape \(5, 2, 3\) came for 4 tokens"),
        (routed((4, 6)), r"shape \(4, 6\)"),
        (routed((4, 2, 3), "float32"), "routed experts of shape"),
        ("no base64", "no routed experts that can be read"),
        (None, "no routed experts that can be read"),
    ],
)
def test_experts_come_for_each_token_that_was_routed(routes: str | None, problem: str | None) -> None:
    choice = {
        "prompt_token_ids": [1, 2, 3], "token_ids": [4, 5], "finish_reason": "stop",
        "logprobs": {"token_logprobs": [-1.0, -2.0]}, "routed_experts": routes,
    }  # fmt: skip
    reply = {"model": "run-a1-s1", "choices": [choice]}
    sampling = replace(SAMPLING, routes=True)
    with pytest.raises(ServerFailed, match=problem) if problem else contextlib.nullcontext():
        turn = turn_of(Ask(ids(1, 2, 3), 2, 0), sampling, policy(1), 0, reply)
        assert np.load(io.BytesIO(turn.routes or b"")).shape == (4, 2, 3)


def write(file: Path, addresses: list[ServerAddress], attempt: int = 1) -> None:
    new = file.with_suffix(".new")
    new.write_text(Servers(attempt=attempt, servers=tuple(addresses)).model_dump_json(by_alias=True))
    new.replace(file)


def test_requests_pass_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    async def answered() -> int:
        with Peer() as peer:
            async with http_client() as http:
                response: httpx.Response = await http.get(peer.address.guard + "/policy")
                return response.status_code

    assert asyncio.run(answered()) == 200
