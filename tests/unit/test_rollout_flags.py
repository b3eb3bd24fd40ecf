"""How vLLM is started: what is pinned, and what follows from the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from halo_rollout.flags import Server, command, cpu_flags, dtype_for, environment


def test_adapters_are_served_beside_the_base_under_their_names() -> None:
    server = Server(Path("/m"), {"b": Path("/b"), "a": Path("/a")}, 8000, 1024, 32, "float32")
    words = command(server)
    assert words[words.index("--lora-modules") + 1 :] == ["a=/a", "b=/b"]
    assert "--max-lora-rank=32" in words
    assert "--logprobs-mode=processed_logprobs" in words


@pytest.mark.parametrize(
    ("on_gpu", "flags", "dtype"),
    [(True, "", "bfloat16"), (False, "avx2 avx512_bf16", "bfloat16"), (False, "avx2", "float32")],
)
def test_the_precision_is_the_one_that_the_machine_is_fast_in(on_gpu: bool, flags: str, dtype: str) -> None:
    assert dtype_for(on_gpu, cpu_flags(f"processor\t: 0\nflags\t\t: {flags}\n")) == dtype


def test_a_cpu_server_asks_for_a_bounded_cache_and_a_gpu_server_does_not() -> None:
    assert "VLLM_CPU_KVCACHE_SPACE" in environment(on_gpu=False)
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment(on_gpu=True)
