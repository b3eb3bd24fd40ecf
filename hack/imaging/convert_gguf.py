"""convert_gguf.py GGUF OUT: write quantised GGUF weights as a Hugging Face model folder in float32, with tokenizer and chat template.

Runs inside the environment of `hack/venv`. The folder's `revision` file holds the SHA-256 of its manifest (one line `sha256  name`
a file, sorted by name): the same bytes always have the same revision.
"""

import hashlib
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

FOREIGN = ("quantization_config", "_name_or_path", "_model_name_or_path")


def plain_copy(quantised: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a model that knows nothing of GGUF: transformers refuses to save one that does."""
    settings = {key: value for key, value in quantised.config.to_dict().items() if key not in FOREIGN}
    model = type(quantised)(type(quantised.config)(**settings))
    model.load_state_dict(quantised.state_dict())
    model.tie_weights()
    model.generation_config = quantised.generation_config
    model.config.dtype = torch.float32
    return model


def revision(folder: Path) -> str:
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(folder.iterdir())]
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


def main(weights: Path, out: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    model = plain_copy(
        AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "revision").write_text(revision(out) + "\n")
    out.chmod(0o755)
    # Weights are written for their owner alone; pods read them under another user.
    for file in out.iterdir():
        file.chmod(0o644)


main(Path(sys.argv[1]), Path(sys.argv[2]))
