"""One case: its rows, the sides that train them, and what comes of it."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from halo_trainer.gauges import peak_flops

from . import bases, figures
from .rows import AgentRuns, Case, Chats, chat_rows, conversations, step_rows, write_rows
from .sides import Side, in_turn, say, start

SEED = 0
# Our side as it is where nobody chooses anything: speed and memory are both held to it.
OURS = "Halo"
# Tokens of a pack on a CPU: TRL's default maxLength. On a GPU it is the longest row.
CPU_PACK = 1024
GPU_STEP = 65536


@dataclass(frozen=True)
class Base:
    """What both sides load."""

    words: str
    shape: bases.Shape
    vocabulary: list[str]
    gpu: str
    quick: bool


@dataclass(frozen=True)
class Measured:
    """A case, how fast each side was, and ours with its defaults held against the fastest of TRL's."""

    name: str
    case: str
    longest: int
    speeds: dict[str, Any]
    found: dict[str, Any] = field(default_factory=dict)


def ready_base(folder: Path, quick: bool) -> Base:
    """Lay the base down as the volume `models`."""
    place = folder / "models" / "base"
    place.parent.mkdir()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    shape = bases.TINY if quick else bases.LARGE if gpu else bases.SMALL
    real = bases.real_base() if shape is bases.SMALL else None
    if real:
        bases.take(real, place)
    else:
        say(f"random weights of {shape.name}")
        bases.make(shape, place, "cuda" if gpu else "cpu")
    words = f"{shape.name}, {'its own' if real else 'random'} weights, {shape.dtype}"
    return Base(words, shape, bases.words_of(place), gpu, quick)


def cases(wanted: list[str] | None, rows: list[int] | None, quick: bool, base: Base) -> Iterator[Case]:
    """Yield the cases: on a CPU of short rows, so that a step is of seconds; on a GPU of rows up to each length."""
    if quick:
        found: list[Case] = [Chats(4, 48, 96), AgentRuns(1, 24, 6, 6)]
    elif not base.gpu:
        # Eight steps with 24 words of answer and 40 of what it led to have 5.2 times the tokens of the last.
        found = [Chats(8, 180, 500), AgentRuns(2, 128, 24, 40)]
    else:
        found = []
        for longest in rows or (4096, 16384, 32768):
            batch = GPU_STEP // longest
            found += [
                Chats(4 * batch, longest // 4, longest - 64),
                AgentRuns(batch, longest // 6, longest // 32, longest // 16),
            ]
    return (case for case in found if case.name in (wanted or case.name))


def measure(case: Case, base: Base, folder: Path, rounds: int, warm: int, only: list[str] | None) -> Measured:
    """Let every side train the same rows, and hold ours with its defaults against the fastest of TRL's."""
    longest = longest_of(case)
    name = f"{case.name}, up to {longest}" if base.gpu else case.name
    data = folder / "data"
    data.mkdir(exist_ok=True)
    talks = conversations(case, rounds * case.batch, base.vocabulary, SEED)
    write_rows(data / f"{case.name}.jsonl", step_rows(talks) if case.steps > 1 else chat_rows(talks))
    settings = sides(case, base, folder, rounds, longest)
    if only:
        settings = {side: one for side, one in settings.items() if any(fnmatchcase(side, wanted) for wanted in only)}
    say(f"{name}: {', '.join(settings)}")
    done: list[Side] = []
    try:
        # A GPU is nobody else's, and would have to hold all sides at once.
        for together in [[one] for one in settings] if base.gpu else [list(settings)]:
            started = [start(side, settings[side], folder, None if base.gpu else 1) for side in together]
            done += started
            in_turn(started, rounds)
            for side in started:
                side.end()
    finally:
        for side in done:
            side.kill()
    gpu = bool(base.gpu)
    ours = figures.fastest([side for side in done if side.name == OURS], warm, gpu)
    best = figures.fastest([side for side in done if side.name.startswith("TRL")], warm, gpu)
    speeds = {side.name: figures.speed(side, warm) for side in done}
    found: dict[str, Any] = {}
    if ours and best:
        found = figures.compared(ours, best, warm, gpu)
        if gpu:
            found["mfu"] = figures.mfu(ours, warm, peak_flops(base.gpu, base.shape.dtype))
    return Measured(name, case.name, longest, speeds, found)


def longest_of(case: Case) -> int:
    """Return the tokens of the longest row, about."""
    if isinstance(case, Chats):
        return case.longest + 64
    return case.prompt + case.steps * (case.answer + case.observation)


def sides(case: Case, base: Base, folder: Path, rounds: int, longest: int) -> dict[str, dict[str, Any]]:
    """Return the settings of each side, by its name: ours, and TRL's with what its documentation says makes it fast."""

    def settings(kind: str, micro_batch: int, packing: bool = True, **more: Any) -> dict[str, Any]:
        run = run_file(case, base, rounds, micro_batch, packing)
        config = base.shape.config | {"model_type": base.shape.architecture}
        common = {"kind": kind, "run": run, "volumes": str(folder), "config": config, "rows": case.steps}
        return common | more

    words = sum(sum(map(sum, case.turns(random.Random(SEED)))) * case.batch for _ in range(8)) / 8
    tokens = words * (1 if case.steps == 1 else (case.steps + 1) / 2)
    packs = max(round(tokens / (longest if base.gpu else CPU_PACK)), 1)
    plain = {"gradient_checkpointing": False}
    wanted: dict[str, dict[str, Any]] = {
        "TRL packed": {"packs": packs} | plain,
        "TRL a row a pass": {"per_device_train_batch_size": 1} | plain,
        "TRL packed, checkpointed (its default)": {"packs": packs, "gradient_checkpointing": True},
    }
    if base.gpu and importlib.util.find_spec("flash_attn"):
        wanted = {side: options | {"attention": "flash_attention_2"} for side, options in wanted.items()}
    if base.gpu and importlib.util.find_spec("liger_kernel"):
        wanted |= {f"{side}, liger": options | {"use_liger_kernel": True} for side, options in wanted.items()}
    if base.quick:
        del wanted["TRL packed, checkpointed (its default)"]
    ours = {OURS: settings("ours", 1)}
    if not base.quick:
        ours["Halo, microBatch 2"] = settings("ours", 2)
        ours["Halo, microBatch 2, padded"] = settings("ours", 2, packing=False)
    return ours | {side: settings("theirs", 1, options=options) for side, options in wanted.items()}


def run_file(case: Case, base: Base, rounds: int, micro_batch: int, packing: bool) -> dict[str, Any]:
    """Return the run file of a side; TRL's takes from it what it has in common with ours."""
    context = base.shape.config["max_position_embeddings"]
    return {
        "role": "train",
        "run": {"kind": "TrainingJob", "namespace": "bench", "name": "bench", "uid": "bench", "attempt": 1},
        "base": {
            "name": "base",
            "source": "pvc://models/base",
            "revision": "0000000",
            "dtype": base.shape.dtype,
            "contextLength": context,
        },
        "data": {"name": "rows", "kind": "chat", "source": f"pvc://data/{case.name}.jsonl"},
        "train": {
            "steps": rounds,
            "batch": case.batch,
            "saveSteps": rounds,
            "seed": SEED,
            "output": "pvc://artifacts/run",
            "lora": {
                "dataset": "rows",
                "rank": 16,
                "alpha": 32,
                "learningRate": 2e-4,
                "schedule": "constant",
                "maxLength": context,
                "microBatch": micro_batch,
                "packing": packing,
                **({"bundle": case.steps} if case.steps > 1 else {}),
            },
        },
    }
