"""What the roofline model knows of a base model and of a GPU; what the catalog leaves out is derived from its size."""

from __future__ import annotations

from dataclasses import dataclass

from halo_api.catalog import BaseModelSpec
from halo_api.gpu_class import GpuClassSpec
from halo_operator.plan.estimate_rates import H100_BANDWIDTH_TBS, H100_PEAK_TFLOPS

HEAD_DIM = 128
KV_HEADS = 8
VOCABULARY = 151_936
# Below this size a model's output layer is its embedding, so that no parameter is without a matrix product.
TIED_BELOW = 6e9
# Of a hybrid's layers one in so many keeps full attention; the others are linear in the row's length.
HYBRID_EVERY = 4
# A weight in 4 bits with its scales, embeddings and norms left as they are.
NF4_BYTES = 0.55
GIB = 2**30


@dataclass(frozen=True)
class Model:
    """A base model as arithmetic: parameters, layers and the widths that attention is made of."""

    parameters: float
    active: float
    moe: bool
    layers: int
    softmax_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    bytes_per_weight: float = 2.0
    nf4: bool = False

    @property
    def matmul(self) -> float:
        """Parameters that each token is multiplied with, the LM head among them, the embedding not."""
        embedding = 0.0 if self.parameters < TIED_BELOW else float(self.vocabulary * self.hidden)
        return max(self.active - embedding, self.active / 2)

    @property
    def weights(self) -> float:
        """Bytes of the weights in memory."""
        return self.parameters * (NF4_BYTES if self.nf4 else self.bytes_per_weight)

    @property
    def stored(self) -> float:
        """Bytes of the weights as they are read, whatever they are kept in."""
        return self.parameters * self.bytes_per_weight

    @property
    def kv_bytes(self) -> float:
        """Bytes of keys and values of one token."""
        return 2.0 * self.softmax_layers * self.kv_heads * self.head_dim * 2.0

    def attention(self, length: float) -> float:
        """FLOPs of attention's forward pass for a token of a row of that length, on the causal average."""
        return 2.0 * self.softmax_layers * self.heads * self.head_dim * length

    def touched(self, batch: float) -> float:
        """Bytes of weights that one decoding step of that many sequences reads: of a mixture of experts not always all."""
        share = min(1.0, self.active / self.parameters * batch)
        return self.weights * share

    def adapter(self, rank: int) -> float:
        """Parameters of a LoRA of that rank that a token meets: about 20 hidden widths of in and out a layer."""
        return float(rank * self.layers * 20 * self.hidden)

    def adapter_bytes(self, rank: int) -> float:
        """Bytes of the whole LoRA with its optimizer's state, in fp32."""
        return self.adapter(rank) * (self.parameters / self.active) * 12.0


@dataclass(frozen=True)
class Gpu:
    """A GPU as arithmetic; without `memory` it is not asked how many sequences fit."""

    flops: float = H100_PEAK_TFLOPS * 1e12
    bandwidth: float = H100_BANDWIDTH_TBS * 1e12
    h100_equivalent: float = 1.0
    memory: float | None = None


def model_of(base: BaseModelSpec) -> Model:
    """Return the model of a catalog entry."""
    parameters = base.parameters_b * 1e9
    active = min((base.active_parameters_b or base.parameters_b) * 1e9, parameters)
    size = (parameters * active) ** 0.5
    shape = base.shape
    layers = shape.layers if shape else max(1, round(30 * (size / 2e9) ** 0.25))
    heads = shape.heads if shape else max(1, round(32 * (size / 6e9) ** 0.4))
    return Model(
        parameters=parameters,
        active=active,
        moe=base.moe,
        layers=layers,
        softmax_layers=-(-layers // HYBRID_EVERY) if base.attention == "hybrid" else layers,
        heads=heads,
        kv_heads=shape.kv_heads if shape else min(heads, KV_HEADS),
        head_dim=shape.head_dim if shape else HEAD_DIM,
        hidden=shape.hidden if shape else heads * 100,
        vocabulary=shape.vocabulary if shape else VOCABULARY,
        bytes_per_weight=2.0 if base.dtype == "bf16" else 4.0,
        nf4=base.quantization == "nf4",
    )


def gpu_of(gpu: GpuClassSpec) -> Gpu:
    """Return the GPU of a class; without its own figures it is an H100 times its equivalence."""
    worth = gpu.h100_equivalent
    # A class of next to no worth would make a run infinite.
    return Gpu(
        flops=max(gpu.peak_tflops or H100_PEAK_TFLOPS * worth, 1e-3) * 1e12,
        bandwidth=max(gpu.bandwidth_t_bs or H100_BANDWIDTH_TBS * worth, 1e-3) * 1e12,
        h100_equivalent=gpu.h100_equivalent,
        memory=float(gpu.memory_gi_b * GIB),
    )
