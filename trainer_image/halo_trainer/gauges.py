"""What the machine gives: the memory that a process takes, and the peak of its GPU, which MFU is a share of."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halo_trainer.flops import Shape, Work, shape_of, step_flops

if TYPE_CHECKING:
    import torch

# Dense bf16 FLOPs a second of a whole GPU, by what its driver calls it; from NVIDIA's data sheets, without sparsity. The first
# that fits decides.
PEAKS = (
    (r"\bB200\b", 2250e12),
    (r"\bGH200\b", 989.4e12),
    (r"\bH200 NVL\b", 835.5e12),
    (r"\bH200\b", 989.4e12),
    (r"\bH100 NVL\b", 835.5e12),
    (r"\bH100 PCIe\b", 756e12),
    (r"\bH100\b", 989.4e12),
    (r"\bA100\b", 312e12),
    (r"\bL40S\b", 362e12),
    (r"\bL4\b", 121e12),
    (r"\bA10\b", 125e12),
)


# What a rank may count on, where that is less than its device has: a GPU that is shared with others.
BYTES_VARIABLE = "HALO_DEVICE_BYTES"


@dataclass(frozen=True)
class Meter:
    """What steps are measured with, beside the clock; `peak` is that of all the run's GPUs, in FLOPs a second."""

    device: torch.device
    shape: Shape | None
    peak: float | None

    @classmethod
    def of(cls, model: Any, dtype: str, device: torch.device, processes: int) -> Meter:
        """Return the meter of a base with its LoRA, of a run of so many processes, a GPU each."""
        trained = {name: weights.numel() for name, weights in model.named_parameters() if weights.requires_grad}
        peak = device_peak(device, dtype)
        shape = shape_of(model.config.get_text_config().to_dict(), trained)
        return cls(device, shape, peak * processes if peak and shape else None)

    def flops(self, work: Work) -> float:
        """Return the model FLOPs of a step; 0 of a base that nothing is known of."""
        return step_flops(self.shape, work) if self.shape else 0.0

    def memory(self) -> int:
        """Return the memory in bytes, as `memory_bytes` does."""
        return memory_bytes(self.device)


def peak_flops(name: str, dtype: str) -> float | None:
    """Return the peak of a GPU of that name for a base of that dtype, or None where it is not known: then there is no MFU.

    Of fp32 it is not one number (TF32 or not), and a slice of a GPU (MIG) has a part of it that its name does not tell.
    """
    if dtype != "bf16" or "MIG" in name:
        return None
    return next((peak for pattern, peak in PEAKS if re.search(pattern, name)), None)


def device_peak(device: torch.device, dtype: str) -> float | None:
    """Return the peak of this process's device; a CPU has none."""
    if device.type != "cuda":
        return None
    import torch

    return peak_flops(torch.cuda.get_device_name(device), dtype)


def memory_bytes(device: torch.device) -> int:
    """Return the most that this process has held of its GPU, or what it holds of the machine's memory on a CPU."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_reserved(device))
    import psutil

    return int(psutil.Process().memory_info().rss)


def device_bytes(device: torch.device, ranks: int) -> int:
    """Return the memory in bytes that a rank may fill: its GPU's, or on a CPU that of the machine over its `ranks`."""
    if told := os.environ.get(BYTES_VARIABLE):
        return int(told)
    if device.type == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    return machine_bytes() // ranks


def free_bytes(device: torch.device, most: int) -> int:
    """Return how many of the `most` bytes that a rank may fill it can still take."""
    if device.type == "cuda":
        import torch

        held = torch.cuda.memory_allocated(device)
        return min(most - held, torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - held)
    return most - memory_bytes(device)


def machine_bytes(cgroups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """Return the memory that this container or machine has: the least limit of its cgroup (version 1 or 2) and those around it."""
    import psutil

    least = int(psutil.virtual_memory().total)
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (cgroups / "memory", "memory.limit_in_bytes") if controllers else (cgroups, "memory.max")
        own = top / path.lstrip("/")
        # A container sees its own cgroup as the top; outside one the path leads to it.
        for folder in (own, *own.parents):
            if folder.is_relative_to(top):
                least = min(least, _limit(folder / name) or least)
    return least


def _limit(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        # `max` is no limit.
        return None
