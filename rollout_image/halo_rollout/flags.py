"""The one place that pins how vLLM is started: its flags and its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Without these flags bf16 matrix products fall back to slow loops on a CPU: fp32 is faster there.
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Sampling goes through torch.compile, which needs a C++ compiler that the image has not: the engine would die at
    # the first sampled request, after greedy ones went well.
    "TORCHDYNAMO_DISABLE": "1",
}
CPU_ENVIRONMENT = {
    # Left out, vLLM asks for nearly all memory of the machine and refuses to start beside anything else.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Its OpenMP threads would spin against a trainer's on the same cores.
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Server:
    """What to serve."""

    base: Path
    adapters: Mapping[str, Path]
    port: int
    context_length: int
    max_rank: int
    dtype: str


def command(server: Server) -> list[str]:
    """Return the command of vLLM's own server."""
    adapters = [f"{name}={path}" for name, path in sorted(server.adapters.items())]
    return [
        "vllm",
        "serve",
        str(server.base),
        "--served-model-name=base",
        f"--port={server.port}",
        f"--max-model-len={server.context_length}",
        f"--dtype={server.dtype}",
        "--enforce-eager",
        "--enable-lora",
        f"--max-lora-rank={server.max_rank}",
        # What the trainer scores must be what was sampled: log-probabilities after temperature and top-p.
        "--logprobs-mode=processed_logprobs",
        *(["--lora-modules", *adapters] if adapters else []),
    ]


def environment(on_gpu: bool) -> dict[str, str]:
    """Return the environment that goes with the command."""
    return ENVIRONMENT if on_gpu else ENVIRONMENT | CPU_ENVIRONMENT


def dtype_for(on_gpu: bool, cpu_flags: frozenset[str]) -> str:
    """Return the precision that this machine is fast in."""
    return "bfloat16" if on_gpu or cpu_flags & BF16_FLAGS else "float32"


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """Return the CPU's flags from the text of /proc/cpuinfo."""
    lines = (line.partition(":")[2].split() for line in cpuinfo.splitlines() if line.startswith("flags"))
    return frozenset(next(lines, []))
