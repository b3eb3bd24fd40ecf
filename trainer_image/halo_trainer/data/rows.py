"""Chat rows: which JSON objects are one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from halo_trainer.data.jsonl import bad_row

ROLES = ("system", "user", "assistant", "tool")
# What apply_chat_template takes for itself, so that it is no setting of a template.
NOT_SETTINGS = ("chat_template", "tokenize", "add_generation_prompt", "continue_final_message", "return_dict")
CALL = 'write each call as {"type": "function", "function": {"name": "...", "arguments": {...}}}'
SHAPE = 'write {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'


@dataclass(frozen=True)
class ChatRow:
    """One conversation; every assistant turn in it trains, except those of weight 0."""

    line: int
    messages: tuple[dict[str, Any], ...]
    trains: tuple[bool, ...]
    tools: list[Any] | None = None
    # What the request gave the template beside its messages and tools: the chat_template_kwargs of vLLM.
    settings: dict[str, Any] | None = None
    # The agent run that this is a step of.
    run: str = ""
    # What the file calls the last message, where that is not its place among the messages.
    answer: str = ""

    def place(self, index: int) -> str:
        """Return where in its row a message stands."""
        return self.answer if self.answer and index == len(self.messages) - 1 else f"messages[{index}]"


def chat_row(line: int, value: Any) -> ChatRow:
    """Check one row; what is wrong is said with the line, what was found and what would do.

    Messages after the last trained answer teach nothing (no token sees what follows it), so they are left off.
    """
    if not isinstance(value, dict):
        raise bad_row(line, f"is {json_kind(value)}, not an object", SHAPE)
    checked = checked_messages(line, value, SHAPE)
    tools = checked_tools(line, value)
    trains = [message["role"] == "assistant" and message.get("weight", 1) != 0 for message in checked]
    if not any(trains):
        found = (
            "no assistant turn of weight 1" if any(m["role"] == "assistant" for m in checked) else "no assistant turn"
        )
        raise bad_row(line, f"has {found}, so nothing to learn", "add the answer to learn, or remove the row")
    for index, message in enumerate(checked):
        if trains[index]:
            check_calls(line, f"messages[{index}]", message, tools)
    end = len(trains) - trains[::-1].index(True)
    return ChatRow(line, weightless(checked[:end]), tuple(trains[:end]), tools, checked_settings(line, value))


def checked_messages(line: int, value: dict[str, Any], shape: str) -> list[dict[str, Any]]:
    """Return the row's messages, if there are some and each may follow the one before."""
    messages = value.get("messages")
    if messages is None:
        raise bad_row(line, f"has no messages (found {some_keys(value)})", shape)
    if not isinstance(messages, list) or not messages:
        raise bad_row(
            line, f"has {'no message' if messages == [] else f'messages that are {json_kind(messages)}'}", shape
        )
    checked = [checked_message(line, f"messages[{index}]", message, shape) for index, message in enumerate(messages)]
    check_order(line, "messages", checked)
    return checked


def check_order(line: int, name: str, messages: Sequence[dict[str, Any]]) -> None:
    """Refuse what no conversation has. Where a system message may stand is the template's to say."""
    roles = [message["role"] for message in messages]
    if roles[0] == "assistant":
        raise bad_row(line, "starts with the assistant's turn", "put what it answers to, a user's message, before it")
    for index, (before, role) in enumerate(itertools.pairwise((None, *roles))):
        if role == before == "assistant":
            cure = "put what it answers to between the two, or write both as one turn"
            raise bad_row(line, f"has in {name}[{index}] the assistant's turn right after its own", cure)
        if role == "tool" and before not in ("assistant", "tool"):
            found = f"after the role {before}" if before else "as the first message"
            cure = "put the assistant's turn that called the tool before it"
            raise bad_row(line, f"has in {name}[{index}] a tool's result {found}", cure)


