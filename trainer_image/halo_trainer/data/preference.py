"""Preference rows, for DPO: a prompt, the answer that was chosen and the one that was rejected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from halo_trainer.data.jsonl import bad_row
from halo_trainer.data.rows import (
    ChatRow,
    check_calls,
    check_order,
    checked_message,
    checked_settings,
    checked_tools,
    json_kind,
    shown,
    some_keys,
)
from halo_trainer.data.template import Template, TokenRow

SHAPE = 'write {"messages": [{"role": "user", "content": "..."}], "chosen": "...", "rejected": "..."}'


@dataclass(frozen=True)
class PreferenceRow:
    """Both answers as conversations, of which only the answer trains."""

    chosen: ChatRow
    rejected: ChatRow


@dataclass(frozen=True, slots=True)
class TokenPair:
    """A pair as the model sees it: two rows with the same prompt."""

    chosen: TokenRow
    rejected: TokenRow

    def __len__(self) -> int:
        """The longer of the two: what limits are about."""
        return max(len(self.chosen), len(self.rejected))

    @property
    def tokens(self) -> int:
        """The tokens of both."""
        return len(self.chosen) + len(self.rejected)

    @property
    def trained_tokens(self) -> int:
        """The answers' tokens."""
        return self.chosen.trained_tokens + self.rejected.trained_tokens

    @property
    def teaches(self) -> bool:
        """Whether something of both answers is left, and not the same of both."""
        return self.chosen.teaches and self.rejected.teaches and self.chosen.ids != self.rejected.ids

    def truncated(self, length: int) -> TokenPair:
        """Return the pair with both rows cut at the end."""
        return TokenPair(self.chosen.truncated(length), self.rejected.truncated(length))


def preference_row(line: int, value: Any) -> PreferenceRow:
    """Check one row; what is wrong is said with the line, what was found and what would do."""
    if not isinstance(value, dict):
        raise bad_row(line, f"is {json_kind(value)}, not an object", SHAPE)
    if not {"chosen", "rejected"} & value.keys():
        raise bad_row(line, f"is no pair: it has neither chosen nor rejected (found {some_keys(value)})", SHAPE)
    prompt = _prompt(line, value)
    tools = checked_tools(line, value)
    chosen, rejected = (_answer(line, name, value) for name in ("chosen", "rejected"))
    if chosen == rejected:
        cure = "write two answers that differ, or remove the row"
        raise bad_row(line, "has the same answer as chosen and as rejected, so nothing to prefer", cure)
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        check_calls(line, name, answer, tools)
    trains = (*(False for _ in prompt), True)
    settings = checked_settings(line, value)
    return PreferenceRow(
        ChatRow(line, (*prompt, chosen), trains, tools, settings, answer="chosen"),
        ChatRow(line, (*prompt, rejected), trains, tools, settings, answer="rejected"),
    )


def token_pair(template: Template, row: PreferenceRow) -> TokenPair:
    """Render and tokenise both answers behind their prompt; a template may strip what they differ by."""
    pair = TokenPair(template.token_row(row.chosen), template.token_row(row.rejected))
    if not pair.teaches:
        found = "has two answers that are the same text as the base's chat template writes them, so nothing to prefer"
        raise bad_row(row.chosen.line, found, "write two answers that differ, or remove the row")
    return pair


def _prompt(line: int, value: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what both answers reply to: `messages`, or `prompt`, as a list of messages or one user's words."""
    named = [name for name in ("messages", "prompt") if value.get(name) is not None]
    if not named:
        raise bad_row(line, f"has neither messages nor prompt (found {some_keys(value)})", SHAPE)
    if len(named) == 2:
        raise bad_row(line, "has both messages and prompt", "keep the one that both answers reply to")
    name = named[0]
    found = value[name]
    if name == "prompt" and isinstance(found, str):
        found = [{"role": "user", "content": found}]
    if not isinstance(found, list) or not found:
        raise bad_row(line, f"has in {name} {'no message' if found == [] else json_kind(found)}", SHAPE)
    checked = [_checked(line, f"{name}[{index}]", message) for index, message in enumerate(found)]
    check_order(line, name, checked)
    if checked[-1]["role"] == "assistant":
        cure = f"end {name} with what both answers reply to"
        raise bad_row(line, f"has in {name} the assistant's turn as the last", cure)
    return checked


def _answer(line: int, name: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return one answer as a message; it may be written as its text, as a message, or as a list of one message."""
    found = value.get(name)
    if found is None:
        raise bad_row(line, f"has no {name} (found {some_keys(value)})", SHAPE)
    if isinstance(found, list):
        if len(found) != 1:
            cure = "write the one answer, and put what comes before it into messages"
            raise bad_row(line, f"has in {name} {len(found)} messages", cure)
        found = found[0]
    message = {"role": "assistant", "content": found} if isinstance(found, str) else found
    if isinstance(message, dict) and message.get("role") != "assistant":
        raise bad_row(line, f"has in {name} the role {shown(message.get('role'))}", "use assistant")
    return _checked(line, name, message)


def _checked(line: int, where: str, message: Any) -> dict[str, Any]:
    checked = checked_message(line, where, message, SHAPE)
    return {key: part for key, part in checked.items() if key != "weight"}
