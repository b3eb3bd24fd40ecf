"""Which policy a server takes, what health means, and what passes the fence."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rollout_support import lora_config, policy_of, run_file

from halo_api.rollouts import Policy
from halo_rollout.engine import counted, unsampled
from halo_rollout.fence import Fence
from halo_rollout.health import LIVE_SECONDS, READY_SECONDS, START_SECONDS, Health
from halo_rollout.policies import Refused, check, check_layers, fetch, superseded

RUN = run_file(8000, 8001, "unmerged")
PLAIN = Policy(version=3, attempt=1, name="run-a1-s3", serving="unmerged")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"attempt": 2}, "attempt 2, and this server of attempt 1"),
        ({"serving": "folded"}, "takes unmerged ones"),
        ({"version": 2, "name": "run-a1-s2"}, "older than run-a1-s3"),
        ({"name": "other"}, "its name or version"),
        ({"version": 4}, "its name or version"),
        ({"name": "base"}, "as a policy's name"),
        ({"name": "../s4"}, "as a policy's name"),
    ],
)
def test_a_policy_of_another_run_or_time_is_refused(policy: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        check(PLAIN.model_copy(update=policy), PLAIN, RUN)


def test_the_same_policy_and_a_newer_one_are_taken() -> None:
    check(PLAIN, PLAIN, RUN)
    check(PLAIN.model_copy(update={"version": 9, "name": "run-a1-s9"}), PLAIN, RUN)


@pytest.fixture
def announced(tmp_path: Path) -> Policy:
    folder = tmp_path / "volumes" / "artifacts" / "s1"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(lora_config()))
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    return policy_of(folder, "pvc://artifacts/s1", 1, "unmerged")


def take(policy: Policy, tmp_path: Path, rank: int = 4) -> Path:
    assert policy.adapter
    fetch(policy.adapter, str(tmp_path / "volumes"), tmp_path / "copy", rank)
    return tmp_path / "copy"


def test_the_announced_files_are_copied(announced: Policy, tmp_path: Path) -> None:
    copy = take(announced, tmp_path)
    assert sorted(path.name for path in copy.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]


def test_other_files_than_those_announced_are_refused(announced: Policy, tmp_path: Path) -> None:
    weights = tmp_path / "volumes" / "artifacts" / "s1" / "adapter_model.safetensors"
    weights.write_bytes(b"others")
    with pytest.raises(Refused, match=r"adapter_model\.safetensors is sha256:.* was announced"):
        take(announced, tmp_path)
    weights.unlink()
    with pytest.raises(Refused, match="can't be read"):
        take(announced, tmp_path)


def test_a_digest_of_other_files_is_refused(announced: Policy, tmp_path: Path) -> None:
    assert announced.adapter
    adapter = announced.adapter.model_copy(update={"digest": f"sha256:{'0' * 64}"})
    with pytest.raises(Refused, match=r"are sha256:.* together"):
        take(announced.model_copy(update={"adapter": adapter}), tmp_path)
    files = (announced.adapter.files[0].model_copy(update={"path": "../s1/adapter_config.json"}),)
    with pytest.raises(Refused, match="leads elsewhere"):
        take(announced.model_copy(update={"adapter": adapter.model_copy(update={"files": files})}), tmp_path)


def test_a_rank_that_there_is_no_room_for_is_refused(announced: Policy, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="rank 4, and this server has room for rank 2"):
        take(announced, tmp_path, rank=2)


def test_a_lora_on_experts_is_told_from_its_header(tmp_path: Path) -> None:
    for name, fine in (("m.mlp.gate.lora_A.weight", True), ("m.mlp.experts.lora_A.weight", False)):
        header = json.dumps({name: {}}).encode()
        (tmp_path / "w").write_bytes(len(header).to_bytes(8, "little") + header)
        if fine:
            check_layers(tmp_path / "w")
        else:
            with pytest.raises(Refused, match=r"experts\.lora_A"):
                check_layers(tmp_path / "w")


def test_the_last_policies_stay_loaded() -> None:
    assert superseded(["s1", "s2", "s3"], 2) == ["s1"]
    assert superseded(["s1", "s2"], 2) == []


def test_a_server_is_live_while_anything_moves_in_it() -> None:
    loading = Health(begun=0.0)
    assert loading.live(START_SECONDS - 1)
    assert not loading.live(START_SECONDS)
    up = loading.answered("base", 10.0)
    assert up.live(10 + LIVE_SECONDS - 1)
    assert not up.live(10 + LIVE_SECONDS), "a hung engine"
    busy = up.counted(5.0, 100.0)
    assert busy.live(100 + LIVE_SECONDS - 1), "probes wait behind what is queued, but tokens go through"
    assert not busy.counted(5.0, 200.0).live(100 + LIVE_SECONDS), "the same count again is no movement"


def test_ready_means_sampled_with_the_announced_policy_and_lately() -> None:
    health = Health(begun=0.0).answered("s1", 1.0)
    assert health.ready("s1", 2.0)
    assert not health.ready("s2", 2.0)
    assert not health.ready("s1", 1.0 + READY_SECONDS)
    taking = health.taking(until=500.0)
    assert not taking.ready("s1", 2.0)
    assert taking.live(499.0)
    assert not taking.live(500.0), "it takes for ever"
    taken = taking.taken(3.0)
    assert not taken.ready("s2", 3.0), "not before it has sampled with the new one"
    assert taken.answered("s2", 3.0).ready("s2", 3.0)


GOOD = {"choices": [{"token_ids": [5, 6], "logprobs": {"token_logprobs": [-0.5, 0.0]}}]}


@pytest.mark.parametrize("log_probs", [[math.nan, -1.0], [None, -1.0], [-9999.0, -1.0], [-1.0]])
def test_log_probs_that_are_none_are_no_sample(log_probs: list[Any]) -> None:
    assert unsampled(GOOD) is None
    assert unsampled({"choices": [GOOD["choices"][0] | {"logprobs": {"token_logprobs": log_probs}}]})


@pytest.mark.parametrize("answer", [None, {}, {"choices": []}, {"choices": [{"token_ids": [5, 6], "logprobs": None}]}])
def test_an_answer_without_tokens_is_no_sample(answer: Any) -> None:
    assert unsampled(answer) == "without token ids and log-probabilities"


def test_routed_experts_are_missed_where_they_were_asked_for() -> None:
    assert unsampled(GOOD, routes=True) == "without the experts that its tokens were routed to"


def test_tokens_of_both_kinds_are_counted() -> None:
    text = '# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total{engine="0"} 3.0\n'
    assert counted(text + 'vllm:generation_tokens_total{engine="0"} 4.0\nvllm:num_requests_running 9.0\n') == 7.0


@pytest.mark.parametrize(
    ("path", "client", "passes"),
    [
        ("/v1/completions", "10.0.0.7", True),
        ("/collective_rpc", "10.0.0.7", False),
        ("/v1/load_lora_adapter", "10.0.0.7", False),
        ("/collective_rpc", "127.0.0.1", True),
        ("/collective_rpc", "::ffff:127.0.0.1", True),
        ("/collective_rpc", "::1", True),
    ],
)
def test_from_outside_the_pod_a_server_is_only_sampled(path: str, client: str, passes: bool) -> None:
    passed, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["path"])

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    asyncio.run(Fence(app)({"type": "http", "path": path, "client": (client, 1)}, receive, send))
    assert passed == ([path] if passes else [])
    assert [message["status"] for message in sent if "status" in message] == ([] if passes else [403])
