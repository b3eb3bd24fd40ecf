"""What a server makes of a request before its chat template sees it, so that training renders the very same.

As vLLM does it, which is the server of Halo's own rollouts (vllm/entrypoints/chat_utils.py, `_postprocess_messages`, and
`FunctionDefinition` of its protocol): templates print arguments and tools as JSON, so the order of keys is part of the prompt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from halo_trainer.data.rows import ChatRow, arguments_of

FUNCTION = ("name", "description", "parameters")


def served(row: ChatRow) -> ChatRow:
    """Return the row as its template gets it."""
    messages = tuple(served_message(message) for message in row.messages)
    return replace(row, messages=messages, tools=[served_tool(tool) for tool in row.tools] if row.tools else None)


def served_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as the template gets it: arguments as an object, no empty list of calls, thinking by its two names."""
    if message.get("role") != "assistant":
        return message
    served = dict(message)
    thinking = served.get("reasoning") or served.get("reasoning_content")
    if thinking:
        served["reasoning"] = served["reasoning_content"] = thinking
    calls = served.get("tool_calls")
    if isinstance(calls, list) and calls:
        served["tool_calls"] = [_call(call) for call in calls]
    elif not calls:
        served.pop("tool_calls", None)
    return served


def served_tool(tool: Any) -> Any:
    """Return a tool as the template gets it: name, description and parameters in that order, null where unset."""
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
        return tool
    function = tool["function"]
    known = {name: function.get(name) for name in FUNCTION}
    if function.get("strict") is not None:
        known["strict"] = function["strict"]
    return {"type": "function", "function": known}


def _call(call: Any) -> Any:
    """Arguments that are no object become an empty one: in history a server can't refuse what the model once wrote."""
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return {**call, "function": _call(call["function"])}
    return call if "function" in call else {**call, "arguments": arguments_of(call) or {}}
