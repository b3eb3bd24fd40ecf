"""The guard as a process, over a stand-in for vLLM: policies, readiness, and every way to end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guarded import Guarded
from rollout_support import lora_config, policy_of

from halo_api.conditions import Reason
from halo_api.rollouts import Policy

# What vLLM's server is to the guard. It does as the files beside it say, and writes down what it is asked.
STAND_IN = """
import asyncio, json, os, sys
from pathlib import Path
from aiohttp import web

def said(name):
    return Path(name).exists()

async def play(request):
    body = await request.json() if request.can_read_body else {}
    asked = {key: body[key] for key in ("lora_name", "kwargs", "model") if key in body}
    with open("asked", "a") as file:
        file.write(json.dumps([request.path, asked]) + "\\n")
    if request.path == "/v1/completions":
        log_prob = float("nan") if said("sick") else -0.5
        return web.json_response({"choices": [{"token_ids": [1, 2], "logprobs": {"token_logprobs": [log_prob, -0.5]}}]})
    if request.path == "/collective_rpc":
        if said("worker-fails"):
            return web.Response(status=500, text="the worker\\nfailed")
        return web.json_response({"results": [{"problem": "no such layer" if said("unfit") else None}]})
    return web.json_response({"success": True})

async def health(request):
    return web.Response(status=200)

