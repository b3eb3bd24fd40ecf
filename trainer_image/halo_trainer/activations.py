"""Activation checkpointing by memory: as few layers as must be are computed again in the backward pass.

What a forward pass keeps for its backward pass is measured on a short row, once with the activations of layers kept and once with
none, as it differs by architecture, adapter and kernels; the rest is arithmetic. A layer that is computed again has the
same inputs, weights and random numbers as before, so that on a CPU no bit of a gradient depends on the decision.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from halo_trainer.gauges import device_bytes, free_bytes
from halo_trainer.parallel.ranks import Ranks

# Tokens of the row that is measured; the chunks of recurrent layers are no longer.
TRIAL = 128
# What is left free, as memory is handed out in blocks and parts of it lie idle.
SPARE = 0.1
GB = 1e9


@dataclass(frozen=True)
class Kept:
    """Bytes that a forward pass of a token keeps for its backward pass: by one layer, by one that is computed again, by all else."""

    layer: float
    input: float
    rest: float

    def needed(self, tokens: int, layers: int, again: int) -> float:
        """Return what a pass of so many tokens takes where the first `again` layers are computed again.

        They are the first ones as theirs are the last to be needed: what is computed again then takes the place of what the
        others kept. Two layers more are for the gradients inside the one that the backward pass is at, and for itself.
        """
        return tokens * (self.rest + again * self.input + (layers - again + 2) * self.layer)


def layers_again(kept: Kept, layers: int, tokens: int, free: float) -> int:
    """Return how many layers must be computed again for a pass of so many tokens to fit: all, where even that is too little."""
    return next((again for again in range(layers) if kept.needed(tokens, layers, again) <= free), layers)


def keep_what_fits(model: Any, trial: Callable[[int], Tensor], tokens: int, device: torch.device, ranks: Ranks) -> int:
    """Let a model keep the activations that there is room for in passes of so many tokens; return how many layers keep none.

    `trial` gives the loss of a row of a length. All ranks decide alike, as a layer's forward pass may be an affair of them all.
    """
    layers = checkpointed_layers(model)
    if not layers:
        return 0
    kept = measured(model, trial, min(tokens, TRIAL))
    trained = sum(part.nbytes for part in model.parameters() if part.requires_grad)
    # Gradients and moments come with the first step.
    free = (1 - SPARE) * (free_bytes(device, device_bytes(device, ranks.local_world)) - 3 * trained)
    votes = torch.zeros(len(layers) + 1, device=device)
    votes[layers_again(kept, len(layers), tokens, free)] = 1
    again = int(ranks.sum_values(votes).nonzero().max())
    compute_again(model, again)
    if again and ranks.writes:
        needed = kept.needed(tokens, len(layers), 0)
        print(
            f"activations of {tokens} tokens take {needed / GB:.3g} GB where {max(free, 0) / GB:.3g} GB are free: "
            f"{again} of {len(layers)} layers are computed again in the backward pass",
            flush=True,
        )
    return again


def measured(model: Any, trial: Callable[[int], Tensor], tokens: int) -> Kept:
    """Measure what a forward pass keeps for a token, of a model with at least one layer to compute again."""
    layers = len(checkpointed_layers(model))
    # The first layer keeps less than others: what it gets from a frozen embedding needs no gradient.
    first = min(1, layers - 1)
    found = []
    for again in (first, layers):
        compute_again(model, again)
        found.append(saved_bytes(model, functools.partial(trial, tokens)) / tokens)
    compute_again(model, 0)
    most, least = found
    # A layer that is computed again keeps its inputs.
    features = model.get_input_embeddings().weight
    own = features.shape[-1] * features.element_size()
    return Kept((most - least) / (layers - first) + own, own, least - layers * own)


def saved_bytes(model: Any, forward: Callable[[], Tensor]) -> int:
    """Return the bytes of what a forward pass keeps for its backward pass, each array once, and the model's own weights aside."""
    weights = {part.untyped_storage().data_ptr() for part in (*model.parameters(), *model.buffers())}
    found: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    # The loss holds all of it, so that no address comes twice.
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        loss = forward()
    del loss
    return sum(found.values())


def compute_again(model: Any, count: int) -> None:
    """Let the first so many layers keep their inputs alone, and be computed again in the backward pass."""
    for place, layer in enumerate(checkpointed_layers(model)):
        layer.gradient_checkpointing = place < count
        layer._gradient_checkpointing_func = functools.partial(checkpoint, use_reentrant=False)


def checkpointed_layers(model: Any) -> list[Any]:
    """Return the layers that transformers can compute again, in their order: the blocks of a decoder."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
