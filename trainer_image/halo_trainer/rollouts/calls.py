"""Tool calls in a sampled answer: found as a server's parser finds them, or told to the model as its mistake. Pure.

A call stands between <tool_call> tags, as JSON (Hermes, Qwen3) or as <function=NAME><parameter=NAME>VALUE (Qwen3.5 and
later); whichever the base's template shows the model, both are read. Thinking calls nothing.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from halo_trainer.data.rows import function_of

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, THOUGHT = "<think>", "</think>"
FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """A call of the model's; with `problem`, one that can't be done, and why: that is for the model to read."""

    name: str
    arguments: dict[str, Any]
    problem: str | None = None


@dataclass(frozen=True)
class Reply:
    """A sampled answer as its readers see it: what it thought, what it says, and what it calls."""

    thinking: str | None
    content: str
    calls: tuple[Call, ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        """The chat message that a server would keep of it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.thinking:
            message["reasoning_content"] = self.thinking
        good = [tool_call(at, call) for at, call in enumerate(self.calls) if call.problem is None]
        if good:
            message["tool_calls"] = good
        return message


def tool_call(at: int, call: Call) -> dict[str, Any]:
    """Return a call as chat messages have it; some templates want an id of nine characters."""
    return {"id": call_id(at), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def call_id(at: int) -> str:
    """Return the id of a turn's call."""
    return f"call{at:05d}"


def reply_of(text: str, tools: Sequence[dict[str, Any]], thinks: bool) -> Reply:
    """Read an answer's text; `thinks`: its prompt ends within thinking. Thinking that has no end leaves nothing said."""
    thinking, found, content = text.rpartition(THOUGHT)
    if not found and (thinks or text.lstrip().startswith(THINK)):
        thinking, content = text, ""
    thinking = thinking.strip().removeprefix(THINK).strip()
    if not tools:
        return Reply(thinking or None, content.strip())
    said, *parts = content.split(OPEN)
    calls = tuple(_call(part, tools) for part in parts)
    # What can't be read stays in what was said, as a server leaves it there.
    kept = "".join(OPEN + part for part, call in zip(parts, calls, strict=True) if call.problem is not None)
    return Reply(thinking or None, (said + kept).strip(), calls)


def _call(part: str, tools: Sequence[dict[str, Any]]) -> Call:
    inner, closed, _ = part.partition(CLOSE)
    if not closed:
        return _bad(f"{OPEN} has no {CLOSE} behind it; close every call")
    schemas = {str(function_of(tool).get("name")): function_of(tool).get("parameters") or {} for tool in tools}
    marked = FUNCTION.fullmatch(inner)
    if marked:
        name = marked[1].strip()
        call = Call(name, _marked_arguments(marked[2], schemas.get(name, {})))
    else:
        call = _json_call(inner)
    if call.problem is None and not _is_text(call):
        return Call(call.name, {}, "the call has half a surrogate pair; write the character whole")
    if call.problem is None and call.name not in schemas:
        return Call(call.name, call.arguments, f"there is no tool {call.name}; the tools are {', '.join(schemas)}")
    return call


def _json_call(text: str) -> Call:
    shape = 'write {"name": ..., "arguments": {...}}'
    try:
        value = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        return _bad(f"the call is no JSON ({error}); {shape}")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return _bad(f"the call has no name; {shape}")
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return Call(value["name"], {}, f"the call's arguments are no object; {shape}")
    return Call(value["name"], arguments)


def _marked_arguments(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Read parameters that are marked: text where the schema wants text, else JSON where it is some."""
    kinds = schema.get("properties") or {}
    found: dict[str, Any] = {}
    for name, value in PARAMETER.findall(text):
        found[name] = value
        if (kinds.get(name) or {}).get("type") != "string":
            with contextlib.suppress(ValueError, RecursionError):
                found[name] = json.loads(value, parse_constant=_no_number)
    return found


def _is_text(call: Call) -> bool:
    """Whether tokenizers and files can take it: JSON may name half a character."""
    try:
        json.dumps([call.name, call.arguments], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _bad(problem: str) -> Call:
    return Call("", {}, problem)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")
