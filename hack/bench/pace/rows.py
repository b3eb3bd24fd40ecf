"""The rows of both cases, as the JSONL that either side reads: chats, and agent runs of several steps."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A conversation: what is said, and what is answered, in words.
Turns = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Chats:
    """Plain chats of one to three turns; lengths in words are log-normal around a median, and answers are most of them."""

    batch: int
    median: int
    longest: int

    name = "chat"
    steps = 1

    def turns(self, chance: random.Random) -> Turns:
        words = min(max(int(math.exp(chance.gauss(math.log(self.median), 0.7))), 16), self.longest)
        count = chance.choice((1, 1, 2, 3))
        each = max(words // count, 8)
        answered = chance.uniform(0.5, 0.8)
        return [(each - int(each * answered), int(each * answered)) for _ in range(count)]


@dataclass(frozen=True)
class AgentRuns:
    """Runs of eight steps: a long first prompt, then an answer and what it led to, again and again."""

    batch: int
    prompt: int
    answer: int
    observation: int

    name = "agent"
    steps = 8

    def turns(self, chance: random.Random) -> Turns:
        def about(words: int) -> int:
            return max(int(words * chance.uniform(0.8, 1.2)), 4)

        return [(about(self.observation if step else self.prompt), about(self.answer)) for step in range(self.steps)]


Case = Chats | AgentRuns


def conversations(case: Case, count: int, words: Sequence[str], seed: int) -> list[list[str]]:
    """Return that many conversations: texts, every second one an answer. Words are as unlike in number as in a language."""
    chance = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(len(words))]

    def text(length: int) -> str:
        return " ".join(chance.choices(words, weights, k=length))

    return [[text(length) for turn in case.turns(chance) for length in turn] for _ in range(count)]


def chat_rows(talks: Iterable[Sequence[str]]) -> list[dict[str, Any]]:
    """Return a row a conversation, of which every answer trains."""
    return [{"messages": messages(talk)} for talk in talks]


def step_rows(talks: Iterable[Sequence[str]]) -> list[dict[str, Any]]:
    """Return a row for every answer of an agent run, with what the model saw."""
    rows = []
    for number, talk in enumerate(talks):
        for end in range(2, len(talk) + 1, 2):
            *seen, answer = messages(talk[:end])
            rows.append({"run": f"run-{number}", "messages": seen, "answer": answer})
    return rows


def messages(texts: Sequence[str]) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def balanced_packs(lengths: Sequence[int], packs: int) -> list[list[int]]:
    """Deal rows out to packs of nearly the same length, longest first; return the places of each pack's rows."""
    dealt: list[list[int]] = [[] for _ in range(packs)]
    filled = [0] * packs
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        emptiest = min(range(packs), key=lambda pack: filled[pack])
        dealt[emptiest].append(place)
        filled[emptiest] += lengths[place]
    return [pack for pack in dealt if pack]
