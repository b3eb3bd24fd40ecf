"""An episode's conversation as tokens: what a turn is sampled behind, by the base's own chat template.

The first prompt is rendered. What a later one adds is the template's own text between an answer's end-of-turn token and the
next answer; it is found by rendering a stand-in answer with as many calls, so that no word of the model's is in it, and goes
behind the tokens that were sampled. So no answer is ever tokenised again, and an episode is one growing row.

Some templates write earlier turns otherwise once more follow (Qwen3 without thinking): no row can grow behind them. There each
prompt is rendered anew from what was said, as their server does it. That is exact for rows of one turn, each of which keeps
its own prompt, and is refused for rows of a whole trajectory.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from halo_api.conditions import Reason
from halo_trainer.data.template import Template
from halo_trainer.failures import RunFailure
from halo_trainer.rollouts.calls import OPEN, THINK, Call, Reply, call_id, reply_of, tool_call


def _result(at: int, content: str, name: str = "look_up") -> dict[str, Any]:
    # Half a character, which JSON may name, is no text for a tokenizer.
    content = content.encode("utf-8", "replace").decode()
    return {"role": "tool", "tool_call_id": call_id(at), "name": name or "unknown", "content": content}


TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
PROBE = [{"role": "user", "content": "Which colour has snow?"}]
RESULTS = [[_result(0, "White.")], [_result(0, "White."), _result(1, "Grey.")]]
KEPT_OPENINGS = 64
# What a stand-in may have thought, and whether its template writes that down.
THOUGHTS = ("Look it up.", None)


def stop_ids(template: Template, tokenizer: Any, folder: Path) -> tuple[int, ...]:
    """Return the tokens that end a turn of a base: those that its own files name, and the one that its template writes."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            told = json.loads((folder / name).read_text()).get("eos_token_id")
            found.update(told if isinstance(told, list) else [told])
    found.add(tokenizer.eos_token_id)
    answered = template.text([*PROBE, {"role": "assistant", "content": "White."}])
    behind = template.ids(answered[answered.rfind("White.") + len("White.") :])
    found.update(token for token in behind[:1] if token in template.special)
    return tuple(sorted(found - {None}))


