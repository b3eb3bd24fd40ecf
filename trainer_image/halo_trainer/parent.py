"""The adapter that a run continues: its files held against those that were verified, and its weights put into the run's LoRA."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from halo_api.adapter import CONFIG, WEIGHTS
from halo_api.conditions import Reason
from halo_api.digests import bytes_digest, files_digest
from halo_api.run_file import BaseRef, ParentPlan, TrainPlan, volume_path
from halo_api.run_status import FrozenLora
from halo_trainer.adapter import adapter_tensors, put_weights
from halo_trainer.checkpoints.digest import folder_files
from halo_trainer.failures import RunFailure

# What decides, beside rank and alpha, what the same weights compute.
MEANING = (
    "peft_type",
    "bias",
    "fan_in_fan_out",
    "use_rslora",
    "use_dora",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
)
LISTED = 3


@dataclass(frozen=True)
class Parent:
    """A parent whose files are right, in memory."""

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def read_parent(parent: ParentPlan, plan: TrainPlan, base: BaseRef, volumes: str) -> Parent:
    """Read the parent's files, which must be those that were verified, and a LoRA such as the run's."""
    folder = Path(volume_path(parent.uri, volumes))
    files = folder_files(folder)
    if files_digest(files) != parent.digest:
        found = {file.path: file.sha256 for file in files}
        raise other_files(parent, differences(parent, found) if folder.is_dir() else ["nothing there"])
    # The bytes are read twice, and only the first time against the digest of all.
    digests = {file.path: file.sha256 for file in files}
    text, weights = (_same(parent, folder, path, digests.get(path)) for path in (CONFIG, WEIGHTS))
    try:
        config, tensors = json.loads(text), safetensors.torch.load(weights)
    except (ValueError, safetensors.SafetensorError) as error:
        raise unfit(parent.name, f"with files that can't be read ({error})", "name another adapter") from error
    if not isinstance(config, dict):
        raise unfit(parent.name, f"whose {CONFIG} is no JSON object", "name another adapter")
    check_config(parent.name, config, plan.lora, base)
    return Parent(parent.name, config, tensors)


def check_config(name: str, config: Mapping[str, Any], lora: FrozenLora, base: BaseRef) -> None:
    """Refuse a parent that says itself that its weights mean something else than the run's."""
    pairs = (
        ("base_model_name_or_path", base.name),
        ("revision", base.revision),
        ("r", lora.rank),
        ("lora_alpha", lora.alpha),
    )
    differs = [f"{key} {config.get(key)!r} and not {wanted!r}" for key, wanted in pairs if config.get(key) != wanted]
    if differs:
        raise unfit(
            name, f"whose {CONFIG} has {', '.join(differs)}, which the run has", "use the same, or another adapter"
        )


def start_from(parent: Parent, model: Any, lora: FrozenLora) -> None:
    """Give the model's fresh LoRA the parent's weights: every one, and none more."""
    own = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in adapter_tensors(model).items()}
    theirs = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in parent.tensors.items()}
    if modules(own) != modules(theirs):
        asked = f"{listed(modules(own))}{'' if lora.target_modules else ' (unset: every linear layer)'}"
        raise RunFailure(
            Reason.PARENT_UNFIT,
            f"spec.lora.targetModules: found {asked}, and parent {parent.name} has weights of {listed(modules(theirs))}; "
            "a run trains what its parent did: name these, or another adapter",
        )
    if differing := sorted(name for name in own | theirs if own.get(name) != theirs.get(name)):
        words = f"whose {WEIGHTS} has {len(theirs)} weights, and {len(differing)} are not as the run's {len(own)}"
        raise unfit(parent.name, f"{words}: {listed(differing[:LISTED])}", "name another adapter")
    config = model.peft_config["default"].to_dict()
    for key in MEANING:
        if parent.config.get(key, config.get(key)) != config.get(key):
            words = f"whose {CONFIG} has {key} {parent.config[key]!r} and not {config.get(key)!r}, which the run has"
            raise unfit(parent.name, words, "name another adapter")
    put_weights(model, parent.tensors)


def modules(weights: Iterable[str]) -> frozenset[str]:
    """Return the kinds of layers that weights belong to, as targetModules names them."""
    return frozenset(name.partition(".lora_")[0].rpartition(".")[2] for name in weights)


def differences(parent: ParentPlan, found: Mapping[str, str]) -> list[str]:
    """Say which files are not as they were verified."""

    def each() -> Iterator[str]:
        for path in sorted({*parent.files, *found}):
            if path not in found:
                yield f"no {path}"
            elif path not in parent.files:
                yield f"{path}, which is not one of its files"
            elif found[path] != parent.files[path]:
                yield f"{path} of {found[path]} and not {parent.files[path]}"

    # Without a list of its files there is only the digest over all.
    return list(each()) if parent.files else [f"other files than those of {parent.digest}"]


def other_files(parent: ParentPlan, found: list[str]) -> RunFailure:
    """Say that the files are not those that were verified."""
    more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    words = f"at {parent.uri} with {', '.join(found[:LISTED])}{more}: not as it was verified"
    return unfit(parent.name, words, "restore its folder from a backup, or name another adapter")


def unfit(name: str, why: str, cure: str) -> RunFailure:
    """Say why the parent can't be continued; another attempt would find the same."""
    return RunFailure(Reason.PARENT_UNFIT, f"spec.parent.adapter: found {name} {why}; {cure}")


def listed(names: Iterable[str]) -> str:
    """Return names as a sentence has them."""
    return ", ".join(sorted(names))


def _same(parent: ParentPlan, folder: Path, path: str, digest: str | None) -> bytes:
    """Return a file's bytes, if they are those that were just hashed."""
    if digest is None:
        raise unfit(parent.name, f"at {parent.uri} without {path}", "name an adapter in PEFT's format")
    data = (folder / path).read_bytes()
    if (found := bytes_digest(data)) != digest:
        raise other_files(parent, [f"{path} of {found} and not {digest}"])
    return data
