"""Steps of agent runs: what is one, what each wrong one is told, and that prompt and answer are a server's tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_runs import LOOK, THINKER, call, said, step, talk, tool_run
from trainer_support import CHATML, chat, make_tokenizer, run_file, write_rows

from halo_api.conditions import Reason
from halo_trainer.data.load import chat_rows, load_template
from halo_trainer.data.steps import SHAPE, step_row
from halo_trainer.data.template import Template, TokenRow
from halo_trainer.failures import RunFailure
from halo_trainer.inspection import inspect
from halo_trainer.reporting import Reporting

ASKED = [said("user", "Colour of the sky?")]
BLUE = said("assistant", "Blue.")
GOOD = step("a", ASKED, BLUE)


def row(**changes: Any) -> str:
    return json.dumps({key: value for key, value in (GOOD | changes).items() if value != "leave out"})


def calling(*calls: Any, **more: Any) -> str:
    return row(answer=said("assistant", "", tool_calls=list(calls)), **more)


CALL = 'write each call as {"type": "function", "function": {"name": "...", "arguments": {...}}}'
KNOWN = "add the tool's JSON schema to tools, where the model saw it, or remove the row"
CASES = {
    "a list": ("[]", f"is a list, not an object; {SHAPE}"),
    "no run": (row(run="leave out"), f"has no run (found messages, answer); {SHAPE}"),
    "a run that is a number": (row(run=7), "has a run that is a number; write the run's id as a string"),
    "an empty run": (row(run=" "), "has an empty run; write the run's id, the same in all of its steps"),
    "no messages": (row(messages="leave out"), f"has no messages (found run, answer); {SHAPE}"),
    "no message": (row(messages=[]), f"has no message; {SHAPE}"),
    "a message no object": (row(messages=["Colour?"]), f"has in messages[0] a string, not an object; {SHAPE}"),
    "no answer": (row(answer="leave out"), f"has no answer (found run, messages); {SHAPE}"),
    "an answer among the messages": (row(messages=[*ASKED, BLUE], answer="leave out"), f"has no answer (found run, messages); {SHAPE}"),
    "null answer": (row(answer=None), f"has no answer (found run, messages, answer); {SHAPE}"),
    "an answer as text": (row(answer="Blue."), f"has in answer a string, not an object; {SHAPE}"),
    "a user's answer": (row(answer=ASKED[0]), 'has in answer the role "user"; use assistant'),
    "an answer of no role": (row(answer={"content": "Blue."}), "has in answer the role null; use assistant"),
    "an empty answer": (row(answer=said("assistant", " ")), "has in answer an empty answer; write the answer to learn, or remove the row"),
    "thinking alone": (
        row(answer=said("assistant", "", reasoning_content="Hm.")),
        "has in answer an empty answer; write the answer to learn, or remove the row",
    ),
    "thinking that is no text": (
        row(answer=said("assistant", "Blue.", reasoning_content=["Hm."])),
        "has in answer reasoning_content that is a list; write reasoning_content as a string",
    ),
    "an answer of weight 0": (row(answer=BLUE | {"weight": 0}), "has an answer of weight 0, so nothing to learn; remove the row"),
    "answered already": (
        row(messages=[*ASKED, BLUE]),
        "has in messages the assistant's turn as the last; end messages with what the answer replies to",
    ),
    "assistant first": (
        row(messages=[BLUE, *ASKED]),
        "starts with the assistant's turn; put what it answers to, a user's message, before it",
    ),
    "two answers in a row": (
        row(messages=[*ASKED, BLUE, BLUE, *ASKED]),
        "has in messages[2] the assistant's turn right after its own; put what it answers to between the two, or write both as one turn",
    ),
    "a tool's result first": (
        row(messages=[said("tool", "blue"), *ASKED]),
        "has in messages[0] a tool's result as the first message; put the assistant's turn that called the tool before it",
    ),
    "a tool's result after a question": (
        row(messages=[*ASKED, said("tool", "blue")]),
        "has in messages[1] a tool's result after the role user; put the assistant's turn that called the tool before it",
    ),
    "an unknown tool": (
        calling(call("look", {}), call("smell", {}), tools=[LOOK]),
        f'calls in answer the tool "smell", but tools has look; {KNOWN}',
    ),
    "a tool, and none offered": (calling(call("look", {})), f'calls in answer the tool "look", but the row has no tools; {KNOWN}'),
    "a call of no name": (calling({"type": "function"}, tools=[LOOK]), f"has in answer tool_calls[0] without a function's name; {CALL}"),
    "calls no list": (
        row(answer=said("assistant", "Blue.", tool_calls="look")),
        f"has in answer tool_calls that are a string; {CALL}",
    ),
    "arguments that were cut off": (
        calling(call("look", '{"at": '), tools=[LOOK]),
        'has in answer arguments of "look" that are text that is no JSON object; write them as a JSON object',
    ),
    "arguments in a list": (
        calling(call("look", [1]), tools=[LOOK]),
        'has in answer arguments of "look" that are a list; write them as a JSON object',
    ),
    "tools no list": (row(tools={}), "has tools that are an object; write tools as a list of JSON schemas"),
    "settings no object": (
        row(chat_template_kwargs=True),
        'has chat_template_kwargs that are a boolean; write an object, such as {"enable_thinking": false}',
    ),
    "a setting that is not the template's": (
        row(chat_template_kwargs={"tokenize": True}),
        "has tokenize in chat_template_kwargs; keep only what the template itself reads",
    ),
    "half a surrogate pair": (
        row(answer=said("assistant", "\ud83d")),
        "has in answer half a surrogate pair; write the character whole",
    ),
    "a chat among steps": (
        json.dumps(chat("Colour?", "Blue.")),
        "is a chat row, and line 1 is a step of an agent run (which has a run and an answer); keep them in two files",
    ),
    "cut off": (row()[:-3], "is not JSON (Unterminated string starting at, column 122); write one JSON object a line"),
}  # fmt: skip


def refusal(path: Path) -> str:
    with pytest.raises(RunFailure) as refused:
        list(chat_rows(path))
    assert refused.value.reason == Reason.BAD_ROW
    return str(refused.value)


@pytest.mark.parametrize(("line", "sentence"), CASES.values(), ids=CASES)
def test_a_bad_step_is_named(line: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(f"{row()}\n{row()}\n{line}\n{row()}\n")
    assert refusal(path) == f"line 3 {sentence}"


def test_a_step_among_chats_and_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "steps.jsonl", [chat("Colour?", "Blue."), GOOD])
    assert refusal(path) == (
        "line 2 is a step of an agent run (it has a run and an answer), and line 1 is a chat row; keep them in two files"
    )
    path.write_bytes(row().encode() + b'\n{"run": "\xff"}\n')
    assert refusal(path) == "line 2 is not UTF-8 (byte 10); save the file as UTF-8"


def tokens(template: str, line: dict[str, Any]) -> tuple[Any, Template, TokenRow]:
    tokenizer = make_tokenizer(template)
    made = Template(tokenizer, "tiny")
    return tokenizer, made, made.token_row(step_row(1, line))


def split(tokenizer: Any, row: TokenRow) -> tuple[str, str, str]:
    """Return what is before, in and after the trained tokens."""
    first, last = row.trained.index(1), row.trained.rindex(1) + 1
    assert all(row.trained[first:last])
    return tuple(tokenizer.decode(row.ids[a:b]) for a, b in ((0, first), (first, last), (last, len(row))))  # type: ignore[return-value]


@pytest.mark.parametrize("line", tool_run("a", 2) + talk("b", 3))
def test_a_step_is_the_prompt_that_a_server_tokenises_and_the_answer_behind_it(line: dict[str, Any]) -> None:
    tokenizer, template, row = tokens(THINKER, line)
    prompt = template.prompt_ids(line["messages"], line.get("tools"))
    rendered = tokenizer.apply_chat_template(
        line["messages"], tools=line.get("tools"), add_generation_prompt=True, tokenize=False
    )
    assert prompt == tokenizer(rendered, add_special_tokens=False)["input_ids"]
    assert list(row.ids[: len(prompt)]) == prompt
    answer = line["answer"]
    told = "".join(
        f"\n<call>look {json.dumps(c['function']['arguments'])}</call>" for c in answer.get("tool_calls", [])
    )
    text = f"<think>\n{answer['reasoning_content']}\n</think>\n\n{answer['content']}{told}<|im_end|>"
    assert split(tokenizer, row) == (rendered, text, "\n")
    assert row.run == line["run"]


def test_plain_chatml_takes_steps_too() -> None:
    tokenizer, _, row = tokens(
        CHATML, step("a", [*ASKED, BLUE, said("user", "And grass?")], said("assistant", "Green."))
    )
    before, answer, after = split(tokenizer, row)
    assert before.endswith("Blue.<|im_end|>\n<|im_start|>user\nAnd grass?<|im_end|>\n<|im_start|>assistant\n")
    assert (answer, after) == ("Green.<|im_end|>", "\n")


def test_what_a_client_sent_is_rendered_as_a_server_renders_it() -> None:
    """Arguments as JSON text, thinking under its other name, no list of calls, and keys of a tool in another order."""
    canonical = tool_run("a", 2)[1]
    spelled = json.loads(json.dumps(canonical))
    for message in [*spelled["messages"], spelled["answer"]]:
        for one in message.get("tool_calls", []):
            one["function"]["arguments"] = json.dumps(one["function"]["arguments"], separators=(",", ":"))
        if "reasoning_content" in message:
            message["reasoning"] = message.pop("reasoning_content")
    spelled["messages"].append(said("assistant", "Hm.", tool_calls=[]))
    spelled["messages"].append(said("user", "Go on."))
    canonical["messages"] += [said("assistant", "Hm."), said("user", "Go on.")]
    function = spelled["tools"][0]["function"]
    spelled["tools"] = [{"function": dict(reversed(function.items())), "type": "function"}]
    assert tokens(THINKER, spelled)[2] == tokens(THINKER, canonical)[2]
    bare = step("a", ASKED, BLUE, tools=[{"type": "function", "function": {"name": "look"}}])
    tokenizer, _, row = tokens(THINKER, bare)
    told = 'Tool: {"type": "function", "function": {"name": "look", "description": null, "parameters": null}}'
    assert told in tokenizer.decode(row.ids)


def test_the_settings_of_the_request_are_the_templates() -> None:
    """Without thinking the prompt closes it, so that the answer alone trains."""
    line = step("a", ASKED, BLUE, chat_template_kwargs={"enable_thinking": False})
    tokenizer, template, row = tokens(THINKER, line)
    assert split(tokenizer, row)[1] == "Blue.<|im_end|>"
    prompt = template.prompt_ids(ASKED, settings={"enable_thinking": False})
    assert list(row.ids[: len(prompt)]) == prompt


@pytest.mark.parametrize(
    ("template", "answer", "sentence"),
    [
        (
            CHATML,
            said("assistant", "", tool_calls=[call("look", {})]),
            "leaves out the tool call of answer; leave that out of the row, or choose a base whose template writes it",
        ),
        (
            CHATML,
            said("assistant", "Blue.", reasoning_content="The sky is blue."),
            "leaves out the thinking (reasoning_content) of answer; leave that out of the row, or choose a base whose template writes it",
        ),
        (
            CHATML.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>"),
            BLUE,
            "writes before answer another text than its generation prompt, so its tokens can't be told; set "
            "chat_template_kwargs as the server had them (such as enable_thinking), or mend the template",
        ),
    ],
)  # fmt: skip
def test_a_template_that_can_not_say_the_answer_is_named(template: str, answer: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RunFailure) as refused:
        tokens(template, step("a", ASKED, answer, tools=[LOOK]))
    assert refused.value.reason == Reason.TEMPLATE_MISMATCH
    assert str(refused.value) == f"line 1: the chat template of base tiny {sentence}"


def test_an_inspection_counts_each_step_as_a_row(root: Path) -> None:
    lines = [step(run, [*ASKED, *[BLUE, said("user", "And now?")] * at], BLUE) for run in "ab" for at in range(3)]
    write_rows(root / "data" / "chat.jsonl", lines)
    run = run_file("inspect")
    counted = inspect(run, str(root), Reporting(root / "report.json", run)).inspection
    assert counted
    template = load_template(run.base, root / "models" / "tiny")
    rows = [template.token_row(step_row(1, line)) for line in lines]
    assert (counted.rows, counted.tokens) == (6, sum(map(len, rows)))
    assert (counted.trained_tokens, counted.longest_row) == (sum(r.trained_tokens for r in rows), max(map(len, rows)))
