"""From the tokens of a forward pass to the log-likelihood of its targets, by the shortest way that the architecture allows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from halo_trainer.attention import Varlen
from halo_trainer.data.collate import FlatBatch, MicroBatch
from halo_trainer.fast_lora import install_fast_lora
from halo_trainer.model import answer_logits, flat_logits
from halo_trainer.objectives.frozen_head import frozen_head_nll
from halo_trainer.objectives.sft import target_nll, trained_share


class Answers:
    """A model whose answers train: its adapted layers take the fast path, and its head's logits are held only if they must be."""

    def __init__(self, model: Any) -> None:
        install_fast_lora(model)
        self._model, self.head = model, plain_head(model)
        self._layers = model.get_base_model().base_model

    def padded(self, batch: MicroBatch, denominator: float) -> Tensor:
        """Return the share of padded rows in the loss of a step."""
        return trained_share(self.padded_nll(batch), batch.trained_BK, denominator)

    def flat(self, batch: FlatBatch, varlen: Varlen, denominator: float) -> Tensor:
        """Return the share of a layout, all of whose targets train; the model must attend by layouts."""
        every_BK = torch.ones_like(batch.targets_BK, dtype=torch.bool)
        return trained_share(self.flat_nll(batch, varlen), every_BK, denominator)

    def padded_nll(self, batch: MicroBatch, temperature: float = 1.0) -> Tensor:
        """Return -log p (B, K) of padded rows' targets, whether they train or not."""
        if self.head is None:
            return target_nll(answer_logits(self._model, batch), batch.targets_BK, temperature)
        inputs = {"input_ids": batch.ids_BT, "attention_mask": batch.attention_BT, "use_cache": False}
        features_BKH = self._layers(**inputs).last_hidden_state[:, batch.positions_K]
        return self._nll(features_BKH, batch.targets_BK, temperature)

    def flat_nll(self, batch: FlatBatch, varlen: Varlen, temperature: float = 1.0) -> Tensor:
        """Return -log p (1, K) of a layout's targets."""
        if self.head is None:
            return target_nll(flat_logits(self._model, batch, varlen), batch.targets_BK, temperature)
        inputs = {"input_ids": batch.ids_BT, "position_ids": batch.depths_BT, "use_cache": False, "varlen": varlen}
        features_BUH = self._layers(**inputs).last_hidden_state[:, batch.positions_U]
        features_BKH = features_BUH if batch.place_K is None else features_BUH[:, batch.place_K]
        return self._nll(features_BKH, batch.targets_BK, temperature)

    def _nll(self, features_BKH: Tensor, targets_BK: Tensor, temperature: float) -> Tensor:
        assert self.head is not None
        head = self.head
        features_NH = features_BKH.flatten(0, 1)
        nll_N = frozen_head_nll(features_NH, head.weight, head.bias, targets_BK.flatten(), temperature)
        return nll_N.view_as(targets_BK)


def plain_head(model: Any) -> nn.Linear | None:
    """Return the model's output head, if it is frozen, and its product with the last layer's features is all there is to the logits.

    Some architectures scale or cap them. Whether this one does is seen by features that stand in for those of its layers.
    """
    from transformers.modeling_outputs import MoeModelOutputWithPast

    causal = model.get_base_model()
    head, layers = causal.get_output_embeddings(), causal.base_model
    if layers is causal or type(head) is not nn.Linear or any(part.requires_grad for part in head.parameters()):
        return None
    random = torch.Generator().manual_seed(0)
    features: Any = (9 * torch.randn(1, 2, head.in_features, generator=random)).to(head.weight)
    kept = vars(layers).get("forward")
    layers.forward = lambda *_, **__: MoeModelOutputWithPast(last_hidden_state=features)
    try:
        with torch.no_grad():
            logits = causal(input_ids=torch.zeros(1, 2, dtype=torch.long, device=features.device)).logits
            return head if torch.equal(logits, head(features)) else None
    except Exception:
        # An architecture whose logits need more than features.
        return None
    finally:
        del layers.forward
        if kept:
            layers.forward = kept
