"""Every row that can't train is refused with its line, what was found and what would do."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from trainer_support import chat

from halo_api.conditions import Reason
from halo_trainer.data.load import chat_rows
from halo_trainer.data.rows import SHAPE
from halo_trainer.failures import RunFailure

GOOD = json.dumps(chat("Colour of the sky?", "Blue."))
LONG = '"' + "x" * 60 + '"'
CASES = {
    "malformed JSON": (
        '{"messages": [}',
        "is not JSON (Expecting value, column 15); write one JSON object a line",
    ),
    "cut off": ('{"messages": [{"role": "us', "is not JSON (Unterminated string starting at, column 24); write one JSON object a line"),
    "blank line": ("", "is blank; remove the line"),
    "a list": ("[]", f"is a list, not an object; {SHAPE}"),
    "a number": ("3", f"is a number, not an object; {SHAPE}"),
    "no messages": ('{"prompt": "a", "answer": "b"}', f"has no messages (found prompt, answer); {SHAPE}"),
    "empty object": ("{}", f"has no messages (found no keys); {SHAPE}"),
    "no message": ('{"messages": []}', f"has no message; {SHAPE}"),
    "messages no list": ('{"messages": "hi"}', f"has messages that are a string; {SHAPE}"),
    "message no object": ('{"messages": ["hi"]}', f"has in messages[0] a string, not an object; {SHAPE}"),
    "bad role": (
        '{"messages": [{"role": "human", "content": "hi"}]}',
        'has in messages[0] the role "human"; use one of system, user, assistant, tool',
    ),
    "no role": ('{"messages": [{"content": "hi"}]}', "has in messages[0] the role null; use one of system, user, assistant, tool"),
    "long role": (
        f'{{"messages": [{{"role": {LONG}, "content": "hi"}}]}}',
        f"has in messages[0] the role {LONG[:37]}...; use one of system, user, assistant, tool",
    ),
    "content parts": (
        '{"messages": [{"role": "user", "content": [{"type": "text"}]}]}',
        "has in messages[0] content that is a list; write content as a string",
    ),
    "no assistant turn": (
        json.dumps(chat("Colour of the sky?")),
        "has no assistant turn, so nothing to learn; add the answer to learn, or remove the row",
    ),
    "no trained turn": (
        json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]}),
        "has no assistant turn of weight 1, so nothing to learn; add the answer to learn, or remove the row",
    ),
    "empty answer": (json.dumps(chat("a", " ")), "has in messages[1] an empty answer; write the answer to learn, or remove the row"),
    "assistant first": (
        '{"messages": [{"role": "assistant", "content": "hi"}]}',
        "starts with the assistant's turn; put what it answers to, a user's message, before it",
    ),
    "bad weight": (
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0.5}]}',
        "has in messages[1] weight 0.5; use 1 to train the turn or 0 not to",
    ),
    "bad weight of a call without words": (
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "weight": "0", "tool_calls": [{}]}]}',
        'has in messages[1] weight "0"; use 1 to train the turn or 0 not to',
    ),
    "one key twice": (
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "content": "c"}]}',
        'has the key "content" twice in one object; keep one of the two',
    ),
    "bad tools": (json.dumps(chat("a", "b", tools={})), "has tools that are an object; write tools as a list of JSON schemas"),
    "two answers in a row": (
        json.dumps({"messages": [*chat("a", "b")["messages"], {"role": "assistant", "content": "c"}]}),
        "has in messages[2] the assistant's turn right after its own; put what it answers to between the two, or write both as one turn",
    ),
    "a tool's result after a question": (
        json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}, {"role": "assistant", "content": "c"}]}),
        "has in messages[1] a tool's result after the role user; put the assistant's turn that called the tool before it",
    ),
    "an unknown tool": (
        json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"function": {"name": "look"}}]}], "tools": [{"name": "smell"}]}),
        'calls in messages[1] the tool "look", but tools has smell; add the tool\'s JSON schema to tools, where the model saw it, or remove the row',
    ),
    "a pair": (
        json.dumps({**chat("a"), "chosen": "b", "rejected": "c"}),
        "is a pair (it has chosen and rejected) in a Dataset of kind chat; put pairs into a Dataset of kind preference, or write the answer to learn into messages",
    ),
    "half a surrogate pair": (
        '{"messages": [{"role": "user", "content": "\\ud83d"}]}',
        "has in messages[0] half a surrogate pair; write the character whole",
    ),
    "a key that is half a surrogate pair": ('{"\\ud83d": 1}', f"has no messages (found \\ud83d); {SHAPE}"),
    "a long key": (f"{{{LONG}: 1}}", f"has no messages (found {'x' * 40}); {SHAPE}"),
    "endless digits": (f'{{"messages": {"1" * 5000}}}', "has a number of too many digits; write it as a string"),
    "nested too deeply": ("[" * 100_000, "is nested too deeply to read; flatten the row"),
}  # fmt: skip


@pytest.mark.parametrize("depth", range(970, 1000))
def test_at_no_depth_a_row_can_not_be_refused(depth: int, tmp_path: Path) -> None:
    """Also where it can just be read, and not be written into the sentence."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"messages": [{"role": ' + "[" * depth + "]" * depth + ', "content": "a"}]}')
    with pytest.raises(RunFailure, match=r"^line 1 (is nested too deeply|has in messages\[0\] the role)"):
        list(chat_rows(path))


