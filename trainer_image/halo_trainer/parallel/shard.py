"""A frozen base over the devices of all ranks, where it does not fit one: FSDP2 on its transformer blocks.

Each rank keeps a part of every block and gathers the others' when the block's turn comes, forward and backward. The base is
frozen, so that nothing is reduced; embeddings, norms, head and the whole LoRA are on every rank as without it, and with them
gradients, checkpoints and the adapter: sharding changes where the base lies, and no number.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from halo_api.run_file import BaseRef, TrainPlan
from halo_trainer.attention import NAME, Varlen
from halo_trainer.data.layout import row_layout
from halo_trainer.data.load import load_config
from halo_trainer.data.template import TokenRow
from halo_trainer.gauges import device_bytes
from halo_trainer.model import DTYPES, attach_lora
from halo_trainer.parallel.fit import Devices, Weights, shards, told
from halo_trainer.parallel.ranks import Ranks

# Of a weight in 4 bits, with its share of the scales of its block of 64.
NF4_BYTES = 0.516


def gathered_bytes(plan: TrainPlan, base: BaseRef, folder: Path, device: torch.device, ranks: Ranks) -> int:
    """Decide whether the base is sharded; return the bytes that gathered blocks then take beside a rank's part of it, else 0.

    All ranks decide alike, by the smallest of their devices, and the log says so. Raises RunFailure where nothing fits.
    """
    weights, units = measured(base, folder, plan)
    # A rank's place in a sum for each: the least of them is everybody's.
    memory = torch.zeros(ranks.world, dtype=torch.float64, device=device)
    memory[ranks.rank] = device_bytes(device, ranks.local_world)
    devices = Devices(device.type, int(ranks.sum_values(memory).min()), ranks.world)
    why_whole = None
    if plan.lora.method != "sft":
        why_whole = f"method {plan.lora.method} keeps it whole on each"
    elif plan.lora.trainer == "TRL":
        why_whole = "trainer TRL keeps it whole on each, where trainer Halo shards it"
    elif base.quantization:
        why_whole = "a base in 4 bits is whole on each"
    elif not units:
        why_whole = "its architecture has no blocks to shard it by"
    if not shards(base.name, weights, devices, why_whole):
        return 0
    if ranks.writes:
        print(told(base.name, weights, devices), flush=True)
    return weights.gathered


def measured(base: BaseRef, folder: Path, plan: TrainPlan) -> tuple[Weights, int]:
    """Return the bytes of a base and its LoRA, and the number of its blocks, from its configuration alone."""
    from transformers import AutoModelForCausalLM

    config = load_config(base, folder)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, dtype=DTYPES[base.dtype])  # type: ignore[no-untyped-call]
        model = attach_lora(empty, plan.lora, plan.seed)
    units = blocks(model)
    frozen = [[part for part in block.parameters() if not part.requires_grad] for block in units]
    sizes = [sum(_bytes(part, base.quantization is not None) for part in parts) for parts in frozen]
    inside = {id(part) for parts in frozen for part in parts}
    rest = sum(_bytes(part) for part in model.parameters() if not part.requires_grad and id(part) not in inside)
    trained = sum(part.numel() * 4 for part in model.parameters() if part.requires_grad)
    return Weights(sum(sizes), max(sizes, default=0), rest, trained), len(units)


def blocks(model: Any) -> list[nn.Module]:
    """Return a base's transformer blocks, which its architecture names for the very purpose of never being cut."""
    base = model.get_base_model()
    kinds = set(base._no_split_modules or ())
    layers = [part for part in base.modules() if isinstance(part, nn.ModuleList)]
    return [block for layer in layers for block in layer if type(block).__name__ in kinds]


def load_in_turns(load: Callable[[], Any], device: torch.device, ranks: Ranks) -> Any:
    """Load and shard a model, one rank of a node after the other: no node ever holds more than one whole base on its CPU.

    A device holds one whole block at a time beside its parts, as each is sharded when it comes.
    """
    model = None
    for turn in range(ranks.local_world):
        if turn == ranks.local_rank:
            model = load()
            shard(model, device, ranks.world)
        ranks.sum_values(torch.zeros(1, device=device))
    return model


def shard(model: Any, device: torch.device, world: int) -> None:
    """Shard each block of a base over all ranks; its LoRA and what is no block stay whole, where they are."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if device.type == "cuda":
        # FSDP takes the current one.
        torch.cuda.set_device(device)
    mesh = init_device_mesh(device.type, (world,))
    trained = {part for part in model.parameters() if part.requires_grad}
    units = blocks(model)
    for block in units:
        fully_shard(block, mesh=mesh, reshard_after_forward=True, ignored_params=trained)
    # One root over them all lets a block be gathered while the one before it computes.
    names = {id(part): name for name, part in model.named_modules()}
    stack = model.get_submodule(names[id(units[0])].rsplit(".", 2)[0])
    inside = {part for block in units for part in block.parameters()}
    fully_shard(stack, mesh=mesh, ignored_params={part for part in stack.parameters() if part not in inside} | trained)


def idle_pass(model: Any, device: torch.device) -> None:
    """Go through a sharded base with one token, forward and backward, for nothing: other ranks wait for this one's parts."""
    base = model.get_base_model()
    zero_BT = torch.zeros(1, 1, dtype=torch.long, device=device)
    inputs: dict[str, Any] = {"input_ids": zero_BT, "use_cache": False}
    if base.config._attn_implementation == NAME:
        layout = row_layout(TokenRow(array("i", [0]), bytearray(1)))
        inputs |= {"position_ids": zero_BT, "varlen": Varlen.of(layout, device)}
    # Dropout's draws are those of a base that is not sharded.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        (0.0 * model(**inputs).logits.sum()).backward()


def _bytes(part: torch.Tensor, quantized: bool = False) -> int:
    return int(part.numel() * (NF4_BYTES if quantized and part.dim() == 2 else part.element_size()))
