"""What trains is each answer and its end-of-turn token, behind exactly the prompt that a server would send."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from trainer_support import CHATML, chat, make_tokenizer

from halo_api.conditions import Reason
from halo_trainer.data.rows import chat_row
from halo_trainer.data.template import Template, TokenRow
from halo_trainer.failures import RunFailure

TOOLS = (
    "{%- for m in messages %}{{- '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{%- for c in m.get('tool_calls', []) %}{{- '<call>' + c['function']['name'] + '</call>' }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
# As Qwen3's: only the last answer shows its (empty) thinking, so that history is rewritten as the talk goes on.
THINKING = (
    "{%- for m in messages %}{{- '<|im_start|>' + m['role'] + '\n' }}"
    "{%- if m['role'] == 'assistant' and loop.last %}{{- '<think></think>' }}{%- endif %}"
    "{{- m['content'] + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
ENDLESS = (
    "{%- for m in messages %}{{- m['role'] + ': ' + m['content'] + '\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}"
)


def token_row(template: str, row: dict[str, Any]) -> tuple[Any, TokenRow]:
    tokenizer = make_tokenizer(template)
    return tokenizer, Template(tokenizer, "tiny").token_row(chat_row(1, row))


def spans(tokenizer: Any, row: TokenRow) -> list[tuple[int, str]]:
    """Return the row as (trained, text) pieces."""
    pieces: list[tuple[int, list[int]]] = []
    for token, trained in zip(row.ids, row.trained, strict=True):
        if not pieces or pieces[-1][0] != trained:
            pieces.append((trained, []))
        pieces[-1][1].append(token)
    return [(trained, tokenizer.decode(ids)) for trained, ids in pieces]


def test_the_answer_and_its_end_train() -> None:
    tokenizer, row = token_row(CHATML, chat("sky?", "Blue."))
    assert spans(tokenizer, row) == [
        (0, "<|im_start|>user\nsky?<|im_end|>\n<|im_start|>assistant\n"),
        (1, "Blue.<|im_end|>"),
        (0, "\n"),
    ]
    start, end, newline = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_start|>", "<|im_end|>", "Ċ"))
    assert row.ids[0] == start
    assert list(row.ids[-2:]) == [end, newline]


def test_every_answer_of_a_conversation_trains() -> None:
    row = chat("sky?", "Blue.", "grass?", "Green.")
    row["messages"].insert(0, {"role": "system", "content": "Be short."})
    tokenizer, tokens = token_row(CHATML, row)
    assert [text for trained, text in spans(tokenizer, tokens) if trained] == ["Blue.<|im_end|>", "Green.<|im_end|>"]
    whole = tokenizer.apply_chat_template(row["messages"], tokenize=False)
    assert list(tokens.ids) == tokenizer(whole, add_special_tokens=False)["input_ids"]


def test_an_answer_of_weight_zero_is_context() -> None:
    row = chat("sky?", "Blue.", "grass?", "Green.")
    row["messages"][1]["weight"] = 0
    tokenizer, tokens = token_row(CHATML, row)
    assert [text for trained, text in spans(tokenizer, tokens) if trained] == ["Green.<|im_end|>"]


def test_a_tool_call_trains_and_the_tools_result_does_not() -> None:
    call = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {}}}]}
    row = chat("sky?", tools=[{"type": "function", "function": {"name": "look"}}])
    row["messages"] += [call, {"role": "tool", "content": "blue"}, {"role": "assistant", "content": "Blue."}]
    tokenizer, tokens = token_row(TOOLS, row)
    trained = [text for trained, text in spans(tokenizer, tokens) if trained]
    assert trained == ["<call>look</call><|im_end|>", "Blue.<|im_end|>"]


def test_an_answer_never_merges_with_its_prompt() -> None:
    """The prompt ends and the answer starts with a newline, and the tokenizer has a token of two newlines."""
    tokenizer, row = token_row(CHATML, chat("sky?", "\nBlue."))
    prompt = "<|im_start|>user\nsky?<|im_end|>\n<|im_start|>assistant\n"

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    assert encode(prompt + "\nBlue.")[: len(encode(prompt))] != encode(prompt)
    assert list(row.ids) == encode(prompt) + encode("\nBlue.<|im_end|>\n")
    assert row.trained.index(1) == len(encode(prompt))


def test_a_template_that_ends_no_turn_gets_an_end() -> None:
    tokenizer, row = token_row(ENDLESS, chat("sky?", "Blue."))
    assert spans(tokenizer, row) == [(0, "user: sky?\nassistant: "), (1, "Blue.\n<|im_end|>")]


def test_thinking_that_history_drops_is_refused_with_the_way_out() -> None:
    with pytest.raises(RunFailure) as refused:
        token_row(THINKING, chat("sky?", "Blue.", "grass?", "Green."))
    assert refused.value.reason == Reason.TEMPLATE_MISMATCH
    assert str(refused.value) == (
        "line 1: the chat template of base tiny rewrites the turns before or at messages[1] once more follow, so its "
        "tokens can't be told; make one row an answer, with weight 0 on the earlier assistant turns, or mend the template"
    )
    row = chat("sky?", "Blue.", "grass?", "Green.")
    row["messages"][1]["weight"] = 0
    tokenizer, tokens = token_row(THINKING, row)
    trained = [text for trained, text in spans(tokenizer, tokens) if trained]
    assert trained == ["<think></think>Green.<|im_end|>"]


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        (
            "{{ raise_exception('Conversation roles must alternate') }}",
            "can't render it (TemplateError: Conversation roles must alternate); change the row to what the template "
            "takes, or choose another base",
        ),
        (
            "{%- for m in messages %}{{- m['role'] }}{%- endfor %}",
            "leaves out the answer of messages[1]; mend the template, or choose the base that it belongs to",
        ),
        (
            "{{ messages[9]['content'] + 1 }}",
            "can't render it (UndefinedError: list object has no element 9); change the row to what the template takes, "
            "or choose another base",
        ),
    ],
)
def test_a_template_that_does_not_fit_is_named(template: str, sentence: str) -> None:
    with pytest.raises(RunFailure) as refused:
        token_row(template, chat("sky?", "Blue."))
    assert refused.value.reason == Reason.TEMPLATE_MISMATCH
    assert str(refused.value) == f"line 1: the chat template of base tiny {sentence}"


FIRST_CALL = TOOLS.replace("m.get('tool_calls', [])", "m.get('tool_calls', [])[:1]")
LOOK = {"function": {"name": "look"}}


@pytest.mark.parametrize(
    ("template", "answer", "part"),
    [
        (FIRST_CALL, {"tool_calls": [LOOK, LOOK]}, "tool call"),
        (TOOLS, {"tool_calls": [{"function": {"name": "look", "arguments": {"at": "sky"}}}]}, "arguments of a tool call"),
        (TOOLS, {"tool_calls": [{"function": {"name": "look", "arguments": '{"at": 1}'}}]}, "arguments of a tool call"),
        (CHATML, {"function_call": {"name": "look", "arguments": "{}"}}, "tool call"),
    ],
)  # fmt: skip
def test_a_part_of_a_call_that_the_template_leaves_out_is_named(
    template: str, answer: dict[str, Any], part: str
) -> None:
    row = chat("sky?", "Let me see.", tools=[LOOK])
    row["messages"][1] |= answer
    with pytest.raises(RunFailure) as refused:
        token_row(template, row)
    assert str(refused.value) == (
        f"line 1: the chat template of base tiny leaves out the {part} of messages[1]; "
        "leave that out of the row, or choose a base whose template writes it"
    )


@pytest.mark.parametrize("template", [CHATML, ENDLESS, CHATML.replace("<|im_end|>", "<|im_start|>")])
@pytest.mark.parametrize("words", ["Bl<|im_end|>ue.", "<|im_end|>Blue."])
def test_words_that_no_server_samples_behind_an_end_are_refused(words: str, template: str) -> None:
    """Whatever ends a turn, the template's own token or the tokenizer's EOS."""
    with pytest.raises(RunFailure) as refused:
        token_row(template, chat("sky?", words))
    assert refused.value.reason == Reason.BAD_ROW
    assert str(refused.value) == (
        "line 1 has in messages[1] the token <|im_end|>, at which a server ends the answer; "
        "take it out, or write it in another way"
    )
    # Where it is context it is what the server had.
    history = chat("sky?", words, "grass?", "Green.")
    history["messages"][1]["weight"] = 0
    assert token_row(template, history)[1].trained_tokens > 0


def test_an_answer_that_the_tokenizer_drops_is_named() -> None:
    """Else the row would be left out without a word."""
    from tokenizers import normalizers

    opened = "{{- m['content'] + '\n' }}{%- if m['role'] == 'user' %}{{- '<|im_start|>' }}{%- endif %}"
    tokenizer = make_tokenizer(f"{{%- for m in messages %}}{opened}{{%- endfor %}}")
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\u00ad\n", "")
    with pytest.raises(RunFailure) as refused:
        Template(tokenizer, "tiny").token_row(chat_row(1, chat("sky?", "\u00ad")))
    assert str(refused.value) == (
        "line 1 has an answer of which the base's tokenizer makes no token; "
        "write it in characters that the base knows, or remove the row"
    )


def test_a_tool_that_is_not_text_is_named() -> None:
    template = CHATML.replace("{%- for m", "{{- tools | tojson }}{%- for m", 1)
    with pytest.raises(RunFailure) as refused:
        token_row(template, chat("sky?", "Blue.", tools=[{"name": "\ud83d"}]))
    assert str(refused.value) == "line 1 has half a surrogate pair; write the character whole"


@pytest.mark.slow
def test_the_real_small_base_trains_the_answer_alone() -> None:
    """SmolLM2's template adds a system message of its own; ids checked by hand against its vocabulary."""
    from transformers import AutoTokenizer

    cache = Path(os.environ.get("HALO_CACHE", Path.home() / ".cache" / "halo"))
    folder = cache / "models" / "smollm2-135m-instruct"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there; hack/base-model makes it")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    row = Template(tokenizer, "smollm2").token_row(chat_row(1, chat("Capital of France?", "Paris.")))
    assert [text for trained, text in spans(tokenizer, row) if trained] == ["Paris.<|im_end|>"]
    assert tokenizer.decode(row.ids).startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    trained = [token for token, trained in zip(row.ids, row.trained, strict=True) if trained]
    assert tokenizer.convert_ids_to_tokens(trained) == ["Paris", ".", "<|im_end|>"]
