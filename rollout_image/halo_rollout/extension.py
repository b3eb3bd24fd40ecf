"""What Halo adds to vLLM's workers: taking a folded policy in place. The only module that imports vLLM; vLLM loads it by name.

In place and only in part: modules that neither this policy nor the one before changes keep their storage. Of an output layer
tied to the embedding, which no policy changes, the CPU build keeps a repacked copy that a whole reload would leave old.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from halo_rollout.folding import update
from halo_rollout.lora import NOTHING, Unfoldable
from halo_rollout.pristine import Pristine, read_lora

# They warn of every weight that is not sent, which is most of them, on purpose.
TALKATIVE = ("vllm.v1.worker.gpu_model_runner", "vllm.model_executor.model_loader.reload.layerwise")


class PolicyWorker:
    """Mixed into vLLM's worker class; what is called from outside has strings for arguments, as vLLM's RPC demands."""

    _halo_base: Pristine | None = None
    _halo_changed: frozenset[str] = frozenset()

    def halo_fold(self, base: str, dtype: str, adapter: str = "") -> dict[str, Any]:
        """Serve the base with an adapter folded in from now on, or with none; return {"problem": why not, or None}.

        A problem is found before any weight is touched; an exception leaves the weights in no known state.
        """
        worker: Any = self
        model = worker.model_runner.get_model()
        try:
            if self._halo_base is None:
                self._halo_base = Pristine(Path(base), dtype)
            pristine = self._halo_base
            lora = read_lora(Path(adapter)) if adapter else NOTHING
            packed = getattr(model, "packed_modules_mapping", None) or {}
            change = update(lora, pristine.shapes, packed, self._halo_changed)
        except Unfoldable as problem:
            return {"problem": str(problem)}
        if change.names:
            device = next(model.parameters()).device
            # Also while an exception flies: what was changed, or may be, has to be sent again.
            self._halo_changed = self._halo_changed | change.changed
            if change.experts:
                repack_experts(model)
            with hushed():
                worker.reload_weights(weights_iterator=pristine.folded(change, device))
        self._halo_changed = change.changed
        return {"problem": None, "sent": len(change.names)}


def repack_experts(model: Any) -> None:
    """Have experts be packed anew as they are loaded: the CPU build does so only where it has not made its kernel yet.

    For all layers at once: a kernel that was dropped is made only for experts that are sent.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None


@contextmanager
def hushed() -> Iterator[None]:
    """Keep back the warnings of weights that are not loaded."""
    loggers = [logging.getLogger(name) for name in TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def leave_experts_to_the_cpu() -> None:
    """Have a mixture of experts run beside LoRA on a CPU.

    As soon as LoRA is on, vLLM takes its Triton kernel for the experts, which CPUs have not: the engine would die at its first
    request. A policy with a LoRA on experts is refused there, so that the CPU's own kernel is right.
    """
    from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig

    inner = FusedMoEConfig.__init__

    def without_lora(self: Any, *args: Any, **kwargs: Any) -> None:
        inner(self, *args, **(kwargs | {"is_lora_enabled": False}))

    FusedMoEConfig.__init__ = without_lora


def _prepare() -> None:
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        leave_experts_to_the_cpu()


# vLLM imports this module in each worker before it builds the model, and offers no later moment.
_prepare()
