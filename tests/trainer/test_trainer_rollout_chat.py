"""Conversations as tokens: the templates of real bases, calls as models write them, and the ids that go behind what was sampled."""

from __future__ import annotations

import functools
import json
from array import array
from importlib.resources import files
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_support import CHATML, make_tokenizer

from halo_api.conditions import Reason
from halo_trainer.data.template import Template
from halo_trainer.failures import RunFailure
from halo_trainer.rollouts.calls import Call, reply_of
from halo_trainer.rollouts.chat import Chat, stop_ids

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "query",
            "description": "Runs SQL.",
            "parameters": {
                "type": "object",
                "properties": {"sql": {"type": "string"}, "limit": {"type": "integer"}},
                "required": ["sql"],
            },
        },
    }
]
QUESTION = [{"role": "system", "content": "Answer by SQL."}, {"role": "user", "content": "How many colours?"}]
HERMES = '<tool_call>\n{"name": "query", "arguments": {"sql": "select 1"}}\n</tool_call>'
MARKED = "<tool_call>\n<function=query>\n<parameter=sql>\nselect 1\n</parameter>\n</function>\n</tool_call>"


@functools.cache
def template(name: str) -> Template:
    """Return the template of real bases, as TRL keeps them, on a tiny tokenizer."""
    text = CHATML if name == "chatml" else files("trl").joinpath(f"chat_templates/{name}.jinja").read_text()
    tokenizer = make_tokenizer(text)
    tokenizer.bos_token = "<|endoftext|>"
    return Template(tokenizer, name)


def chat(name: str, layout: Literal["turn", "trajectory"] = "turn", thinking: bool | None = None) -> Chat:
    stop = template(name).ids("<|im_end|>")
    return Chat(template(name), stop, layout, thinking, name)


def answer(name: str, text: str) -> array[int]:
    """Return an answer in tokens that nobody's tokenizer would choose for its text: one a byte."""
    single = [token for character in text for token in template(name).ids(character)]
    return array("i", single + template(name).ids("<|im_end|>"))


# base, thinking, how it answers, and how its template writes the call in history
TEMPLATES: list[tuple[str, bool | None, str]] = [
    ("qwen2_5", None, f"Let me see.\n{HERMES}"),
    ("qwen3", True, f"<think>\nCount.\n</think>\n\n{HERMES}"),
    ("qwen3_instruct_2507", None, HERMES),
    ("qwen3_5_think", True, f"Count.\n</think>\n\n{MARKED}"),
    ("qwen3_5_think", False, MARKED),
    ("qwen3_6", True, f"Count.\n</think>\n\n{MARKED}"),
    ("qwen3_6", False, MARKED),
]


@pytest.mark.parametrize(("name", "thinking", "said"), TEMPLATES)
def test_a_prompt_grows_by_what_a_server_would_write_and_keeps_what_was_sampled(
    name: str, thinking: bool | None, said: str
) -> None:
    """Two turns of calls: the ids are the sampled ones, the text is what the template writes of the whole conversation."""
    open_chat = chat(name, "trajectory", thinking)
    conversation = open_chat.open(QUESTION, TOOLS)
    assert conversation.prompt.tolist() == template(name).prompt_ids(QUESTION, TOOLS, open_chat.settings)
    for results in (["1 row"], ["2 rows"], ["<|im_end|>\n{{ 3 }} \ud800"]):
        before, sampled = conversation.prompt, answer(name, said)
        reply = conversation.answered(sampled)
        assert [(call.name, call.arguments, call.problem) for call in reply.calls] == [
            ("query", {"sql": "select 1"}, None)
        ]
        conversation.observed(sampled, list(zip(reply.calls, results, strict=True)))
        assert conversation.prompt[: len(before) + len(sampled)] == before + sampled
        text = template(name).text(conversation.messages, TOOLS, open_chat.settings, prompt=True)
        assert template(name).decode(conversation.prompt.tolist()) == text


def test_a_template_that_rewrites_history_is_rendered_anew_or_refused() -> None:
    """Qwen3 without thinking drops the empty thought of earlier turns, so no row can grow behind it."""
    conversation = chat("qwen3", "turn", thinking=False).open(QUESTION, TOOLS)
    sampled = answer("qwen3", HERMES)
    reply = conversation.answered(sampled)
    conversation.observed(sampled, [(reply.calls[0], "1 row")])
    expected = template("qwen3").prompt_ids(conversation.messages, TOOLS, {"enable_thinking": False})
    assert conversation.prompt.tolist() == expected
    with pytest.raises(RunFailure, match="of base qwen3 writes earlier turns otherwise once a tool") as refused:
        chat("qwen3", "trajectory", thinking=False)
    assert refused.value.reason == Reason.TEMPLATE_MISMATCH


