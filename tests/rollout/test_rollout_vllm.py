"""Real vLLM under the guard: what it samples after each policy is what transformers says of the base with that policy merged.

Everything is fp32, so that the two agree to rounding. vLLM has an environment of its own: `hack/venv rollout`.
"""

from __future__ import annotations

import base64
import io
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from guarded import ROOT, Guarded
from rollout_support import make_adapter, make_base, make_tokenizer, merged, policy_of

from halo_api.conditions import Reason
from halo_api.rollouts import Policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
# A block of the CPU's cache is 128 tokens: the first one is taken from the cache when the prompt comes again.
PROMPT = [3 + number % 80 for number in range(140)]
TEMPERATURE = 0.7
# The largest difference of a log-probability, in nats: two orders of summation in fp32.
CLOSE = 5e-4


@pytest.fixture(scope="module")
def python() -> str:
    made = subprocess.run([ROOT / "hack" / "venv", "rollout"], check=True, stdout=subprocess.PIPE, text=True)
    return f"{made.stdout.splitlines()[-1]}/bin/python"


class Pod:
    """A rollout pod of a tiny base, and the adapters that are announced to it."""

    def __init__(self, folder: Path, kind: str, serving: str, python: str) -> None:
        self.serving, self.kind = serving, kind
        self.base = make_base(folder / "volumes" / "models" / "base", kind)
        make_tokenizer(self.base)
        self.artifacts = folder / "volumes" / "artifacts"
        self.moe = "moe" in kind
        self.guarded = Guarded.start(folder, serving, python, routedExperts=self.moe)

    def adapter(self, name: str, seed: int, modules: Any = "all-linear") -> Path:
        return make_adapter(self.base, self.artifacts / name, seed, modules=modules)

    def announce(self, version: int, adapter: Path) -> Policy:
        policy = policy_of(adapter, f"pvc://artifacts/{adapter.name}", version, self.serving)
        status, answer = self.guarded.put(policy)
        assert (status, answer.policy, answer.problem) == (200, policy, None), (answer, self.guarded.log())
        assert self.guarded.ready()
        return policy

    def sample(self, model: str, seed: int = 7) -> dict[str, Any]:
        asked = {"model": model, "prompt": PROMPT, "max_tokens": 16, "temperature": TEMPERATURE, "seed": seed}
        answer = self.guarded.post(
            "/v1/completions", asked | {"logprobs": 0, "ignore_eos": True, "return_token_ids": True}
        )
        choice: dict[str, Any] = answer["choices"][0]
        assert choice["prompt_token_ids"] == PROMPT
        return choice

    def cached_tokens(self) -> float:
        """Return how many tokens of prompts came from the prefix cache so far."""
        lines = self.guarded.metrics().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:prefix_cache_hits_total"))

    def agrees(self, model: str, adapter: Path | None) -> list[float]:
        """Check what is sampled, twice: the second time the prompt comes from the cache. Return the log-probabilities."""
        theirs = merged(self.base, adapter)
        for _ in range(2):
            choice = self.sample(model)
            ids, found = choice["token_ids"], torch.tensor(choice["logprobs"]["token_logprobs"])
            with torch.no_grad():
                output = theirs(torch.tensor([PROMPT + ids]), **({"output_router_logits": True} if self.moe else {}))
            expected = (output.logits[0, len(PROMPT) - 1 : -1] / TEMPERATURE).log_softmax(-1)
            expected = expected.gather(1, torch.tensor(ids)[:, None])[:, 0]
            difference = float((found - expected).abs().max())
            print(f"{self.kind} {self.serving} {model}: max |dlogp| {difference:.1e}")
            assert difference < CLOSE
            if self.moe:
                assert routes_agree(choice["routed_experts"], output.router_logits) > 0.99
        return found.tolist()  # type: ignore[no-any-return]


def routes_agree(told: str, router_logits: tuple[torch.Tensor, ...]) -> float:
    """Return the share of tokens and layers for which the server tells the experts that transformers chooses."""
    routes = np.load(io.BytesIO(base64.b64decode(told)))
    chosen = torch.stack([logits.topk(2, -1).indices for logits in router_logits], 1).numpy()
    # The last sampled token goes through no layer any more.
    assert routes.shape == (len(PROMPT) + 16 - 1, 2, 2)
    return float((np.sort(routes, -1) == np.sort(chosen[: len(routes)], -1)).all(-1).mean())


