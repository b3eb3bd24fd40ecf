"""What a measurement comes to: speeds, the ratio round by round, memory, and the losses of both sides."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from .sides import Side

# Published peak of an H200 or H100 in dense bf16, FLOPs a second.
PEAK_FLOPS = 989e12
# What is wanted of a case, and of plain chats of this length.
AT_LEAST = {"chat": 1.3, "agent": 3.0}
MFU_AT_LEAST, MFU_ROWS = 0.4, 16384


def speed(side: Side, warm: int) -> dict[str, Any]:
    """Return what a side did after its warm-up."""
    if side.failed or len(side.steps) <= warm:
        return {"failed": side.failed or "too few steps"}
    steps, tokens, trained = side.steps[warm:], side.tokens[warm:], side.trained[warm:]
    seconds = sum(step.seconds for step in steps)
    return {
        "trained_tokens_per_s": round(sum(trained) / seconds, 1),
        "tokens_per_s": round(sum(tokens) / seconds, 1),
        "tokens_a_step": round(statistics.mean(tokens)),
        "step_p50_s": round(statistics.median(step.seconds for step in steps), 3),
        "cpu_p50_s": round(statistics.median(step.cpu_seconds for step in steps), 3),
        "loaded_mib": side.loaded_mib,
        "peak_mib": side.peak_mib,
    }


def compared(ours: Side, theirs: Side, warm: int, gpu: bool) -> dict[str, Any]:
    """Hold the two sides' steps against each other, each with the other's of its round; both train the same tokens.

    On a CPU the ratio is of the CPU time of one thread, which is a step's time on a core of its own: on a busy machine the clock
    says as much of the others.
    """
    rounds = list(zip(ours.steps, theirs.steps, strict=False))[warm:]
    clock = sorted(other.seconds / own.seconds for own, other in rounds)
    busy = sorted(other.cpu_seconds / own.cpu_seconds for own, other in rounds)
    ratios = clock if gpu else busy
    losses = list(zip(ours.losses, theirs.losses, strict=False))
    return {
        "ours": ours.name,
        "theirs": theirs.name,
        "ratio": round(statistics.median(ratios), 3),
        "ratio_range": [round(ratios[0], 3), round(ratios[-1], 3)],
        "clock_ratio": round(statistics.median(clock), 3),
        "memory_ratio": round(ours.peak_mib / theirs.peak_mib, 3),
        "loss_max_difference": max(abs(own - other) for own, other in losses),
        "losses": [[round(own, 5), round(other, 5)] for own, other in losses],
    }


def fastest(sides: Sequence[Side], warm: int, gpu: bool) -> Side | None:
    """Return the side with the least time for all its steps: every side does the same steps."""

    def taken(side: Side) -> float:
        return sum(step.seconds if gpu else step.cpu_seconds for step in side.steps[warm:])

    return min((side for side in sides if not side.failed and len(side.steps) > warm), key=taken, default=None)


def causal_flops(config: dict[str, Any], lengths: Sequence[int]) -> float:
    """Return the FLOPs of training a frozen base on rows: forward and the gradient of its inputs, attention over what is seen.

    4 N T for the matrices (2 N T forward, 2 N T backward; no gradient of the weights), 6 h d L sum T^2 for attention.
    """
    hidden, heads, kv, each = (
        config[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    layer = hidden * each * (2 * heads + 2 * kv) + 3 * hidden * config["intermediate_size"]
    matrices = config["num_hidden_layers"] * layer + hidden * config["vocab_size"]
    seen = sum(length**2 for length in lengths)
    return 4.0 * matrices * sum(lengths) + 6.0 * heads * each * config["num_hidden_layers"] * seen


def mfu(side: Side, warm: int) -> float | None:
    """Return the share of the device's peak that the side's FLOPs are."""
    seconds = sum(step.seconds for step in side.steps[warm:])
    return round(sum(side.flops[warm:]) / seconds / PEAK_FLOPS, 4) if side.flops else None


def targets(name: str, case: str, longest: int, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Say which targets a case has, and whether it meets them; one that could not be measured is not met."""
    ratio, memory, share = (found.get(figure) for figure in ("ratio", "memory_ratio", "mfu"))
    wanted = [
        ("trained tokens/s ratio", AT_LEAST[case], ratio, ratio is not None and ratio >= AT_LEAST[case]),
        ("peak memory ratio", 1.0, memory, memory is not None and memory <= 1.0),
    ]
    if share is not None and case == "chat" and longest == MFU_ROWS:
        wanted.append(("causal MFU", MFU_AT_LEAST, share, share >= MFU_AT_LEAST))
    return [
        {"figure": f"{figure}, {name}", "limit": limit, "found": value, "met": met}
        for figure, limit, value, met in wanted
    ]
