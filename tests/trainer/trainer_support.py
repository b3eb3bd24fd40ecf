"""What the trainer's tests share: a tiny base with a real tokenizer, data, run files and runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from halo_api.report import Outcome, Report
from halo_api.run_file import RunFile
from halo_trainer.budget import Budget
from halo_trainer.failures import failure_of
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.reporting import Reporting

CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
CORPUS = [
    "user\nassistant\nsystem\ntool\n\n",
    "What is two and three? It is five.\n\n",
    "The sky is blue and the grass is green.\n\n",
    "Colour of the sky? Blue. Colour of grass? Green.\n\n",
]
ANSWERS = {"sky": "It is blue.", "grass": "It is green.", "snow": "It is white.", "coal": "It is black."}


def make_tokenizer(template: str | None = CHATML) -> Any:
    """Return a byte-level BPE tokenizer of 384 tokens with ChatML's special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        CORPUS * 20, trainers.BpeTrainer(vocab_size=384, special_tokens=special, initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = template
    return tokenizer


def make_base(folder: Path, template: str | None = CHATML) -> Path:
    """Save a Llama of random weights, 2 layers of 32, and its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer(template)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def chat(*turns: str, **more: Any) -> dict[str, Any]:
    """Return a row of user and assistant turns."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)], **more}


def colour_rows(count: int = 24) -> list[dict[str, Any]]:
    """Return rows of several lengths."""
    things = list(ANSWERS)
    return [
        chat(f"{'Please tell me. ' * (i % 5)}Colour of {things[i % 4]}?", ANSWERS[things[i % 4]] + " Yes." * (i % 3))
        for i in range(count)
    ]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as JSONL."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run_file(role: str = "train", output: str = "run", lora: dict[str, Any] | None = None, **train: Any) -> RunFile:
    """Return a run file on volumes models, data and artifacts."""
    layout = train.pop("layout", {})
    data = train.pop("data", {})
    plan = {
        "steps": 6,
        "batch": 6,
        "saveSteps": 2,
        "seed": 0,
        "output": f"pvc://artifacts/{output}",
        "lora": {
            "dataset": "chat", "rank": 4, "alpha": 8, "learningRate": 0.02, "maxLength": 512, "microBatch": 2
        } | (lora or {}),
    } | train  # fmt: skip
    return RunFile.model_validate(
        {
            "role": role,
            "run": {"kind": "TrainingJob", "namespace": "team", "name": "run", "uid": "uid-1", "attempt": 1},
            "base": {
                "name": "tiny", "source": "pvc://models/tiny", "revision": "abcdef0", "dtype": "fp32",
                "contextLength": 512,
            },
            "data": {"name": "chat", "kind": "chat", "source": "pvc://data/chat.jsonl"} | data,
            "train": plan if role == "train" else None,
            "layout": layout,
        }
    )  # fmt: skip


def train_here(run: RunFile, root: Path) -> Report:
    """Train in this process; return the last report, which has the outcome."""
    from halo_trainer.train import train

    path = root / "report.json"
    report = Reporting(path, run)
    try:
        outcome = train(run, str(root), report, Ranks(), Budget())
    except Exception as error:
        failure = failure_of(error)
        outcome = Outcome(
            result="Failed", reason=failure.reason, message=str(failure), checkpoint=report.last_checkpoint
        )
    report.finish(outcome)
    return Report.model_validate_json(path.read_bytes())


def start(verb: str, run: RunFile, root: Path, **environment: str) -> subprocess.Popen[bytes]:
    """Start the trainer as a pod would, as a process of its own."""
    (root / "report.json").unlink(missing_ok=True)
    path = root / f"run-{os.urandom(4).hex()}.json"
    path.write_text(run.canonical())
    command = [sys.executable, "-m", "halo_trainer", verb, "--run-file", str(path), "--volumes", str(root)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
    return subprocess.Popen(
        [*command, "--report", str(root / "report.json")], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def wait_for(process: subprocess.Popen[bytes], root: Path, checkpoints: int) -> Report:
    """Return the first report with that many checkpoints."""
    end = time.monotonic() + 240
    while time.monotonic() < end:
        path = root / "report.json"
        if path.exists():
            report = Report.model_validate_json(path.read_bytes())
            if len(report.checkpoints) >= checkpoints:
                return report
        assert process.poll() is None, process.communicate()[0].decode()
        time.sleep(0.02)
    raise AssertionError("no checkpoint within 240 s")


def killed(run: RunFile, root: Path, checkpoints: int = 2) -> dict[str, Any]:
    """Let a run be killed after so many checkpoints, before its end; return what a next attempt resumes from."""
    process = start("train", run, root)
    last = wait_for(process, root, checkpoints).checkpoints[-1]
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert run.train
    assert last.step < run.train.steps
    return {"step": last.step, "uri": last.uri, "digest": last.digest}


def completed(run: RunFile, root: Path) -> str:
    """Train to the end as a pod would; return what it said."""
    process = start("train", run, root)
    output = process.communicate(timeout=500)[0].decode()
    assert process.returncode == 0, output
    return output


def adapter_bytes(root: Path, output: str = "run") -> dict[str, bytes]:
    """Return the published folder."""
    return {path.name: path.read_bytes() for path in (root / "artifacts" / output / "adapter").iterdir()}