async def main():
    port = next(int(word.partition("=")[2]) for word in sys.argv if word.startswith("--port="))
    app = web.Application()
    app.add_routes([web.get("/health", health), web.get("/metrics", health), web.post("/{path:.*}", play)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    # A worker, which does not end by itself.
    worker = os.fork()
    if worker == 0:
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    Path("worker").write_text(str(worker))
    while not said("engine-died"):
        await asyncio.sleep(0.05)
    os._exit(0)

asyncio.run(main())
"""


def start(folder: Path, serving: str) -> Guarded:
    package = folder / "modules" / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    (package / "main.py").write_text(STAND_IN)
    base = folder / "volumes" / "models" / "base"
    base.mkdir(parents=True)
    (base / "config.json").write_text(json.dumps({"head_dim": 32}))
    return Guarded.start(folder, serving, modules=(folder / "modules",))


@pytest.fixture
def pod(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Guarded]:
    guarded = start(tmp_path, request.param)
    try:
        guarded.wait()
        yield guarded
    finally:
        guarded.close()


def policy(pod: Guarded, version: int, serving: str) -> Policy:
    folder = pod.folder / "volumes" / "artifacts" / f"s{version}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(lora_config()))
    (folder / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return policy_of(folder, f"pvc://artifacts/s{version}", version, serving)


def asked(pod: Guarded, path: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (pod.folder / "asked").read_text().splitlines())
    return [what for where, what in lines if where == path]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("pod", ["unmerged"], indirect=True)
def test_a_server_of_loras_keeps_two_policies_and_ends_whole_when_it_is_told(pod: Guarded) -> None:
    pod.wait(lambda: pod.report().phase == "Working")
    policies = [policy(pod, version, "unmerged") for version in (1, 2, 3)]
    for each in policies:
        status, answer = pod.put(each)
        assert (status, answer.policy, answer.problem) == (200, each, None)
        assert pod.ready()
    assert pod.put(policies[2]) == (200, answer), "the same again is answered, not loaded"
    names = [each.name for each in policies]
    assert [each["lora_name"] for each in asked(pod, "/v1/load_lora_adapter")] == names
    assert [each["lora_name"] for each in asked(pod, "/v1/unload_lora_adapter")] == names[:1]
    assert asked(pod, "/v1/completions")[-1] == {"model": names[2]}

    status, answer = pod.put(policies[1])
    assert (status, answer.policy) == (409, policies[2])
    assert "older" in str(answer.problem)

    (pod.folder / "sick").touch()
    status, answer = pod.put(policy(pod, 4, "unmerged"))
    assert (status, answer.policy) == (500, policies[2])
    assert "log-probabilities" in str(answer.problem)
    assert asked(pod, "/v1/unload_lora_adapter")[-1] == {"lora_name": "run-uid-a1-s4"}, "what can't sample is not kept"

    worker = int((pod.folder / "worker").read_text())
    assert pod.end(signal.SIGTERM) == 0
    assert gone(worker)
    outcome = pod.report().outcome
    assert outcome
    assert (outcome.result, outcome.reason) == ("Failed", Reason.INTERRUPTED), (
        "nobody takes its end for its run's success"
    )


@pytest.mark.parametrize("pod", ["folded"], indirect=True)
def test_a_folded_policy_that_does_not_fit_leaves_the_one_before_and_a_failed_one_ends_the_server(pod: Guarded) -> None:
    first = policy(pod, 1, "folded")
    assert pod.put(first)[0] == 200
    assert [each["kwargs"]["dtype"] for each in asked(pod, "/collective_rpc")] == ["fp32"]
    order = ["/pause", "/collective_rpc", "/reset_prefix_cache", "/resume", "/v1/completions"]
    lines = [json.loads(line)[0] for line in (pod.folder / "asked").read_text().splitlines()]
    assert lines[lines.index("/pause") :][: len(order)] == order
    assert asked(pod, "/v1/completions")[-1] == {"model": "base"}

    (pod.folder / "unfit").touch()
    status, answer = pod.put(policy(pod, 2, "folded"))
    assert (status, answer.policy) == (409, first)
    assert "no such layer" in str(answer.problem)
    assert pod.ready()

    (pod.folder / "worker-fails").touch()
    status, answer = pod.put(policy(pod, 3, "folded"))
    assert status == 500
    assert pod.process.wait(60) == 1
    outcome = pod.report().outcome
    assert outcome
    assert (outcome.result, outcome.reason) == ("Failed", Reason.CRASHED)
    assert "the worker failed" in outcome.message


@pytest.mark.parametrize("pod", ["folded"], indirect=True)
def test_vllm_that_ends_by_itself_is_a_failure_though_its_exit_code_is_0(pod: Guarded) -> None:
    worker = int((pod.folder / "worker").read_text())
    assert not gone(worker)
    (pod.folder / "engine-died").touch()
    assert pod.process.wait(60) == 1
    assert gone(worker)
    outcome = pod.report().outcome
    assert outcome
    assert (outcome.result, outcome.reason) == ("Failed", Reason.CRASHED)
    assert "ended by itself with exit code 0" in outcome.message


def test_vllm_does_not_outlive_a_guard_that_is_killed(tmp_path: Path) -> None:
    guarded = start(tmp_path, "folded")
    try:
        guarded.wait()
        leader = int((tmp_path / "worker").read_text())
        leader = int(Path(f"/proc/{leader}/stat").read_text().split()[3])
        guarded.process.kill()
        guarded.process.wait()
        while not gone(leader):
            os.sched_yield()
    finally:
        guarded.close()
        os.kill(int((tmp_path / "worker").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("pod", ["unmerged"], indirect=True)
def test_a_server_that_can_not_sample_is_not_ready_and_at_the_budgets_end_it_just_ends(pod: Guarded) -> None:
    (pod.folder / "sick").touch()
    assert pod.get("/live")[0] == 200
    assert pod.put(policy(pod, 1, "unmerged"))[0] == 500
    assert pod.end(signal.SIGUSR1) == 0
    outcome = pod.report().outcome
    assert outcome
    assert (outcome.result, outcome.reason) == ("Succeeded", Reason.BUDGET_REACHED)


def test_a_base_that_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "volumes").mkdir()
    guarded = Guarded.start(tmp_path, "folded")
    assert guarded.process.wait(60) == 1
    outcome = guarded.report().outcome
    assert outcome
    assert outcome.reason == Reason.BASE_MISSING
    assert "holds no base model" in outcome.message
