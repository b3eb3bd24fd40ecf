"""Advantages: what each episode of a task's group is worth beside the others of its group."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor


def group_advantages(
    rewards_G: Tensor, scored_G: Tensor, scale: Literal["group-std", "none"], std_floor: float
) -> Tensor | None:
    """Return the advantages of a task's G episodes in fp64; None of a group that teaches nothing, which is dropped.

        A_i = (R_i - mean R) / std R    scale "group-std": GRPO (arXiv:2402.03300, 4.1.2), DAPO (2503.14476, equation 9)
        A_i =  R_i - mean R             scale "none": Dr.GRPO (2503.20783, 3.2), which weighs no task more for nearly equal rewards

    Mean and std are those of the scored episodes: an unscored one is no zero, changes nobody's advantage, and has 0 itself. The
    std divides by n - 1, as torch, TRL and verl do. A group of fewer than two scored episodes, or whose std is below the floor,
    is dropped whatever the scale: rounding would be all there is to it (a residue of fp32 over a std of almost 0 gave an
    advantage of 7,428: NVIDIA-NeMo/RL#4161, huggingface/trl#6365). So no advantage is above its reward's distance over the floor.
    """
    found = rewards_G.to(torch.float64)[scored_G]
    if len(found) < 2 or not bool((std := found.std()) >= std_floor):
        return None
    advantages_G = torch.zeros(len(rewards_G), dtype=torch.float64)
    advantages_G[scored_G] = (found - found.mean()) / (std if scale == "group-std" else 1.0)
    return advantages_G