def weightless(messages: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return the messages as a template takes them."""
    return tuple({key: part for key, part in message.items() if key != "weight"} for message in messages)


def checked_tools(line: int, value: dict[str, Any]) -> list[Any] | None:
    """Return the row's tools, if it has some."""
    tools = value.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise bad_row(line, f"has tools that are {json_kind(tools)}", "write tools as a list of JSON schemas")
    return tools


def checked_settings(line: int, value: dict[str, Any]) -> dict[str, Any] | None:
    """Return the row's settings of the template, if it has some."""
    settings = value.get("chat_template_kwargs")
    if settings is None:
        return None
    if not isinstance(settings, dict):
        found = f"has chat_template_kwargs that are {json_kind(settings)}"
        raise bad_row(line, found, 'write an object, such as {"enable_thinking": false}')
    for name in NOT_SETTINGS:
        if name in settings:
            raise bad_row(line, f"has {name} in chat_template_kwargs", "keep only what the template itself reads")
    return settings


def check_calls(line: int, where: str, message: dict[str, Any], tools: list[Any] | None) -> None:
    """Refuse a call in a trained turn that the model was not offered, or that no template can write."""
    if not isinstance(message.get("tool_calls") or [], list):
        raise bad_row(line, f"has in {where} tool_calls that are {json_kind(message['tool_calls'])}", CALL)
    calls = calls_of(message)
    offered = [function_of(tool).get("name") for tool in tools or []]
    for index, call in enumerate(calls):
        function = function_of(call)
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise bad_row(line, f"has in {where} tool_calls[{index}] without a function's name", CALL)
        if name not in offered:
            known = f"tools has {', '.join(map(str, offered))}"[:80] if offered else "the row has no tools"
            cure = "add the tool's JSON schema to tools, where the model saw it, or remove the row"
            raise bad_row(line, f"calls in {where} the tool {shown(name)}, but {known}", cure)
        if arguments_of(function) is None:
            found = json_kind(function["arguments"])
            found = "text that is no JSON object" if found == "a string" else found
            cure = "write them as a JSON object"
            raise bad_row(line, f"has in {where} arguments of {shown(name)} that are {found}", cure)


def calls_of(message: dict[str, Any]) -> list[Any]:
    """Return the tool calls of a turn."""
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def function_of(tool: Any) -> dict[str, Any]:
    """Return the function that a tool or a call is about; it may be written flat."""
    inner = tool.get("function", tool) if isinstance(tool, dict) else None
    return inner if isinstance(inner, dict) else {}


def arguments_of(function: dict[str, Any]) -> dict[str, Any] | None:
    """Return a call's arguments, which may be written as JSON text; None where they are no object."""
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    return arguments if isinstance(arguments, dict) else None


def checked_message(line: int, where: str, message: Any, shape: str = SHAPE) -> dict[str, Any]:
    """Check one message of a row; `where` is its place in it, `shape` what such a row looks like."""
    if not isinstance(message, dict):
        raise bad_row(line, f"has in {where} {json_kind(message)}, not an object", shape)
    role = message.get("role")
    if role not in ROLES:
        raise bad_row(line, f"has in {where} the role {shown(role)}", f"use one of {', '.join(ROLES)}")
    content = message.get("content")
    calls = message.get("tool_calls")
    for name in ("reasoning_content", "reasoning"):
        if not isinstance(message.get(name) or "", str):
            raise bad_row(
                line, f"has in {where} {name} that is {json_kind(message[name])}", f"write {name} as a string"
            )
    if message.get("weight", 1) not in (0, 1):
        raise bad_row(line, f"has in {where} weight {shown(message['weight'])}", "use 1 to train the turn or 0 not to")
    if content is None and role == "assistant" and isinstance(calls, list) and calls:
        return {**message, "content": ""}
    if not isinstance(content, str):
        raise bad_row(line, f"has in {where} content that is {json_kind(content)}", "write content as a string")
    if role == "assistant" and not content.strip() and not calls:
        raise bad_row(line, f"has in {where} an empty answer", "write the answer to learn, or remove the row")
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
    """Return the value as its row wrote it, cut; of one that is nested too deeply to be written, what it is."""
    try:
        return _cut(json.dumps(value))
    except RecursionError:
        return json_kind(value)


def _cut(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