@pytest.fixture
def pod(tmp_path: Path, python: str, request: pytest.FixtureRequest) -> Any:
    kind, serving = request.param
    pod = Pod(tmp_path, kind, serving, python)
    try:
        pod.guarded.wait()
        yield pod
    finally:
        pod.guarded.close()


@pytest.mark.parametrize("pod", [("qwen3", "folded"), ("qwen3_moe", "folded")], indirect=True, ids=lambda each: each[0])
def test_a_folded_policy_samples_as_the_merged_model_whatever_was_served_before(pod: Pod) -> None:
    every, some = pod.adapter("every", 1), pod.adapter("some", 2, ["q_proj", "o_proj"])
    pod.agrees("base", None)
    pod.announce(1, every)
    first = pod.agrees("base", every)
    pod.announce(2, some)
    pod.agrees("base", some)
    pod.announce(3, every)
    assert pod.agrees("base", every) == first, "bit for bit, though another policy was served in between"

    wide = make_base(pod.artifacts.parent / "wide", "wide")
    other = make_adapter(wide, pod.artifacts / "wide", 1, modules=ATTENTION)
    status, answer = pod.guarded.put(policy_of(other, "pvc://artifacts/wide", 4, "folded"))
    assert status == 409
    assert "the base's is" in str(answer.problem)
    assert pod.agrees("base", every) == first

    status, answer = pod.guarded.put(Policy(version=5, attempt=1, name="run-uid-a1-s5", serving="folded"))
    assert (status, answer.problem) == (200, None)
    pod.agrees("base", None)
    assert pod.cached_tokens() >= 6 * 128, "each second prompt came from the cache, and none from an older policy's"
    assert pod.guarded.end() == 0


@pytest.mark.parametrize(
    "pod", [("qwen3", "unmerged"), ("qwen3_moe", "unmerged")], indirect=True, ids=lambda each: each[0]
)
def test_policies_beside_the_base_are_each_served_under_their_name(pod: Pod) -> None:
    modules = ATTENTION if pod.moe else "all-linear"
    adapters = [pod.adapter(f"s{version}", version, modules) for version in (1, 2, 3)]
    policies = []
    for version, adapter in enumerate(adapters, 1):
        policies.append(pod.announce(version, adapter))
        # The volume's files may go as soon as the policy is taken.
        served = shutil.move(adapter, adapter.with_name(f"kept-{version}"))
        pod.agrees(policies[-1].model, Path(served))
    pod.agrees(policies[1].model, pod.artifacts / "kept-2")
    pod.agrees("base", None)
    with pytest.raises(AssertionError, match="does not exist"):
        pod.sample(policies[0].model)
    if pod.moe:
        status, answer = pod.guarded.put(policy_of(pod.adapter("experts", 4), "pvc://artifacts/experts", 4, "unmerged"))
        assert status == 409
        assert "LoRA on experts" in str(answer.problem)


@pytest.mark.parametrize("pod", [("qwen3", "folded")], indirect=True, ids=lambda each: each[0])
def test_a_hung_engine_is_not_ready_and_a_dead_one_fails_the_pod(pod: Pod) -> None:
    tree = psutil.Process(pod.guarded.process.pid).children(recursive=True)
    workers = [process for process in tree if "Worker" in process.name()]
    assert workers, [process.name() for process in tree]
    for worker in workers:
        worker.suspend()
    pod.guarded.wait(lambda: pod.guarded.get("/ready")[0] == 503)
    for worker in workers:
        worker.resume()
    pod.guarded.wait()
    for worker in workers:
        os.kill(worker.pid, signal.SIGKILL)
    assert pod.guarded.process.wait(120) == 1
    outcome = pod.guarded.report().outcome
    assert outcome
    assert (outcome.result, outcome.reason) == ("Failed", Reason.CRASHED)
    assert "ended by itself" in outcome.message
    end = time.monotonic() + 30
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in tree):
        assert time.monotonic() < end, "processes of vLLM are left"
        time.sleep(0.1)
