"""Tables of what is refused, each row beside the good counterpart of its rule; docs/refusals.md is generated from them.

Rows of two shapes, in modules named for what refuses:

- `schema_*.py` has `ROWS: list[Refused]`: objects that the API server itself refuses, with no operator running. `bad` and
  `good` are whole objects; tests/api applies both with --dry-run=server.
- `world_*.py` has `ROWS: list[InWorld]` and `refusal(world)`: pure worlds that a check refuses. `bad` and `good` are worlds
  with a `spec` (RunWorld, or whatever `refusal` takes); `refusal` returns the Refusal of `bad` and None for `good`.

What the page shows of a row are the spec's lines in which `bad` differs from `good`, those of `also`, and what is answered.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Body = dict[str, Any]
World = TypeVar("World")


@dataclass(frozen=True)
class Refused:
    """An object that the schema refuses; every one of `words` stands in the answer."""

    what: str
    bad: Body
    good: Body
    words: tuple[str, ...]
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class InWorld(Generic[World]):
    """A world that a check refuses; `given` says in a few words what the page can't see in the spec."""

    what: str
    bad: World
    good: World
    reason: str
    words: tuple[str, ...]
    given: str = ""
    code: int = 400
    pending: bool = False
    also: tuple[str, ...] = ()


def at(body: Body, path: str, value: Any) -> Body:
    """Return a copy with the value at a dotted path; None takes it away."""
    body = copy.deepcopy(body)
    where = body
    *parents, last = path.split(".")
    for parent in parents:
        where = where.setdefault(parent, {})
    if value is None:
        where.pop(last, None)
    else:
        where[last] = value
    return body


def leaves(body: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf with its dotted path; a list is one."""
    if isinstance(body, dict) and body:
        for key, value in body.items():
            yield from leaves(value, f"{path}.{key}" if path else key)
    else:
        yield path, body


def lines(bad: Body, good: Body, also: tuple[str, ...] = ()) -> list[str]:
    """Return the lines of `bad` that differ from `good`, and those at `also`, as one reads them aloud."""
    found, wanted = dict(leaves(bad)), dict(leaves(good))
    shown = [path for path, value in found.items() if path in also or wanted.get(path, ...) != value]
    missing = [path for path in wanted if path not in found and not any(p.startswith(f"{path}.") for p in found)]
    return [f"{path}: {short(found[path])}" for path in shown] + [f"(no {path})" for path in missing]


def short(value: Any) -> str:
    """Write a value as YAML would, cut where it is long."""
    text = value if isinstance(value, str) and value else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:40]}… ({len(text)} characters)"
