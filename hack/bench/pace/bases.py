"""The bases: a small real one where it is there, else random weights of its shape; on a GPU, those of Qwen3-4B's."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imaging.common import cache

CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
WORDS = 4000


@dataclass(frozen=True)
class Shape:
    """A base of a known architecture."""

    name: str
    dtype: str
    architecture: str
    config: dict[str, Any] = field(default_factory=dict)


SMALL = Shape(
    "smollm2-135m",
    "fp32",
    "llama",
    {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
)
TINY = Shape("smollm2 of 6 layers", "fp32", "llama", SMALL.config | {"num_hidden_layers": 6, "vocab_size": 8192})
LARGE = Shape(
    "qwen3-4b",
    "bf16",
    "qwen3",
    {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": True,
    },
)


def real_base() -> Path | None:
    """Return the small real base that hack/base-model has made, where it has."""
    folder = cache("models") / "smollm2-135m-instruct"
    return folder if (folder / "revision").exists() else None


def take(real: Path, folder: Path) -> None:
    """Put a real base into a folder of volumes."""
    shutil.copytree(real, folder, copy_function=lambda source, place: Path(place).symlink_to(source))


def make(shape: Shape, folder: Path, device: str) -> None:
    """Save a base of random weights and a tokenizer of whole words."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = word_tokenizer()
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config = AutoConfig.for_model(shape.architecture, **shape.config, **special)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            config, dtype={"bf16": torch.bfloat16, "fp32": torch.float32}[shape.dtype]
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def word_tokenizer() -> Any:
    """Return a tokenizer to which each of the bench's words is one token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>"]
    known = [*special, "user", "assistant", "system", *own_words()]
    words = models.WordLevel({word: index for index, word in enumerate(known)}, unk_token="<unk>")
    plain = Tokenizer(words)
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, eos_token="<|im_end|>", pad_token="<|endoftext|>", unk_token="<unk>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = CHATML
    return tokenizer


def own_words() -> list[str]:
    return [f"w{index}" for index in range(WORDS)]


def words_of(folder: Path) -> list[str]:
    """Return words that are each one token behind a space to the base's tokenizer."""
    from transformers import AutoTokenizer

    known = AutoTokenizer.from_pretrained(folder, local_files_only=True).get_vocab()
    found = [word for word in own_words() if word in known]
    space = "\u0120"
    plain = sorted(token[1:] for token in known if token[0] == space and token[1:].isalpha() and token[1:].islower())
    return found or [word for word in plain if word.isascii() and len(word) > 2][:WORDS]
