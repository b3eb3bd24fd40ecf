"""Checkpoint folders: `step-N/adapter` (a PEFT folder like the published one) and `step-N/trainer` (what only a resume needs).

No generator state is in them: order, initialisation and dropout are functions of (seed, step, rank), see seeds.py, and the
learning rate is one of the step. No pickle is in them either: loading one runs nobody's code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from halo_api.adapter import WEIGHTS
from halo_api.conditions import Reason
from halo_api.digests import bytes_digest, files_digest
from halo_api.run_file import BaseRef
from halo_trainer.adapter import adapter_tensors, put_weights, write_adapter
from halo_trainer.checkpoints.digest import Checked, as_written
from halo_trainer.failures import RunFailure
from halo_trainer.files import whole_folder, write_durably

OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"


@dataclass(frozen=True)
class TrainedState:
    """How far a checkpoint is: `step` steps are done, so the data cursor stands before row `step * batch` of the stream."""

    step: int
    seed: int
    rows_seen: int
    tokens_seen: int
    loss: float | None


def save_checkpoint(
    folder: Path,
    model: Any,
    base: BaseRef,
    parameters: dict[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    state: TrainedState,
    more: Mapping[str, bytes] | None = None,
) -> str:
    """Write one checkpoint, whole or not at all; return its digest. `more`: other files of `trainer`, by name."""
    with whole_folder(folder) as partial:
        (partial / "adapter").mkdir()
        (partial / "trainer").mkdir()
        adapter = write_adapter(model, base, partial / "adapter")
        moments = safetensors.torch.save(_optimizer_tensors(parameters, optimizer))
        own = {OPTIMIZER: moments, STATE: json.dumps(asdict(state), sort_keys=True).encode(), **(more or {})}
        for name, data in own.items():
            write_durably(partial / "trainer" / name, data)
        written = {f"adapter/{name}": digest for name, digest in adapter.items()}
        written |= {f"trainer/{name}": bytes_digest(data) for name, data in own.items()}
        return files_digest(as_written(partial, written))


def load_checkpoint(
    checked: Checked, model: Any, parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, seed: int
) -> TrainedState:
    """Put a checkpoint into model and optimizer; the model must be on its device. Refuse one of another LoRA or seed."""
    weights = safetensors.torch.load(checked.read(f"adapter/{WEIGHTS}"))
    state = TrainedState(**json.loads(checked.read(f"trainer/{STATE}")))
    _is_of_this_run(checked, weights, adapter_tensors(model), state.seed, seed)
    put_weights(model, weights)
    tensors = safetensors.torch.load(checked.read(f"trainer/{OPTIMIZER}"))
    for name, parameter in parameters.items():
        prefix = f"{name}|"
        found = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
        # torch keeps the step count on the CPU and the moments beside their parameter.
        optimizer.state[parameter] = {
            key: tensor if key == "step" else tensor.to(parameter.device) for key, tensor in found.items()
        }
    return state


def _is_of_this_run(
    checked: Checked, kept: Mapping[str, Tensor], own: Mapping[str, Tensor], kept_seed: int, seed: int
) -> None:
    """Refuse what only a run file written by hand can ask for: to go on as another run than the one that saved."""
    where = f"resume: the checkpoint of step {checked.checkpoint.step}"
    for name in sorted(kept.keys() | own.keys()):
        shapes = ["x".join(map(str, each[name].shape)) if name in each else "no" for each in (kept, own)]
        if shapes[0] != shapes[1]:
            raise RunFailure(
                Reason.INVALID_SPEC,
                f"{where} has {shapes[0]} weights for {name}, found a run whose LoRA has {shapes[1]}; resume with the rank and "
                "targetModules that it was saved with",
            )
    if kept_seed != seed:
        raise RunFailure(
            Reason.INVALID_SPEC,
            f"{where} is of seed {kept_seed}, found a run of seed {seed}; resume with seed {kept_seed}",
        )


def _optimizer_tensors(parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}|{key}": tensor.detach().cpu().contiguous()
        for name, parameter in parameters.items()
        for key, tensor in optimizer.state[parameter].items()
    }
