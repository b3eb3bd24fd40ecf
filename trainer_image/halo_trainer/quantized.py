"""QLoRA: the frozen base in 4 bits, NF4 with its scales quantised too (arXiv:2305.14314), by bitsandbytes on GPUs and CPUs.

Every linear layer but the output head is quantised as it is loaded, and computes in the precision of the catalog. The LoRA on it
stays fp32, trains as ever, and is saved as any other; embeddings, norms, the head and fused experts keep their precision.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from halo_api.conditions import Reason
from halo_api.run_file import BaseRef
from halo_trainer.failures import RunFailure


def loading(base: BaseRef, dtype: torch.dtype) -> dict[str, Any]:
    """Return what from_pretrained needs beside the folder and the dtype, to load the base as the run file says."""
    if base.quantization is None:
        return {}
    if importlib.util.find_spec("bitsandbytes") is None:
        raise RunFailure(
            Reason.INVALID_SPEC,
            f"base {base.name}: found quantization {base.quantization}, and this image has no bitsandbytes; "
            "install it, or leave quantization out",
        )
    from transformers import BitsAndBytesConfig

    nf4 = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    # On the CPU whatever the machine has, as an unquantised base: the run moves it.
    return {"quantization_config": nf4, "device_map": {"": "cpu"}}
