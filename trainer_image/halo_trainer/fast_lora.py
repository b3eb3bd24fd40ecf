"""The fast path of LoRA over a frozen base: each adapted layer is one node of the graph.

    y = x W' + b + s (d A') B'        d = dropout(x), A' the transpose of A

PEFT's own forward is a dozen nodes: it casts x to the adapter's precision, scales and adds in passes of their own over arrays as
large as y, and its backward adds the two gradients of x in another. Here the product with B is added to y, and its gradient
to that of x, by the matrix product itself. The base's W and b are frozen: no gradient of theirs is ever made.

Numbers: products are in the base's precision, sums inside them in the hardware's (fp32). Over an fp32 base that differs from
PEFT in the last bits; over a bf16 base the adapter's products are bf16 too, as under autocast, and no more fp32.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ADAPTER = "default"


def install_fast_lora(model: nn.Module) -> int:
    """Let the layers that it fits take the fast path; return how many those are. The others stay PEFT's."""
    from peft.tuners.lora.layer import Linear

    fitting = [layer for layer in model.modules() if type(layer) is Linear and _fits(layer)]
    for layer in fitting:
        layer.forward = functools.partial(_forward, layer)  # type: ignore[method-assign]
    return len(fitting)


def _fits(layer: Any) -> bool:
    """Whether it is a plain LoRA on a plain frozen layer."""
    base = layer.base_layer
    plain = type(base) is nn.Linear and not any(parameter.requires_grad for parameter in base.parameters())
    return plain and not layer.lora_variant and layer.lora_A.keys() == {ADAPTER} and layer.lora_B[ADAPTER].bias is None


def _forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if args or kwargs or layer.disable_adapters or layer.merged or layer.active_adapters != [ADAPTER]:
        kept: Tensor = type(layer).forward(layer, x, *args, **kwargs)
        return kept
    base, dropout = layer.base_layer, layer.lora_dropout[ADAPTER]
    dropped = dropout(x) if layer.training and isinstance(dropout, nn.Dropout) else None
    y: Tensor = AdaptedLinear.apply(  # type: ignore[no-untyped-call]
        x,
        dropped,
        base.weight,
        base.bias,
        layer.lora_A[ADAPTER].weight,
        layer.lora_B[ADAPTER].weight,
        layer.scaling[ADAPTER],
    )
    return y


class AdaptedLinear(torch.autograd.Function):
    """A frozen linear layer of I inputs and O outputs with a LoRA of rank R. `dropped` is unset where it is x itself."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dropped: Tensor | None,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        a_RI: Tensor,
        b_OR: Tensor,
        scaling: float,
    ) -> Tensor:
        y = functional.linear(x, weight_OI, bias_O)
        inputs_NI = (x if dropped is None else dropped).reshape(-1, x.shape[-1])
        a_RI_, b_OR_ = a_RI.to(x.dtype), b_OR.to(x.dtype)
        low_NR = torch.mm(inputs_NI, a_RI_.t())
        y.view(-1, y.shape[-1]).addmm_(low_NR, b_OR_.t(), alpha=scaling)
        ctx.save_for_backward(inputs_NI, low_NR, weight_OI, a_RI, b_OR)
        ctx.scaling, ctx.shape, ctx.separate = scaling, x.shape, dropped is not None
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs_NI, low_NR, weight_OI, a_RI, b_OR = ctx.saved_tensors
        grad_NO = grad.reshape(-1, grad.shape[-1])
        a_RI_, b_OR_ = a_RI.to(grad.dtype), b_OR.to(grad.dtype)
        low_grad_NR = torch.mm(grad_NO, b_OR_).mul_(ctx.scaling)
        a_grad_RI = torch.mm(low_grad_NR.t(), inputs_NI).to(a_RI.dtype)
        b_grad_OR = torch.mm(grad_NO.t(), low_NR).mul_(ctx.scaling).to(b_OR.dtype)
        x_grad = dropped_grad = None
        if ctx.needs_input_grad[0]:
            x_grad = torch.mm(grad_NO, weight_OI)
        if ctx.separate:
            if ctx.needs_input_grad[1]:
                dropped_grad = torch.mm(low_grad_NR, a_RI_).view(ctx.shape)
        elif x_grad is not None:
            x_grad.addmm_(low_grad_NR, a_RI_)
        return (
            x_grad if x_grad is None else x_grad.view(ctx.shape),
            dropped_grad,
            None,
            None,
            a_grad_RI,
            b_grad_OR,
            None,
        )
