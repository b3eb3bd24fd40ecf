"""Agent-run rows: one line is one step, which is what the model saw and the answer that it gave; only the answer trains."""

from __future__ import annotations

from typing import Any

from halo_trainer.data.jsonl import bad_row
from halo_trainer.data.rows import (
    ChatRow,
    chat_row,
    check_calls,
    check_order,
    checked_message,
    checked_messages,
    checked_settings,
    checked_tools,
    json_kind,
    shown,
    some_keys,
    weightless,
)

SHAPE = (
    'write {"run": "...", "messages": [{"role": "user", "content": "..."}], '
    '"answer": {"role": "assistant", "content": "..."}}'
)
KINDS = {False: "a chat row", True: "a step of an agent run"}


class ChatLines:
    """The check of a data set of kind chat: its first line decides whether it has chats or steps, and no file has both."""

    def __init__(self) -> None:
        self._first: tuple[int, bool] | None = None

    def row(self, line: int, value: Any) -> ChatRow:
        """Check one line; lines come in the order of the file."""
        if is_pair(value):
            cure = "put pairs into a Dataset of kind preference, or write the answer to learn into messages"
            raise bad_row(line, "is a pair (it has chosen and rejected) in a Dataset of kind chat", cure)
        steps = is_step(value)
        if self._first is None:
            self._first = (line, steps)
        first, wanted = self._first
        if isinstance(value, dict) and steps != wanted:
            found = f"is {KINDS[steps]}, and line {first} is {KINDS[wanted]} (which has a run and an answer)"
            if steps:
                found = f"is {KINDS[steps]} (it has a run and an answer), and line {first} is {KINDS[wanted]}"
            raise bad_row(line, found, "keep them in two files")
        return step_row(line, value) if wanted else chat_row(line, value)


def is_step(value: Any) -> bool:
    """Whether an object is meant as a step: it names its run, or its answer stands beside its messages."""
    return isinstance(value, dict) and ("run" in value or {"answer", "messages"} <= value.keys())


def is_pair(value: Any) -> bool:
    """Whether an object is meant as a pair: it has both answers, and no other one in its messages."""
    if not isinstance(value, dict) or not {"chosen", "rejected"} <= value.keys():
        return False
    messages = value.get("messages")
    told = messages if isinstance(messages, list) else []
    return not any(isinstance(message, dict) and message.get("role") == "assistant" for message in told[-1:])


def step_row(line: int, value: Any) -> ChatRow:
    """Check one step; what is wrong is said with the line, what was found and what would do."""
    if not isinstance(value, dict):
        raise bad_row(line, f"is {json_kind(value)}, not an object", SHAPE)
    run = value.get("run")
    if run is None:
        raise bad_row(line, f"has no run (found {some_keys(value)})", SHAPE)
    if not isinstance(run, str):
        raise bad_row(line, f"has a run that is {json_kind(run)}", "write the run's id as a string")
    if not run.strip():
        raise bad_row(line, "has an empty run", "write the run's id, the same in all of its steps")
    messages = checked_messages(line, value, SHAPE)
    tools = checked_tools(line, value)
    answer = _answer(line, value)
    if messages[-1]["role"] == "assistant":
        cure = "end messages with what the answer replies to"
        raise bad_row(line, "has in messages the assistant's turn as the last", cure)
    check_order(line, "messages", [*messages, answer])
    check_calls(line, "answer", answer, tools)
    trains = (*(False for _ in messages), True)
    settings = checked_settings(line, value)
    return ChatRow(line, weightless([*messages, answer]), trains, tools, settings, run, "answer")


def _answer(line: int, value: dict[str, Any]) -> dict[str, Any]:
    answer = value.get("answer")
    if answer is None:
        raise bad_row(line, f"has no answer (found {some_keys(value)})", SHAPE)
    if isinstance(answer, dict) and answer.get("role") != "assistant":
        raise bad_row(line, f"has in answer the role {shown(answer.get('role'))}", "use assistant")
    checked = checked_message(line, "answer", answer, SHAPE)
    if checked.get("weight", 1) == 0:
        raise bad_row(line, "has an answer of weight 0, so nothing to learn", "remove the row")
    return checked
