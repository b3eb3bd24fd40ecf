"""Chat rows: which JSON objects are one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from halo_trainer.data.jsonl import bad_row

ROLES = ("system", "user", "assistant", "tool")
SHAPE = 'write {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'


@dataclass(frozen=True)
class ChatRow:
    """One conversation; every assistant turn in it trains, except those of weight 0."""

    line: int
    messages: tuple[dict[str, Any], ...]
    trains: tuple[bool, ...]
    tools: list[Any] | None = None


def chat_row(line: int, value: Any) -> ChatRow:
    """Check one row; what is wrong is said with the line, what was found and what would do.

    Messages after the last trained answer teach nothing (no token sees what follows it), so they are left off.
    """
    if not isinstance(value, dict):
        raise bad_row(line, f"is {json_kind(value)}, not an object", SHAPE)
    messages = value.get("messages")
    if messages is None:
        raise bad_row(line, f"has no messages (found {some_keys(value)})", SHAPE)
    if not isinstance(messages, list) or not messages:
        raise bad_row(
            line, f"has {'no message' if messages == [] else f'messages that are {json_kind(messages)}'}", SHAPE
        )
    tools = checked_tools(line, value)
    checked = [checked_message(line, f"messages[{index}]", message) for index, message in enumerate(messages)]
    if checked[0]["role"] == "assistant":
        raise bad_row(line, "starts with the assistant's turn", "put what it answers to, a user's message, before it")
    trains = [message["role"] == "assistant" and message.get("weight", 1) != 0 for message in checked]
    if not any(trains):
        found = (
            "no assistant turn of weight 1" if any(m["role"] == "assistant" for m in checked) else "no assistant turn"
        )
        raise bad_row(line, f"has {found}, so nothing to learn", "add the answer to learn, or remove the row")
    end = len(trains) - trains[::-1].index(True)
    kept = tuple({key: part for key, part in message.items() if key != "weight"} for message in checked[:end])
    return ChatRow(line, kept, tuple(trains[:end]), tools)


def checked_tools(line: int, value: dict[str, Any]) -> list[Any] | None:
    """Return the row's tools, if it has some."""
    tools = value.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise bad_row(line, f"has tools that are {json_kind(tools)}", "write tools as a list of JSON schemas")
    return tools


def checked_message(line: int, where: str, message: Any, shape: str = SHAPE) -> dict[str, Any]:
    """Check one message of a row; `where` is its place in it, `shape` what such a row looks like."""
    if not isinstance(message, dict):
        raise bad_row(line, f"has in {where} {json_kind(message)}, not an object", shape)
    role = message.get("role")
    if role not in ROLES:
        raise bad_row(line, f"has in {where} the role {shown(role)}", f"use one of {', '.join(ROLES)}")
    content = message.get("content")
    calls = message.get("tool_calls")
    if content is None and role == "assistant" and isinstance(calls, list) and calls:
        return {**message, "content": ""}
    if not isinstance(content, str):
        raise bad_row(line, f"has in {where} content that is {json_kind(content)}", "write content as a string")
    if role == "assistant" and not content.strip() and not calls:
        raise bad_row(line, f"has in {where} an empty answer", "write the answer to learn, or remove the row")
    if message.get("weight", 1) not in (0, 1):
        raise bad_row(line, f"has in {where} weight {shown(message['weight'])}", "use 1 to train the turn or 0 not to")
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise bad_row(line, f"has in {where} half a surrogate pair", "write the character whole") from error
    return message


def some_keys(value: dict[str, Any]) -> str:
    """Return a few of an object's keys, in words."""
    return _cut(", ".join(key[:40] for key in list(value)[:5])) or "no keys"


def json_kind(value: Any) -> str:
    """Return what a JSON value is, in words."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def shown(value: Any) -> str:
    """Return the value as its row wrote it, cut."""
    return _cut(json.dumps(value))


def _cut(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
