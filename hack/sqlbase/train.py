"""Trains the small base from random weights: the same bytes for the same settings, seed, threads and machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from hack.sqlbase.language import Row, rows
from hack.sqlbase.recipe import Recipe
from hack.sqlbase.tokens import END, tokenizer_of

Pair = tuple[list[int], list[int]]


def make(recipe: Recipe, folder: Path, say: Callable[[str], None]) -> None:
    """Train, and write a folder that transformers and vLLM load."""
    torch.set_num_threads(recipe.threads)
    torch.use_deterministic_algorithms(True)
    read = list(rows(recipe.rows, recipe.seed, recipe.carelessness))
    texts = (f"{row.messages[-1]['content']}\n{row.answer}" for row in read)
    tokenizer = tokenizer_of(texts, recipe.vocabulary)
    pairs = [pair_of(tokenizer, row) for row in read]
    torch.manual_seed(recipe.seed)
    model = model_of(recipe, tokenizer)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    tokens = sum(len(prompt) + len(answer) for prompt, answer in pairs)
    say(f"{parameters / 1e6:.2f} million parameters, {len(pairs)} rows, {tokens} tokens, vocabulary {len(tokenizer)}")
    fit(model, batches(pairs, recipe), recipe, tokenizer.pad_token_id, say)
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(END)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def pair_of(tokenizer: Any, row: Row) -> Pair:
    """Return a row as the trainer's rollouts have it: the ids of the prompt, and those of the answer with its end."""
    prompt = tokenizer.apply_chat_template(list(row.messages), add_generation_prompt=True, tokenize=False)
    encode = tokenizer.backend_tokenizer.encode
    return encode(prompt, add_special_tokens=False).ids, encode(row.answer + END, add_special_tokens=False).ids


def model_of(recipe: Recipe, tokenizer: Any) -> Any:
    """Return a Qwen3 of random weights, in float32, its embeddings tied."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.key_value_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.pad_token_id,
        dtype=torch.float32,
    )
    return Qwen3ForCausalLM(config)


def batches(pairs: Sequence[Pair], recipe: Recipe) -> Iterator[list[Pair]]:
    """Yield every row once, in batches of about the same length, which are in random order."""
    random = Random(f"order {recipe.seed}")
    order = list(range(len(pairs)))
    random.shuffle(order)
    chunk = recipe.batch * 32
    for start in range(0, len(order), chunk):
        part = sorted(order[start : start + chunk], key=lambda place: len(pairs[place][0]) + len(pairs[place][1]))
        parts = [part[at : at + recipe.batch] for at in range(0, len(part), recipe.batch)]
        random.shuffle(parts)
        for places in parts:
            yield [pairs[place] for place in places]


def fit(model: Any, found: Iterator[list[Pair]], recipe: Recipe, padding: int, say: Callable[[str], None]) -> None:
    """Train on every batch once: all tokens of a row, prompts at a tenth of the weight, since they are mostly chance."""
    steps = -(-recipe.rows // recipe.batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, steps, recipe.warmup))
    started, since = time.process_time(), []
    model.train()
    for step, batch in enumerate(found, 1):
        ids, weights = tensors(batch, padding)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        loss = (losses * weights[:, 1:]).sum() / weights[:, 1:].sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        since.append(losses[weights[:, 1:] == 1].mean().item())
        if step % 100 == 0 or step == steps:
            seconds = time.process_time() - started
            say(f"step {step}/{steps} answers' loss {sum(since) / len(since):.3f}, {seconds:.0f} s of a core")
            since.clear()
    model.eval()


def tensors(batch: list[Pair], padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return [rows, longest] ids, padded on the right where causal attention never looks, and the weight of each."""
    longest = max(len(prompt) + len(answer) for prompt, answer in batch)
    ids = torch.full((len(batch), longest), padding)
    weights = torch.zeros((len(batch), longest))
    for place, (prompt, answer) in enumerate(batch):
        ids[place, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        weights[place, : len(prompt)] = 0.1
        weights[place, len(prompt) : len(prompt) + len(answer)] = 1.0
    return ids, weights


def rate_at(step: int, steps: int, warmup: int) -> float:
    """Return the share of the learning rate: linear to 1, then a cosine to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1)))
