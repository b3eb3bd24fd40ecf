"""`evaluate`: plays held-out tasks with a base, or a base and an adapter, scores them as a run would, and compares two such results."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from halo_api.conditions import Reason
from halo_api.run_file import BaseRef
from halo_trainer.data.jsonl import JsonLines
from halo_trainer.data.load import load_config, load_template, load_tokenizer, local_base, local_path
from halo_trainer.data.tasks import TaskLines
from halo_trainer.environments.base import Task
from halo_trainer.environments.registry import checking_settings
from halo_trainer.environments.workers import Workers
from halo_trainer.evaluation.results import (
    WAYS,
    compare,
    comparison_line,
    differing,
    lines_of,
    read_results,
    summary,
    write_results,
)
from halo_trainer.failures import RunFailure
from halo_trainer.rollouts.chat import Chat, stop_ids
from halo_trainer.rollouts.client import Client
from halo_trainer.rollouts.completion import Sampling
from halo_trainer.rollouts.engine import Engine, EpisodeRules, Group, Wanted
from halo_trainer.rollouts.lines import http_client

# What one episode may take, and one answer of a server.
EPISODE_SECONDS = 86_400.0
ANSWER_SECONDS = 900.0


def evaluate(options: argparse.Namespace) -> int:
    """Play and write, or only compare what is written already; say each in a line."""
    out: Path = options.out
    if options.base:
        settings, lines = asyncio.run(_played(options))
        write_results(out, settings, lines)
    after = read_results(out)
    print(summary(after))
    if options.against:
        before = read_results(options.against)
        if others := differing(before, after):
            print(f"not the same in both: {', '.join(others)}", file=sys.stderr)
        for way, found in compare(before, after).items():
            print(comparison_line(way, found))
    return 0


def read_tasks(path: Path, limit: int | None) -> tuple[list[Task], str]:
    """Return a file's tasks, all of one environment, and the file's digest."""
    lines = JsonLines(path)
    tasks = list(itertools.starmap(TaskLines().shape, lines))
    if len(names := {task.environment for task in tasks}) > 1:
        words = f"{path}: found tasks of {', '.join(sorted(names))}; evaluate those of one environment at a time"
        raise RunFailure(Reason.BAD_ROW, words)
    return tasks[:limit], lines.digest


async def _played(options: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if not options.tasks:
        raise RunFailure(Reason.INVALID_SPEC, "--tasks is missing; name the JSONL file of the tasks to play")
    if not (options.greedy or options.samples):
        raise RunFailure(Reason.INVALID_SPEC, "found neither --greedy nor --samples K; ask for one or both")
    if options.server and options.adapter:
        words = "--adapter: a running server has its own; name its model with --model instead"
        raise RunFailure(Reason.INVALID_SPEC, words)
    tasks, digest = read_tasks(Path(local_path(str(options.tasks), options.volumes)), options.limit)
    base, folder = local_base(options.base, options.volumes)
    config = load_config(base, folder).get_text_config()
    context = min(options.context or config.max_position_embeddings, config.max_position_embeddings)
    stops = stop_ids(load_template(base, folder), load_tokenizer(base, folder), folder)
    settings = {
        "base": base.name,
        "model": options.adapter or (options.model if options.server else "the base itself"),
        "environment": tasks[0].environment,
        "tasks": digest,
        "limit": options.limit,
        "seed": options.seed,
        "greedy": options.greedy,
        "samples": options.samples,
        "temperature": options.temperature,
        "maxNewTokens": options.max_new_tokens,
        "maxTurns": options.max_turns,
        "context": context,
    }
    sampling = Sampling(options.temperature, 1.0, -1, 0.0, stops, config.vocab_size)
    model = None if options.server else _model(options, base, folder)
    lines: list[dict[str, Any]] = []
    began = time.monotonic()
    async with Workers(checking_settings(tasks[0].environment), options.workers, options.batch) as workers:
        for way, wished in zip(WAYS, (int(options.greedy), options.samples), strict=True):
            if not wished:
                continue
            one = replace(sampling, temperature=0.0) if way == "greedy" else sampling
            rules = EpisodeRules(
                wished,
                options.max_turns,
                options.max_new_tokens,
                context,
                seconds=EPISODE_SECONDS,
                replacements=wished,
                concurrent=options.batch,
            )
            async with _sampler(options, model, base, folder, one) as sampler:
                chat = Chat(load_template(base, folder), stops, "turn", base=base.name)
                engine = Engine(sampler, chat, workers, rules, options.seed)
                groups = await _groups(engine, tasks, way)
            lines += [line for group in groups for line in lines_of(way, group)]
    tokens = sum(line["tokens"] for line in lines)
    seconds = time.monotonic() - began
    print(f"{len(lines)} episodes, {tokens} tokens, {seconds:.0f} s", file=sys.stderr)
    return settings, lines


async def _groups(engine: Engine, tasks: Sequence[Task], way: str) -> list[Group]:
    """Return every task's group, in the order of the tasks."""
    found: list[Group] = []
    async for group in engine.sample(Wanted(task, 0, place) for place, task in enumerate(tasks)):
        found.append(group)
        if len(found) % 50 == 0:
            print(f"{way}: {len(found)} of {len(tasks)} tasks", file=sys.stderr, flush=True)
    return sorted(found, key=lambda group: group.wanted.place)


@asynccontextmanager
async def _sampler(
    options: argparse.Namespace, model: Any, base: BaseRef, folder: Path, sampling: Sampling
) -> AsyncIterator[Client]:
    """Yield what the engine samples with; to it, it is a client."""
    from halo_trainer.evaluation.samplers import ModelSampler, ServerSampler

    if options.server:
        async with http_client() as http:
            name = options.model
            yield cast(Client, ServerSampler(http, options.server, name, sampling, ANSWER_SECONDS))
    else:
        padding = load_tokenizer(base, folder).pad_token_id or 0
        yield cast(Client, ModelSampler(model, sampling, padding, options.batch))


def _model(options: argparse.Namespace, base: BaseRef, folder: Path) -> Any:
    """Return the base, and its adapter if there is one, ready to answer."""
    from halo_trainer.model import load_base, settle_torch
    from halo_trainer.sample import with_adapter

    device = settle_torch()
    base = base.model_copy(update={"dtype": "bf16" if device.type == "cuda" else "fp32"})
    model = load_base(base, folder)
    if options.adapter:
        model = with_adapter(model, Path(local_path(options.adapter, options.volumes)))
    return model.to(device).eval()
