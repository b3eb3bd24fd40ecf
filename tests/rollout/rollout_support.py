"""What the rollout server's tests share: tiny bases that vLLM serves on CPUs, adapters for them, run files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from halo_api.adapter import AdapterFile
from halo_api.digests import bytes_digest, files_digest
from halo_api.rollouts import Policy, PolicyAdapter
from halo_api.run_file import RunFile

COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    # vLLM on CPUs has no smaller one.
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
HYBRID = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
MORE: dict[str, dict[str, Any]] = {
    "qwen3": {"tie_word_embeddings": True},
    # Of no use but that its adapters fit no other base.
    "wide": {"hidden_size": 96},
    "qwen3_moe": EXPERTS | {"tie_word_embeddings": True},
    "qwen3_5_text": HYBRID,
    "qwen3_next": HYBRID | EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3_5_moe_text": HYBRID | EXPERTS | {"shared_expert_intermediate_size": 32},
}


def make_base(folder: Path, kind: str) -> Path:
    """Save a tiny base of random weights, in fp32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3" if kind == "wide" else kind, **(COMMON | MORE[kind]))
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def make_tokenizer(folder: Path) -> None:
    """Save a tokenizer of 96 words; prompts are ids, but vLLM wants one."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(96)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w0").save_pretrained(folder)


def make_adapter(base: Path, folder: Path, seed: int, std: float = 0.2, modules: Any = "all-linear") -> Path:
    """Save a LoRA of rank 4 in fp32 that is not the identity."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    lora = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=modules, task_type="CAUSAL_LM"))
    torch.manual_seed(seed)
    for name, parameter in lora.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=std)
    lora.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    return folder


def merged(base: Path, adapter: Path | None) -> Any:
    """Return transformers' model with PEFT's own merge of the adapter."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter).merge_and_unload()  # type: ignore[operator]
    return model.eval()


def policy_of(folder: Path, uri: str, version: int, serving: str, **more: Any) -> Policy:
    """Return the policy whose adapter's files lie in the folder, which servers see under the uri."""
    files = tuple(
        AdapterFile(path=path.name, sha256=bytes_digest(path.read_bytes()), size=path.stat().st_size)
        for path in sorted(folder.iterdir())
    )
    adapter = PolicyAdapter(uri=uri, digest=files_digest(files), files=files)
    asked = {"version": version, "attempt": 1, "name": f"run-uid-a1-s{version}", "serving": serving, "adapter": adapter}
    return Policy.model_validate(asked | more)


def run_file(serve_port: int, guard_port: int, serving: str, **plan: Any) -> RunFile:
    """Return the run file of a rollout pod whose base is pvc://models/base."""
    return RunFile.model_validate(
        {
            "role": "rollout",
            "run": {"kind": "TrainingJob", "namespace": "team", "name": "run", "uid": "uid-1", "attempt": 1},
            "base": {
                "name": "tiny", "source": "pvc://models/base", "revision": "r", "dtype": "fp32", "contextLength": 512
            },
            "rollout": {
                "server": 0, "gpus": 1, "contextLength": 256, "rank": 4, "serving": serving,
                "servePort": serve_port, "guardPort": guard_port,
            }
            | plan,
        }
    )  # fmt: skip


def lora_config(**changes: Any) -> dict[str, Any]:
    """Return what a PEFT configuration says of a plain LoRA."""
    return json.loads('{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none"}') | changes
