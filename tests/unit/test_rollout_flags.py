"""How vLLM is started: what is pinned, and what follows from the machine, the base and the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from halo_api.rollouts import RolloutPlan
from halo_api.run_file import BaseRef
from halo_rollout.flags import Server, command, cpu_flags, dtype_for, environment, precision, run_server
from halo_rollout.traits import Traits, Unservable, check_servable, traits_of

PEOPLE = Server(Path("/m"), 8000, 1024, "float32", 32)
PLAN = RolloutPlan(server=0, gpus=1, context_length=64, rank=4, serving="unmerged")
BASE = BaseRef(name="b", source="pvc://m/b", revision="r", dtype="bf16", context_length=64)


def of_run(traits: Traits = Traits(), **plan: object) -> list[str]:  # noqa: B008
    return command(run_server(BASE, Path("/m"), PLAN.model_copy(update=plan), traits, "float32", on_gpu=False))


def test_adapters_are_served_beside_the_base_under_their_names() -> None:
    words = command(replace(PEOPLE, adapters={"b": Path("/b"), "a": Path("/a")}))
    assert words[words.index("--lora-modules") + 1 :] == ["a=/a", "b=/b"]
    assert "--max-lora-rank=32" in words


def test_what_is_sampled_is_what_is_scored() -> None:
    """Log-probabilities after temperature, and no top-p that the base's generation_config.json brings in."""
    for words in (command(PEOPLE), of_run()):
        assert {"--logprobs-mode=processed_logprobs", "--generation-config=vllm"} <= set(words)


def test_a_run_has_room_for_two_policies_and_their_rank() -> None:
    assert {"--enable-lora", "--max-loras=2", "--max-lora-rank=8"} <= set(of_run())
    assert not any("lora" in word for word in of_run(serving="folded")), "a folded policy needs none"


def test_only_a_run_opens_what_changes_the_server_and_it_is_fenced() -> None:
    ours = ["--worker-extension-cls=halo_rollout.extension.PolicyWorker", "--middleware=halo_rollout.fence.Fence"]
    assert [word for word in of_run() if "=halo_rollout" in word] == ours
    assert not any("=halo_rollout" in word for word in command(PEOPLE))


def test_states_of_hybrids_are_not_cached_and_experts_get_no_lora_on_a_cpu() -> None:
    assert "--enable-prefix-caching" in of_run()
    assert "--no-enable-prefix-caching" in of_run(Traits(hybrid=True))
    assert "experts" not in of_run(Traits(experts=True))[of_run(Traits(experts=True)).index("--lora-target-modules") :]


@pytest.mark.parametrize(("context", "tokens"), [(512, 4096), (9000, 9000)])
def test_a_cpu_takes_each_prompt_whole_and_a_gpu_as_it_likes(context: int, tokens: int) -> None:
    """A part of a prompt under a request with a seed is the end of a CPU's engine."""
    server = replace(PEOPLE, context_length=context)
    assert {"--no-enable-chunked-prefill", f"--max-num-batched-tokens={tokens}"} <= set(command(server))
    assert not any("prefill" in word or "batched" in word for word in command(replace(server, on_gpu=True)))


@pytest.mark.parametrize("asked", [True, False])
def test_routed_experts_are_returned_when_the_recipe_replays_them(asked: bool) -> None:
    assert ("--enable-return-routed-experts" in of_run(routed_experts=asked)) == asked


@pytest.mark.parametrize(
    ("on_gpu", "flags", "dtype"),
    [(True, "", "bfloat16"), (False, "avx2 avx512_bf16", "bfloat16"), (False, "avx2", "float32")],
)
def test_the_precision_is_the_one_that_the_machine_is_fast_in(on_gpu: bool, flags: str, dtype: str) -> None:
    assert dtype_for(on_gpu, cpu_flags(f"processor\t: 0\nflags\t\t: {flags}\n")) == dtype


def test_a_cpu_server_asks_for_a_bounded_cache_and_a_gpu_server_does_not() -> None:
    assert "VLLM_CPU_KVCACHE_SPACE" in environment(on_gpu=False)
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment(on_gpu=True)


@pytest.mark.parametrize(
    ("config", "traits"),
    [
        ({"hidden_size": 64, "num_attention_heads": 2}, Traits(head_size=32)),
        ({"head_dim": 16, "num_experts": 8, "hidden_size": 64}, Traits(experts=True, head_size=16)),
        ({"text_config": {"layer_types": ["linear_attention"], "head_dim": 64}}, Traits(hybrid=True, head_size=64)),
    ],
)
def test_a_bases_traits_are_its_configurations(config: dict[str, object], traits: Traits) -> None:
    assert traits_of(config) == traits


def test_linear_attention_is_served_in_bf16_on_a_cpu_or_not_at_all() -> None:
    hybrid = Traits(hybrid=True)
    assert precision("bf16", hybrid, on_gpu=False, fast="float32") == "bfloat16"
    assert precision("bf16", Traits(), on_gpu=False, fast="float32") == "float32"
    with pytest.raises(Unservable, match="bfloat16 only"):
        check_servable(hybrid, on_gpu=False, dtype=precision("fp32", hybrid, on_gpu=False, fast="float32"))
    check_servable(hybrid, on_gpu=True, dtype="float32")


def test_a_head_size_that_vllm_would_die_of_is_refused_before_it_starts() -> None:
    with pytest.raises(Unservable, match="heads of 16"):
        check_servable(Traits(head_size=16), on_gpu=False)
    with pytest.raises(Unservable, match="linear attention with heads of 8"):
        check_servable(Traits(hybrid=True, state_sizes=(128, 8)), on_gpu=False)
    check_servable(Traits(head_size=16, state_sizes=(8,)), on_gpu=True)
