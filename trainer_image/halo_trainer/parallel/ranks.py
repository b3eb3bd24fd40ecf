"""The processes of a run: who this one is, with which it shares rows, and sums over all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halo_api.conditions import Reason
from halo_trainer.failures import RunFailure, first_line

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


@dataclass(frozen=True)
class Group:
    """Consecutive processes that share rows, and this one's place among them; `handle` is torch's process group."""

    rank: int = 0
    size: int = 1
    handle: Any = None


@dataclass(frozen=True)
class Ranks:
    """This process among the run's, as torchrun's environment variables name it."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    # Of this process's node.
    local_world: int = 1

    @classmethod
    def of_environment(cls) -> Ranks:
        """Read RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; without them there is one process."""
        alone = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))
        return cls(*(int(os.environ.get(name, value)) for name, value in alone))

    def report(self, path: Path) -> Path:
        """Return where this process reports: the first of a node for the node, the others beside it."""
        return path if self.local_rank == 0 else path.with_name(f"{path.name}.{self.local_rank}")

    @property
    def writes(self) -> bool:
        """Whether this process writes checkpoints and the adapter."""
        return self.rank == 0

    def connect(self, device: torch.device, timeout_seconds: float) -> None:
        """Meet the other processes at MASTER_ADDR:MASTER_PORT."""
        if self.world == 1:
            return
        import torch.distributed as dist

        # By the device and not by is_nccl_available, which is true also where the libraries are stand-ins.
        backend = "nccl" if device.type == "cuda" else "gloo"
        patience = timedelta(seconds=timeout_seconds)
        try:
            dist.init_process_group(backend, rank=self.rank, world_size=self.world, timeout=patience)
        except dist.DistError as error:
            place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            found = first_line(error)
            raise RunFailure(
                Reason.RANK_LOST,
                f"not all of {self.world} ranks met at {place} within {timeout_seconds:.0f} s ({found})",
            ) from error

    def group(self, size: int) -> Group:
        """Return this process's group of so many; all processes must ask for the same groups in the same order."""
        if self.world % size:
            raise RunFailure(
                Reason.INVALID_SPEC,
                f"spec.contextParallel: {size} GPUs share a row, found {self.world}, no multiple of {size}; "
                f"use {(self.world // size + 1) * size}",
            )
        if size == 1:
            return Group()
        import torch.distributed as dist

        handles = [dist.new_group(range(first, first + size)) for first in range(0, self.world, size)]
        return Group(self.rank % size, size, handles[self.rank // size])

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up the gradients of all processes. Each already has the whole batch's denominator, so there is no mean."""
        import torch

        trained = list(parameters)
        for parameter in trained:
            if parameter.grad is None:
                # With fewer rows than processes this one had none.
                parameter.grad = torch.zeros_like(parameter)
        if self.world == 1:
            return
        import torch.distributed as dist

        gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, summed in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))

    def sum_values(self, values: Tensor) -> Tensor:
        """Add up a few numbers over all processes."""
        if self.world > 1:
            import torch.distributed as dist

            dist.all_reduce(values)
        return values

    def share(self, data: bytes, device: torch.device) -> bytes:
        """Return what the first process has; the others' own is ignored."""
        if self.world == 1:
            return data
        import torch
        import torch.distributed as dist

        size = torch.tensor([len(data)], dtype=torch.int64, device=device)
        dist.broadcast(size, 0)
        there = torch.empty(int(size), dtype=torch.uint8, device=device)
        if self.rank == 0 and data:
            there.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        if len(there):
            dist.broadcast(there, 0)
        return there.cpu().numpy().tobytes()

    def disconnect(self) -> None:
        """Leave the group in order; peers that still wait would otherwise see a crash."""
        if self.world > 1:
            import torch.distributed as dist

            dist.barrier()
            dist.destroy_process_group()
