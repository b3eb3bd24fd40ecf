"""`sample`: greedy answers of a base, with or without an adapter, to prompts or to held-out rows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from halo_api.adapter import CONFIG
from halo_api.conditions import Reason
from halo_trainer.data.load import chat_rows, load_template, load_tokenizer, local_base, local_path
from halo_trainer.failures import RunFailure
from halo_trainer.model import load_base, settle_torch


@dataclass(frozen=True)
class Prompt:
    """A conversation to answer, and the answer that is expected, where one is known."""

    messages: tuple[dict[str, Any], ...]
    expected: str | None = None
    tools: list[Any] | None = None
    settings: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return str(self.messages[-1]["content"])


def sample(options: argparse.Namespace) -> int:
    """Answer every prompt; with expected answers, count those that were given exactly."""
    device = settle_torch()
    base, path = local_base(options.base, options.volumes, "bf16" if device.type == "cuda" else "fp32")
    if options.nf4:
        base = base.model_copy(update={"quantization": "nf4"})
    # These first, as the model takes longer to load.
    prompts = list(_prompts(options))[: options.limit]
    adapter = adapter_folder(local_path(options.adapter, options.volumes)) if options.adapter else None
    template = load_template(base, path)
    tokenizer = load_tokenizer(base, path)
    model = load_base(base, path)
    if adapter:
        model = with_adapter(model, adapter)
    model = model.to(device).eval()
    exact = known = 0
    for start in range(0, len(prompts), options.batch):
        part = prompts[start : start + options.batch]
        ids = [template.prompt_ids(list(prompt.messages), prompt.tools, prompt.settings) for prompt in part]
        for prompt, answer in zip(part, _answers(model, tokenizer, ids, options.max_new_tokens), strict=True):
            known += prompt.expected is not None
            exact += prompt.expected is not None and answer.strip() == prompt.expected.strip()
            print(_json(prompt, answer) if options.json else _plain(prompt, answer), flush=True)
    if known and not options.json:
        print(f"exact: {exact} of {known}")
    return 0


def _answers(model: Any, tokenizer: Any, prompts: list[list[int]], length: int) -> list[str]:
    """Answer a few prompts together, greedily; padded on the left, so that every answer starts at the same place."""
    longest = max(map(len, prompts))
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    ids = torch.tensor([[padding] * (longest - len(prompt)) + prompt for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device)
    configured = model.generation_config.eos_token_id
    stops = {tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])} - {None}
    with torch.inference_mode():
        output = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=length,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            eos_token_id=sorted(stops),
            pad_token_id=padding,
        )
    return [str(tokenizer.decode(row[longest:], skip_special_tokens=True)) for row in output]


def _prompts(options: argparse.Namespace) -> Iterator[Prompt]:
    if options.prompt:
        yield from (Prompt(({"role": "user", "content": text},)) for text in options.prompt)
    elif options.prompts.suffix == ".jsonl":
        for row in chat_rows(options.prompts):
            yield Prompt(row.messages[:-1], row.messages[-1]["content"], row.tools, row.settings)
    else:
        for text in options.prompts.read_text(encoding="utf-8").splitlines():
            if text.strip():
                yield Prompt(({"role": "user", "content": text},))


def with_adapter(model: Any, folder: Path) -> Any:
    """Return the base with a PEFT folder's adapter on it."""
    from peft import PeftModel

    return PeftModel.from_pretrained(model, str(adapter_folder(folder)))


def adapter_folder(folder: str | Path) -> Path:
    """Return a folder that an adapter is in, or say that none is."""
    if not (Path(folder) / CONFIG).is_file():
        raise RunFailure(Reason.INVALID_SPEC, f"{folder} has no adapter_config.json; name the folder of an adapter")
    return Path(folder)


def _json(prompt: Prompt, answer: str) -> str:
    known = (
        {}
        if prompt.expected is None
        else {"expected": prompt.expected, "exact": answer.strip() == prompt.expected.strip()}
    )
    return json.dumps({"prompt": prompt.text, "answer": answer, **known}, ensure_ascii=False)


def _plain(prompt: Prompt, answer: str) -> str:
    lines = [f"> {prompt.text}", answer.strip()]
    if prompt.expected is not None and answer.strip() != prompt.expected.strip():
        lines.append(f"  (expected: {prompt.expected.strip()})")
    return "\n".join([*lines, ""])
