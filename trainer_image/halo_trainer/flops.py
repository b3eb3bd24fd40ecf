"""The FLOPs that a step of LoRA needs, as arithmetic of the base's config: what MFU, model FLOPs utilisation, counts.

Only what the model itself needs: what activation checkpointing computes again is work of the GPU and none of the model. Norms,
rotary embeddings, convolutions and softmax are left out, as the field does (PaLM, arXiv:2204.02311, appendix B).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# The architectures whose layers `shape_of` knows; of another one it claims nothing.
DENSE = frozenset({"llama", "mistral", "qwen2", "qwen3"})
MIXTURE = frozenset({"qwen3_moe", "qwen3_next", "qwen3_5_moe_text"})
HYBRID = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})


@dataclass(frozen=True)
class Shape:
    """A base as arithmetic, and the adapter on it.

    layers: weights of the layers that a token is multiplied with; of a mixture of experts, those of the experts that it is sent to.
    head: weights of the output head.
    pair: FLOPs of softmax attention's forward pass for a query and a key that it sees, over all layers.
    state: FLOPs of linear attention's forward pass for a token, over all layers.
    adapter: weights of the adapter that a token is multiplied with.
    """

    layers: int
    head: int
    pair: int
    state: int = 0
    adapter: int = 0


class Work(NamedTuple):
    """What goes through the model in a step, over all processes.

    tokens: tokens, each counted as often as it is computed.
    pairs: queries with a key that they see, their own among them: T (T + 1) / 2 of a lone row of T tokens.
    predicted: positions that the loss needs the output head at.
    reference: whether a frozen model goes through the same, forward alone (dpo).
    """

    tokens: int
    pairs: int
    predicted: int
    reference: bool = False


class Works(Sequence[Work]):
    """The work of each of many rows, without a reference model, in 24 bytes a row."""

    def __init__(self, works: Iterable[Work]) -> None:
        self.tokens, self._pairs, self._predicted = (array("q") for _ in range(3))
        for tokens, pairs, predicted, _ in works:
            self.tokens.append(tokens)
            self._pairs.append(pairs)
            self._predicted.append(predicted)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: Any) -> Any:
        return Work(self.tokens[index], self._pairs[index], self._predicted[index])


def rows_work(lengths: Sequence[int], predicted: int, reference: bool = False) -> Work:
    """Return the work of rows that each see themselves alone."""
    return Work(sum(lengths), sum(length * (length + 1) // 2 for length in lengths), predicted, reference)


def summed(works: Iterable[Work]) -> Work:
    """Return the work of all of them, without a reference model."""
    tokens = pairs = predicted = 0
    for work in works:
        tokens, pairs, predicted = tokens + work.tokens, pairs + work.pairs, predicted + work.predicted
    return Work(tokens, pairs, predicted)


def step_flops(shape: Shape, work: Work) -> float:
    """Return the model FLOPs of a step of LoRA.

        forward   = 2 N T + 2 H K + 2 A T + a P + s T
        backward  = 2 N T + 2 H K + 4 A T + 2 (a P + s T)
        reference = 2 N T + 2 H K + 2 A T + a P + s T, for dpo alone

    for T tokens, P query-key pairs and K predicted positions; N the weights of the layers, H of the output head, A of the
    adapter; a and s the FLOPs of softmax attention a pair and of linear attention a token. The backward pass goes through the
    frozen base for activations alone, and has no weight gradients but the adapter's: 4 N a token, and not the 6 N of a full
    training. Attention has no weights, so that its backward pass is twice its forward pass. Pairs are causal: half of T x T.
    """
    fixed = 2.0 * (shape.layers * work.tokens + shape.head * work.predicted)
    adapter = 2.0 * shape.adapter * work.tokens
    mixing = float(shape.pair * work.pairs + shape.state * work.tokens)
    forward = fixed + adapter + mixing
    return forward + fixed + 2 * adapter + 2 * mixing + (forward if work.reference else 0.0)


def shape_of(config: Mapping[str, Any], adapter: Mapping[str, int] | None = None) -> Shape | None:
    """Return the shape of a base from its text config, as transformers has it with every default; None of one that is not known.

    `adapter`: the number of weights of each parameter that trains, by its name.
    """
    kind = config.get("model_type")
    # A window cuts the pairs, which are counted without one.
    if kind not in DENSE | MIXTURE | HYBRID or config.get("sliding_window"):
        return None
    hidden, layers, heads = (config[f] for f in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    width = config.get("head_dim") or hidden // heads
    softmax = (config.get("layer_types") or ["full_attention"] * layers).count("full_attention")
    # Of a hybrid the query projection gives a gate of the output too.
    queries = 2 if kind in HYBRID else 1
    attention = hidden * width * ((queries + 1) * heads + 2 * (config.get("num_key_value_heads") or heads))
    weights = softmax * attention
    state = 0
    if kind in HYBRID:
        keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
        key, value = config["linear_key_head_dim"], config["linear_value_head_dim"]
        # in: queries, keys, values, gate, and two numbers a value head; out: values.
        weights += (layers - softmax) * hidden * (2 * keys * key + 3 * values * value + 2 * values)
        # The delta rule multiplies a state of key x value three times: with the key, with what changes, with the query.
        state = (layers - softmax) * 6 * values * key * value
    share = 1.0
    if kind in MIXTURE:
        experts, chosen = config.get("num_experts") or config["num_local_experts"], config["num_experts_per_tok"]
        share = chosen / experts
        shared = config["shared_expert_intermediate_size"] if kind in HYBRID else 0
        routed = hidden * (3 * config["moe_intermediate_size"] * chosen + experts + 3 * shared + (1 if shared else 0))
        every, plain = config.get("decoder_sparse_step") or 1, config.get("mlp_only_layers") or ()
        sparse = sum((layer + 1) % every == 0 and layer not in plain for layer in range(layers))
        weights += sparse * routed + (layers - sparse) * 3 * hidden * (config.get("intermediate_size") or 0)
    else:
        weights += layers * 3 * hidden * config["intermediate_size"]
    trained = sum(n * (share if ".experts." in name else 1.0) for name, n in (adapter or {}).items())
    return Shape(weights, hidden * config["vocab_size"], softmax * 4 * heads * width, state, round(trained))
