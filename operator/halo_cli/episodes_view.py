"""A sampled episode as text: what was asked, said, called and found, and how it was scored. Pure.

What a model sampled may be anything: characters that a terminal would obey are shown as pictures of themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from halo_api.transcript import EpisodeSeen

CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}
ROLES = {"system": "dim", "user": "cyan", "assistant": "magenta", "tool": "blue"}
# C0, DEL, C1, and what turns the direction of writing.
OBEYED = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
OBEYED |= dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)


@dataclass(frozen=True)
class Paint:
    """Colours, where there are any."""

    coloured: bool

    def __call__(self, text: str, *styles: str) -> str:
        if not self.coloured or not text:
            return text
        codes = ";".join(str(CODES[style]) for style in styles)
        return "\n".join(f"\x1b[{codes}m{line}\x1b[0m" if line else line for line in text.split("\n"))


def shown(episode: EpisodeSeen, paint: Paint) -> str:
    """Return an episode as a person reads it."""
    parts = [heading(episode, paint)]
    for message in episode.messages:
        parts += turn(message, paint)
    parts += verdict(episode, paint)
    return "\n".join(parts)


def heading(episode: EpisodeSeen, paint: Paint) -> str:
    """Return the line above an episode."""
    word, colour = outcome(episode)
    facts = [
        f"task {plain(episode.task)}",
        f"sample {episode.sample}",
        *([f"reward {episode.reward:.4g}"] if episode.reward is not None else []),
        f"{episode.turns} turn{'s' if episode.turns != 1 else ''}",
        f"{episode.tokens} tokens",
        *(["cut at a token limit"] if episode.truncated else []),
        f"{episode.seconds:.1f} s",
        *([f"policy {numbers(episode.policies)}"] if episode.policies else []),
        *([f"server {numbers(episode.servers)}"] if episode.servers else []),
    ]
    return f"{paint('━━', 'dim')} {paint(word, 'bold', colour)}  {paint('  '.join(facts), 'bold')}"


def outcome(episode: EpisodeSeen) -> tuple[str, str]:
    """Return how it ended in a word, and that word's colour."""
    if episode.reward is None:
        return "NOT SCORED", "yellow"
    return ("PASSED", "green") if episode.passed else ("FAILED", "red")


def turn(message: dict[str, Any], paint: Paint) -> Iterator[str]:
    """Yield a message: its role, then what it thought, says and calls."""
    role = str(message.get("role", "?"))
    name = f" {plain(str(message['name']))}" if message.get("name") else ""
    yield paint(plain(role) + name, ROLES.get(role, "dim"))
    if thought := message.get("reasoning_content"):
        yield paint(indented(f"thinks: {thought}"), "dim")
    if content := text_of(message.get("content")):
        yield indented(content)
    for call in message.get("tool_calls") or ():
        function = call.get("function", {}) if isinstance(call, dict) else {}
        yield indented(f"→ {function.get('name', '?')} {text_of(function.get('arguments'))}")


def verdict(episode: EpisodeSeen, paint: Paint) -> Iterator[str]:
    """Yield how it was scored: the checks, and why."""
    _, colour = outcome(episode)
    if episode.checks:
        marks = (
            paint(f"{'✓' if held else '✗'} {plain(name)}", "green" if held else "red")
            for name, held in episode.checks.items()
        )
        yield f"{paint('checks', 'dim')}  {'  '.join(marks)}"
    if episode.reward is None:
        yield paint(": ".join(plain(part) for part in (episode.failure or "Unknown", episode.detail) if part), colour)
    elif episode.reason:
        yield paint(plain(episode.reason), colour)


def text_of(value: Any) -> str:
    """Return a message's content as text: it may be a list of parts."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def indented(text: str) -> str:
    """Return text two columns further right."""
    return "\n".join(f"  {line}" for line in plain(text).split("\n"))


def plain(text: str) -> str:
    """Return text with nothing in it that a terminal obeys."""
    return text.translate(OBEYED)


def numbers(found: tuple[int, ...]) -> str:
    """Return numbers as words: 3, or 3 and 4."""
    return " and ".join(map(str, found))
