"""Resolves the numbers of a GrpoRun: defaults, clamps, and what has no effect where it stands; pure, and final.

The spec is never changed: what is used goes to status.frozen, and each difference is listed there, warned of and recorded.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from halo_api.grpo_run import GrpoRunSpec
from halo_api.grpo_status import Clamp, FrozenGrpo


class Bounds(NamedTuple):
    """The least and the most that is used."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"{shown(self.least)} to {shown(self.most)}"


MAX_STEPS = Bounds(1, 5000)
GROUP_SIZE = Bounds(2, 16)
PROMPT_COUNT = Bounds(10, 10_000)
HOLDOUT_COUNT = Bounds(1, 2000)
CURRICULUM_MIX_RATIO = Bounds(0, 0.9)
MAX_COMPLETION_TOKENS = Bounds(256, 32_768)
VLLM_GPU_MEMORY_UTILIZATION = Bounds(0.05, 0.9)
GPU_COUNT = Bounds(1, 8)
PARAMS_B = Bounds(0, 1000)

DEFAULT_MAX_STEPS = 100
DEFAULT_GROUP_SIZE = 8
DEFAULT_COMPLETION_TOKENS = 1024
DEFAULT_AGENTIC_COMPLETION_TOKENS = 8192
# The seed names none for these: a third of the memory samples and leaves the rest to training; a tenth of the traffic tries.
DEFAULT_VLLM_GPU_MEMORY_UTILIZATION = 0.3
DEFAULT_CANARY_PERCENT = 10
DEFAULT_EPISODE_STEPS = 32


def resolve(spec: GrpoRunSpec) -> FrozenGrpo:
    """Return what the run uses, with the list of what is not used as it was asked."""
    found = Clamps()
    agentic = spec.environment is not None
    single = spec.reward.mode == "single"
    own_tasks = spec.tasks_inline is not None or spec.tasks_from is not None
    candidates = spec.use_candidate_queue and single and not own_tasks
    use_vllm = agentic or bool(spec.use_vllm)
    prompts = found.whole("promptCount", spec.prompt_count, PROMPT_COUNT)
    gpu, adopt, environment = spec.platform_gpu, spec.auto_adopt, spec.environment

    if agentic and spec.use_vllm is False:
        found.note("useVllm", "false", "true", "spec.environment needs it")
    if spec.use_candidate_queue and not candidates:
        why = "the run has tasks of its own" if single else "only reward.mode single has a candidate queue"
        found.note("useCandidateQueue", "true", "false", why)
    if spec.prompt_tag and (candidates or own_tasks):
        found.note("promptTag", spec.prompt_tag, "none", "the run does not draw from tagged traffic")
    if spec.allow_side_effects and not agentic:
        found.note("allowSideEffects", "true", "false", "without spec.environment there are no tools")
    return FrozenGrpo(
        max_steps=found.whole("maxSteps", spec.max_steps, MAX_STEPS, DEFAULT_MAX_STEPS),
        group_size=found.whole("groupSize", spec.group_size, GROUP_SIZE, DEFAULT_GROUP_SIZE),
        prompt_count=prompts,
        holdout_count=found.whole("holdoutCount", spec.holdout_count, HOLDOUT_COUNT, default_holdout(prompts)),
        max_completion_tokens=found.whole(
            "maxCompletionTokens",
            spec.max_completion_tokens,
            MAX_COMPLETION_TOKENS,
            DEFAULT_AGENTIC_COMPLETION_TOKENS if agentic else DEFAULT_COMPLETION_TOKENS,
        ),
        qlora=spec.qlora,
        use_vllm=use_vllm,
        vllm_gpu_memory_utilization=found.useful(
            "vllmGpuMemoryUtilization",
            spec.vllm_gpu_memory_utilization,
            VLLM_GPU_MEMORY_UTILIZATION,
            DEFAULT_VLLM_GPU_MEMORY_UTILIZATION,
            "" if use_vllm else "without useVllm there is no vLLM server",
        ),
        use_candidate_queue=candidates,
        curriculum_mix_ratio=found.useful(
            "curriculumMixRatio",
            spec.curriculum_mix_ratio,
            CURRICULUM_MIX_RATIO,
            0.0,
            "" if candidates else "the run does not train on the candidate queue",
        ),
        params_b=None if spec.params_b is None else found.inside("paramsB", spec.params_b, PARAMS_B),
        gpu_count=found.whole("platformGpu.gpuCount", gpu.gpu_count, GPU_COUNT, 1) if gpu else None,
        canary_percent=(adopt.canary_percent or DEFAULT_CANARY_PERCENT) if adopt else None,
        episode_steps=(environment.max_steps or DEFAULT_EPISODE_STEPS) if environment else None,
        allow_side_effects=spec.allow_side_effects and agentic,
        clamped=found.all,
    )


def default_holdout(prompt_count: int) -> int:
    """Return a fifth of the prompts, rounded up, and at least 3: in whole numbers, since 0.2 is none in floats."""
    return max(3, -(-prompt_count // 5))


def warnings(frozen: FrozenGrpo) -> tuple[str, ...]:
    """Return one sentence for each field that is not used as it was asked."""
    return tuple(f"spec.{c.field}: found {c.asked}, used is {c.used}: {c.why}" for c in frozen.clamped)


class Clamps:
    """Collects what was not used as it was asked."""

    def __init__(self) -> None:
        self.all: list[Clamp] = []

    def note(self, field: str, asked: str, used: str, why: str) -> None:
        self.all.append(Clamp(field=field, asked=asked, used=used, why=why))

    def inside(self, field: str, asked: float, bounds: Bounds) -> float:
        """Return the number, or the bound that it is beyond."""
        used = min(max(asked, bounds.least), bounds.most)
        if used != asked:
            self.note(field, shown(asked), shown(used), f"clamped to {bounds}")
        return used

    def whole(self, field: str, asked: float | None, bounds: Bounds, default: int = 0) -> int:
        """Return the number rounded, halves up, and then clamped; the default where none was asked for."""
        if asked is None:
            return default
        # Clamped first, with the same result, since whole bounds round to themselves: a huge float stays a float.
        used = math.floor(min(max(asked, bounds.least), bounds.most) + 0.5)
        if used != asked:
            beyond = not bounds.least <= asked <= bounds.most
            self.note(field, shown(asked), shown(used), f"clamped to {bounds}" if beyond else "rounded")
        return used

    def useful(self, field: str, asked: float | None, bounds: Bounds, default: float, useless: str) -> float | None:
        """Return the number, clamped, or its default; where it has no effect, nothing unless it was set, and a note then."""
        if asked is None:
            return None if useless else default
        if not useless:
            return self.inside(field, asked, bounds)
        used = Clamps().inside(field, asked, bounds)
        self.note(field, shown(asked), shown(used), f"no effect, {useless}")
        return used


def shown(number: float) -> str:
    """Write a number shortly, whole ones without a point, whatever its size."""
    if isinstance(number, float) and number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    return repr(number)
