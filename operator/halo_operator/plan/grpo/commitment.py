"""The whole commitment of a GrpoRun in exact micro-USD: what is held on the wallet before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from halo_api.grpo_run import GrpoRunSpec
from halo_api.grpo_status import Commitment
from halo_operator.plan import money
from halo_operator.plan.world import GpuEntry

# What a provisioned box has at most: the ceiling that is held, whatever is provisioned.
PROVISIONED_GPUS = 8


@dataclass(frozen=True)
class Committed:
    """Exact amounts in micro-USD; `rate` is that of one GPU hour, markup included, and None on the user's own compute."""

    reward: int
    gpu: int
    rate: int | None
    basis: Literal["platformGpu", "autoProvision", "byo"]

    @property
    def total(self) -> int:
        """What is held."""
        return self.reward + self.gpu

    def words(self) -> Commitment:
        """Return it as the status says it."""
        return Commitment(
            usd=money.usd(self.total),
            reward_usd=money.usd(self.reward),
            gpu_usd=money.usd(self.gpu),
            usd_per_gpu_hour=None if self.rate is None else money.usd(self.rate),
            basis=self.basis,
        )


def committed(spec: GrpoRunSpec, gpus: Sequence[GpuEntry]) -> Committed | None:
    """Return the commitment, None while no price is known for what the spec asks.

    gpuHourBudget counts hours over all GPUs, so that gpuCount does not multiply it. Provisioning doesn't say yet what it
    will take: the highest active rate of all classes, times 8 GPUs, is a ceiling for whatever it may be.
    """
    reward, time = money.micro_usd(spec.reward_budget_usd), money.gpu_milliseconds(spec.gpu_hour_budget)
    if spec.platform_gpu is None and not spec.auto_provision:
        return Committed(reward, 0, None, "byo")
    if spec.platform_gpu is not None:
        wanted = spec.platform_gpu
        found = rates([g for g in gpus if g.name == wanted.gpu_type], wanted.region)
        return Committed(reward, money.charge(time, max(found)), max(found), "platformGpu") if found else None
    found = rates(gpus)
    if not found:
        return None
    return Committed(reward, money.charge(time * PROVISIONED_GPUS, max(found)), max(found), "autoProvision")


def rates(gpus: Sequence[GpuEntry], region: str | None = None) -> list[int]:
    """Return the active rates of one GPU hour, markup included, in micro-USD; of one region if it is given."""
    return [
        money.marked_up(price.usd_per_hour, price.markup)
        for gpu in gpus
        if not gpu.spec.byo
        for price in gpu.spec.prices
        if price.active and region in (None, price.region)
    ]
