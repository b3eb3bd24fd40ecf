"""The one place that pins how vLLM is started: its flags and its environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from halo_api.rollouts import BASE_MODEL_NAME, RolloutPlan
from halo_api.run_file import BaseRef
from halo_rollout.traits import Traits

# Without these flags bf16 matrix products fall back to slow loops on a CPU: fp32 is faster there.
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
# The ranks that vLLM has room for; a LoRA of another rank takes the next.
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
# Policies that stay loaded: the one announced, and the one before it, whose last requests may still run.
KEPT_POLICIES = 2
# The linear layers of a mixture of experts beside its experts, under vLLM's names: on a CPU only they can get a LoRA.
BESIDE_EXPERTS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "in_proj_qkvz", "in_proj_ba", "out_proj", "gate")

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # torch asks for the user's name, and the user of a pod has none.
    "USER": "halo",
    # Sampling goes through torch.compile, which needs a C++ compiler that the image has not: the engine would die at
    # the first sampled request, after greedy ones went well.
    "TORCHDYNAMO_DISABLE": "1",
}
CPU_ENVIRONMENT = {
    # Left out, vLLM asks for nearly all memory of the machine and refuses to start beside anything else.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Its OpenMP threads would spin against a trainer's on the same cores.
    "OMP_NUM_THREADS": "1",
    # By itself it binds its threads to the first cores that it sees: two servers of a node would share one core.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
# What a run needs, and a server for people must not have; the fence keeps it inside the pod.
RUN_ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}


# vLLM's own for a CPU.
CPU_BATCHED_TOKENS = 4096


@dataclass(frozen=True)
class Server:
    """What to serve."""

    base: Path
    port: int
    context_length: int
    dtype: str
    # Rank of the LoRAs that may be loaded; None: none, as for a base that policies are folded into.
    max_rank: int | None
    adapters: Mapping[str, Path] = field(default_factory=dict)
    traits: Traits = field(default_factory=Traits)
    on_gpu: bool = False
    gpus: int = 1
    routed_experts: bool = False
    # It takes policies while it runs.
    of_run: bool = False


def command(server: Server) -> list[str]:
    """Return the command of vLLM's own server."""
    return [
        sys.executable,
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        str(server.base),
        f"--served-model-name={BASE_MODEL_NAME}",
        f"--port={server.port}",
        f"--max-model-len={server.context_length}",
        f"--dtype={server.dtype}",
        f"--tensor-parallel-size={server.gpus}",
        "--enforce-eager",
        *([] if server.on_gpu else whole_prompts(server.context_length)),
        # What the trainer scores must be what was sampled: log-probabilities after temperature and top-p, and no sampling
        # setting that a file of the base brings in by itself.
        "--logprobs-mode=processed_logprobs",
        "--generation-config=vllm",
        # A policy under a new name begins with an empty cache, and after a folded one it is reset. The states of hybrid
        # bases are cached only on trial.
        "--no-enable-prefix-caching" if server.traits.hybrid else "--enable-prefix-caching",
        *(["--enable-return-routed-experts"] if server.routed_experts else []),
        # It also has experts run beside LoRA on CPUs.
        *(
            ["--worker-extension-cls=halo_rollout.extension.PolicyWorker"]
            if server.of_run or server.traits.experts
            else []
        ),
        # A request a line would drown what matters.
        *(["--middleware=halo_rollout.fence.Fence", "--disable-uvicorn-access-log"] if server.of_run else []),
        *_lora(server),
    ]


def whole_prompts(context_length: int) -> list[str]:
    """Return what keeps a CPU's engine from taking a prompt in parts.

    For a request with a seed, vLLM would wind the random numbers of a part back by an offset that a CPU's generator has not,
    and the engine would die of it; so room for the longest prompt in one pass.
    """
    return ["--no-enable-chunked-prefill", f"--max-num-batched-tokens={max(context_length, CPU_BATCHED_TOKENS)}"]


def _lora(server: Server) -> list[str]:
    if server.max_rank is None:
        return []
    adapters = [f"{name}={path}" for name, path in sorted(server.adapters.items())]
    return [
        "--enable-lora",
        f"--max-lora-rank={next((rank for rank in RANKS if rank >= (server.max_rank or 0)), RANKS[-1])}",
        f"--max-loras={KEPT_POLICIES}",
        *(["--lora-target-modules", *BESIDE_EXPERTS] if server.traits.experts and not server.on_gpu else []),
        *(["--lora-modules", *adapters] if adapters else []),
    ]


def run_server(base: BaseRef, folder: Path, plan: RolloutPlan, traits: Traits, dtype: str, on_gpu: bool) -> Server:
    """Return what a rollout pod of a run serves."""
    return Server(
        base=folder,
        port=plan.serve_port,
        context_length=plan.context_length,
        dtype=precision(base.dtype, traits, on_gpu, dtype),
        max_rank=plan.rank if plan.serving == "unmerged" else None,
        traits=traits,
        on_gpu=on_gpu,
        gpus=plan.gpus,
        routed_experts=plan.routed_experts,
        of_run=True,
    )


def precision(of_base: str, traits: Traits, on_gpu: bool, fast: str) -> str:
    """Return the precision to serve in: the base's own, and on a CPU what is fast there; linear attention has only bf16 there."""
    if of_base == "fp32":
        return "float32"
    return "bfloat16" if on_gpu or traits.hybrid else fast


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