@pytest.mark.parametrize("name", ["chatml", "llama3", "llama3_1", "gemma3", "phi3"])
def test_a_base_without_tools_or_with_calls_in_other_words_has_a_conversation_without(name: str) -> None:
    open_chat = chat(name, "trajectory")
    assert not open_chat.takes_tools
    conversation = open_chat.open(QUESTION, TOOLS)
    assert conversation.prompt.tolist() == template(name).prompt_ids(QUESTION)
    assert conversation.answered(answer(name, f"Yes {HERMES}")).calls == ()


def test_an_answer_that_ended_with_another_token_still_gets_its_end_of_turn() -> None:
    """A base with several: the template's own is added, and none of what was sampled is dropped."""
    stops = [token for text in ("<|endoftext|>", "<|im_end|>") for token in template("qwen2_5").ids(text)]
    conversation = Chat(template("qwen2_5"), stops, "trajectory").open(QUESTION, TOOLS)
    before = conversation.prompt
    sampled = answer("qwen2_5", HERMES)[:-1] + array("i", stops[:1])
    reply = conversation.answered(sampled)
    assert reply.calls[0].arguments == {"sql": "select 1"}
    conversation.observed(sampled, [(reply.calls[0], "1 row")])
    added = conversation.prompt[len(before) + len(sampled) :]
    assert template("qwen2_5").decode(added.tolist()).startswith("<|im_end|>\n<|im_start|>user\n<tool_response>\n1 row")


def test_every_token_that_ends_a_turn_stops_it(tmp_path: Path) -> None:
    """Those of the base's files, the tokenizer's, and the one that its template writes."""
    found = template("qwen2_5")
    start, end = found.ids("<|im_start|>")[0], found.ids("<|im_end|>")[0]
    text, tokenizer = found.ids("a")[0], make_tokenizer()
    tokenizer.eos_token = "<|endoftext|>"
    assert stop_ids(found, tokenizer, tmp_path) == tuple(sorted([tokenizer.eos_token_id, end]))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": start}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [text, end]}))
    assert stop_ids(found, tokenizer, tmp_path) == tuple(sorted([tokenizer.eos_token_id, start, text, end]))


def call(text: str) -> Call:
    (found,) = reply_of(f"<tool_call>{text}</tool_call>", TOOLS, thinks=False).calls
    return found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "the call is no JSON"),
        ("[1]", "the call has no name"),
        ('{"arguments": {}}', "the call has no name"),
        ('{"name": "query", "arguments": "select 1"}', "the call's arguments are no object"),
        ('{"name": "drop", "arguments": {}}', "there is no tool drop; the tools are query"),
        ("<function=drop>\n</function>", "there is no tool drop"),
        ("<function=query>\n<parameter=sql>", "the call is no JSON"),
        ("[" * 100_000, "the call is no JSON"),
        ('{"name": "query", "arguments": {"sql": "\\ud800"}}', "the call has half a surrogate pair"),
        ('{"name": "query", "arguments": {"sql": NaN}}', "the call is no JSON"),
    ],
)
def test_a_malformed_call_is_told_as_what_is_wrong(text: str, problem: str) -> None:
    assert (call(text).problem or "").startswith(problem)


def test_marked_parameters_are_text_where_the_schema_wants_text() -> None:
    marked = "<function=query>\n<parameter=sql>\n12\n</parameter>\n<parameter=limit>\n12\n</parameter>\n</function>"
    assert call(marked) == Call("query", {"sql": "12", "limit": 12})


def test_what_is_thought_neither_calls_nor_answers() -> None:
    assert reply_of(f"Maybe {HERMES}\n</think>\n\nNone.", TOOLS, thinks=True).calls == ()
    assert reply_of(f"<think>Maybe {HERMES}</think>No.", TOOLS, thinks=False).content == "No."
    endless = reply_of(f"Maybe {HERMES}", TOOLS, thinks=True)
    assert (endless.content, endless.calls) == ("", ())
    assert reply_of(f"{HERMES[:-12]}", TOOLS, thinks=False).calls[0].problem


PIECES = st.sampled_from([*'{}[]"<>/=\n a1', "<tool_call>", "</tool_call>", "<think>", "</think>", "<function=query>"])


@given(st.lists(PIECES).map("".join))
def test_no_answer_is_too_strange_to_read(text: str) -> None:
    reply = reply_of(text, TOOLS, thinks=False)
    assert all(each.problem or each.name == "query" for each in reply.calls)
    assert reply.message["role"] == "assistant"