@pytest.mark.parametrize(("line", "sentence"), CASES.values(), ids=CASES)
def test_a_bad_row_is_named(line: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{GOOD}\n{GOOD}\n{line}\n{GOOD}\n")
    with pytest.raises(RunFailure) as refused:
        list(chat_rows(path))
    assert (refused.value.reason, str(refused.value)) == (Reason.BAD_ROW, f"line 3 {sentence}")


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(GOOD.encode() + b"\n" + b'{"messages": "\xff"}\n')
    with pytest.raises(RunFailure) as refused:
        list(chat_rows(path))
    assert str(refused.value) == "line 2 is not UTF-8 (byte 15); save the file as UTF-8"


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.touch()
    with pytest.raises(RunFailure) as refused:
        list(chat_rows(path))
    assert (refused.value.reason, str(refused.value)) == (
        Reason.BAD_ROW,
        "rows.jsonl is empty; write one row a line",
    )


def test_a_file_that_is_no_lines_is_named_at_its_first(tmp_path: Path) -> None:
    """One list over many lines, UTF-16, a compressed file, and gigabytes without an end of line."""
    path = tmp_path / "rows.jsonl"
    for data, sentence in (
        (json.dumps([json.loads(GOOD)], indent=1).encode(), "is not JSON (Expecting value, column 2); write one JSON object a line"),
        (GOOD.encode("utf-16"), "is not UTF-8 (byte 1); save the file as UTF-8"),
        (gzip.compress(GOOD.encode()), "is not UTF-8 (byte 2); save the file as UTF-8"),
    ):  # fmt: skip
        path.write_bytes(data)
        with pytest.raises(RunFailure) as refused:
            list(chat_rows(path))
        assert str(refused.value) == f"line 1 {sentence}"
    with path.open("wb") as file:
        file.truncate(4 << 30)
    with pytest.raises(RunFailure) as refused:
        list(chat_rows(path))
    assert (
        str(refused.value)
        == "line 1 has more than 8 MiB; write one row a line, and cut what no base could read at once"
    )


def test_an_editors_mark_before_the_first_line_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{GOOD}\n{GOOD}\n", encoding="utf-8-sig")
    assert len(list(chat_rows(path))) == 2


def test_a_huge_line_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(chat("x" * 5_000_000, "Blue.")) + "\n")
    assert len(next(chat_rows(path)).messages[0]["content"]) == 5_000_000


def test_what_follows_the_last_answer_is_left_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(chat("a", "b", "thanks")))
    assert [message["role"] for message in next(chat_rows(path)).messages] == ["user", "assistant"]
