"""Whether a frozen base fits each device, or only the devices of all ranks together. Pure: bytes in, a decision out."""

from __future__ import annotations

from dataclasses import dataclass

from halo_api.conditions import Reason
from halo_trainer.failures import RunFailure

# What is kept free for activations: what they take depends on rows that are not read yet, so that this is a share and no sum.
ACTIVATIONS = 0.2
# Whole blocks at a time: the one that computes, the one that is gathered meanwhile, and what it arrives in.
GATHERED = 3
GB = 1e9


@dataclass(frozen=True)
class Weights:
    """Bytes of what a rank holds beside activations.

    `blocks` are the base's transformer blocks, `largest` the largest of them, `rest` its embeddings, head and norms; `trained`
    is the adapter in fp32.
    """

    blocks: int
    largest: int
    rest: int
    trained: int

    @property
    def base(self) -> int:
        """The whole frozen base."""
        return self.blocks + self.rest

    @property
    def training(self) -> int:
        """The adapter with its gradient and two moments; every rank has all of it."""
        return 4 * self.trained

    @property
    def whole(self) -> int:
        """What a rank holds that has the whole base."""
        return self.base + self.training

    @property
    def gathered(self) -> int:
        """The blocks that a rank has whole at a time, of a base that is sharded."""
        return GATHERED * self.largest

    def sharded(self, world: int) -> int:
        """Return what a rank holds that has its part of each block, beside those that are gathered."""
        return -(-self.blocks // world) + self.gathered + self.rest + self.training


@dataclass(frozen=True)
class Devices:
    """Where the ranks compute: each has `memory` bytes, on a GPU or of its node's."""

    kind: str
    memory: int
    world: int

    @property
    def name(self) -> str:
        """What one of them is to a person."""
        return "GPU" if self.kind == "cuda" else "process"


def shards(base: str, weights: Weights, devices: Devices, why_whole: str | None = None) -> bool:
    """Decide whether the base is sharded over all ranks: only where it doesn't fit one device, as each pass then gathers it.

    `why_whole` says why this run can't shard it. Raises RunFailure where it certainly fits neither way.
    """
    room = int((1 - ACTIVATIONS) * devices.memory)
    if weights.whole <= room:
        return False
    sharded = weights.sharded(devices.world)
    if devices.world > 1 and why_whole is None and sharded < weights.whole and sharded <= devices.memory:
        return True
    if weights.whole <= devices.memory:
        # There may yet be room for short rows.
        return False
    raise RunFailure(Reason.OUT_OF_MEMORY, _does_not_fit(base, weights, devices, why_whole))


def told(base: str, weights: Weights, devices: Devices) -> str:
    """Return the log's line on a base that is sharded."""
    return (
        f"base {base} of {_gb(weights.base)} does not fit 1 {devices.name} of {_gb(devices.memory)}: sharded over "
        f"{devices.world}, {_gb(weights.sharded(devices.world))} on each"
    )


def _does_not_fit(base: str, weights: Weights, devices: Devices, why_whole: str | None) -> str:
    found = f"base {base} of {_gb(weights.base)} does not fit"
    each = f"{devices.name} of {_gb(devices.memory)}"
    adapter = f"{_gb(weights.training)} for the adapter and its optimizer"
    larger = "use a GPU class with more memory" if devices.kind == "cuda" else "give each process more memory"
    if why_whole is not None or devices.world == 1:
        because = f", and {why_whole}" if why_whole else ""
        return f"{found} 1 {each} with {adapter}{because}; {larger}" + (
            "" if why_whole else ", or a higher spec.gpu.count"
        )
    parts = (
        f"{_gb(-(-weights.blocks // devices.world))} of its blocks, {_gb(weights.gathered)} for those that are gathered, "
        f"{_gb(weights.rest)} of embeddings and head and {adapter}"
    )
    return (
        f"{found} {devices.world} {devices.name}{'s' if devices.kind == 'cuda' else 'es'} of {_gb(devices.memory)} together: "
        f"each would hold {parts}, which is {_gb(weights.sharded(devices.world))}; {larger}, or a higher spec.gpu.count"
    )


def _gb(size: int) -> str:
    if size >= GB:
        return f"{size / GB:.1f} GB"
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