class Chat:
    """Conversations with one base. `settings` are its template's, such as enable_thinking."""

    def __init__(
        self,
        template: Template,
        stops: Sequence[int],
        layout: Literal["turn", "trajectory"],
        thinking: bool | None = None,
        base: str = "",
    ) -> None:
        """`stops`: the tokens that end a turn. Raises RunFailure where rows of this layout can't be made."""
        self._template, self._stops = template, tuple(stops)
        self.settings = None if thinking is None else {"enable_thinking": thinking}
        self._openings: dict[str, array[int]] = {}
        # Only calls that can be read again are any.
        self.takes_tools = self._tells_tools()
        # What a stand-in thinks for its template to go on from a prompt; without: it rewrites.
        self._thought = self._growing() if self.takes_tools else None
        self.grows = not self.takes_tools or self._thought is not None
        self._looks_back = self._thought is None or self._after(RESULTS) != self._after(RESULTS[1:])
        if not self.grows and layout == "trajectory":
            raise RunFailure(
                Reason.TEMPLATE_MISMATCH,
                f"the chat template of base {base} writes earlier turns otherwise once a tool has answered, so an episode "
                "is no single row; choose a recipe with a row a turn, or a base whose template keeps what was said",
            )

    def opening(self, messages: list[dict[str, Any]], tools: list[Any]) -> array[int]:
        """Return the first prompt of a conversation; the episodes of a group all ask for the same one."""
        key = json.dumps([messages, tools])
        if key not in self._openings:
            while len(self._openings) >= KEPT_OPENINGS:
                del self._openings[next(iter(self._openings))]
            self._openings[key] = array("i", self.prompt(messages, tools))
        return self._openings[key]

    def open(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> Conversation:
        """Begin a conversation; a base whose template takes no tools, or writes calls in other words, has none."""
        return Conversation(self, list(messages), list(tools) if self.takes_tools else [])

    def reply(self, answer: array[int], tools: Sequence[dict[str, Any]], thinks: bool) -> Reply:
        """Read a sampled answer, without the token that ended it."""
        said = answer[:-1] if answer and answer[-1] in self._stops else answer
        return reply_of(self._template.decode(said.tolist()), tools, thinks)

    def prompt(self, messages: list[dict[str, Any]], tools: list[Any]) -> list[int]:
        """Return the ids that an answer to messages is sampled behind."""
        return self._template.ids(self._text(messages, tools, prompt=True))

    def thinks(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends within thinking."""
        return self._template.decode(list(prompt[-8:])).rstrip().endswith(THINK)

    def added(
        self, turns: list[list[dict[str, Any]]], opening: list[dict[str, Any]], tools: list[Any], last: int
    ) -> list[int]:
        """Return what the template adds behind an answer that ended in token `last`: tools' results, and a new turn's beginning.

        `turns` are the results of each turn so far.
        """
        # Mostly no turn before the last has a say in it, and a long conversation need not be rendered again for each.
        if not self._looks_back:
            turns, opening, tools = turns[-1:], PROBE, [TOOL]
        text = self._delta(turns, opening, tools, self._thought)
        if text is None:
            raise RunFailure(
                Reason.TEMPLATE_MISMATCH, "the chat template wrote earlier turns otherwise than at the start"
            )
        ids = self._template.ids(text)
        return ids[1:] if ids and ids[0] == last else ids

    def _tells_tools(self) -> bool:
        """Whether the template tells the model of tools, and writes calls between the tags that answers are read by."""
        try:
            told = self._text(PROBE, [TOOL]) != self._text(PROBE, None)
            return told and OPEN in self._text([*PROBE, _stand_in(1, None)], [TOOL])
        except RunFailure:
            # Some raise an error for what they do not take.
            return False

    def _growing(self) -> str | None:
        """Return the thought with which this template only ever adds text, in two turns of one and of two calls."""
        for thought in THOUGHTS:
            if all(self._delta(RESULTS[:count], PROBE, [TOOL], thought) is not None for count in (1, 2)):
                return thought or ""
        return None

    def _after(self, turns: list[list[dict[str, Any]]]) -> str | None:
        return self._delta(turns, PROBE, [TOOL], self._thought)

    def _delta(
        self, turns: list[list[dict[str, Any]]], opening: list[dict[str, Any]], tools: list[Any], thought: str | None
    ) -> str | None:
        """Return the text from the end of the last answer to the next; None where the template rewrites what was before it."""
        history = list(opening)
        for results in turns[:-1]:
            history += [_stand_in(len(results), thought), *results]
        answered = [*history, _stand_in(len(turns[-1]), thought)]
        prompt = self._text(history, tools, prompt=True)
        through = self._text(answered, tools)
        whole = self._text([*answered, *turns[-1]], tools, prompt=True)
        if not through.startswith(prompt) or not whole.startswith(through):
            return None
        ends = [through.rfind(self._template.decode([stop])) for stop in self._stops]
        end = max(ends, default=-1)
        return whole[end if end >= len(prompt) else len(through) :]

    def _text(self, messages: list[dict[str, Any]], tools: list[Any] | None, prompt: bool = False) -> str:
        return self._template.text(messages, tools or None, self.settings, prompt)


class Conversation:
    """One episode's: the prompt of its next turn, and what was said for a person to read."""

    def __init__(self, chat: Chat, messages: list[dict[str, Any]], tools: list[Any]) -> None:
        self._chat, self._opening, self._tools = chat, messages, tools
        self._results: list[list[dict[str, Any]]] = []
        self.messages = list(messages)
        self.prompt = chat.opening(messages, tools)

    def answered(self, answer: array[int]) -> Reply:
        """Take what was sampled behind the prompt."""
        reply = self._chat.reply(answer, self._tools, self._chat.thinks(self.prompt))
        self.messages.append(reply.message)
        return reply

    def observed(self, answer: array[int], contents: Sequence[tuple[Call, str]]) -> None:
        """Take what the answer's calls gave, each in its order; the next prompt is there then."""
        results = [_result(at, content, call.name) for at, (call, content) in enumerate(contents)]
        self._results.append(results)
        self.messages += results
        if self._chat.grows:
            added = self._chat.added(self._results, self._opening, self._tools, answer[-1])
            self.prompt = self.prompt + answer + array("i", added)
        else:
            self.prompt = array("i", self._chat.prompt(self.messages, self._tools))


def _stand_in(calls: int, thought: str | None) -> dict[str, Any]:
    """Return an answer of nobody's with so many calls."""
    call = Call("look_up", {"word": "snow"})
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    if thought:
        message["reasoning_content"] = thought
    return message | {"tool_calls": [tool_call(at, call) for at in range(calls)]}
