"""Preference rows: what is one, what each wrong one is told, and what an inspection counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trainer_support import CHATML, chat, make_tokenizer, run_file, train_here, write_rows

from halo_api.conditions import Reason
from halo_api.report import InspectionReport
from halo_trainer.data.load import fitting_rows, load_template, training_pairs
from halo_trainer.data.preference import SHAPE, preference_row, token_pair
from halo_trainer.data.template import Template
from halo_trainer.failures import RunFailure
from halo_trainer.inspection import inspect
from halo_trainer.reporting import Reporting

DATA = {"name": "pairs", "kind": "preference", "source": "pvc://data/pairs.jsonl"}
ASKED = [{"role": "user", "content": "Colour of the sky?"}]
GOOD: dict[str, Any] = {"messages": ASKED, "chosen": "Blue.", "rejected": "Green."}
ANSWERED = [*ASKED, {"role": "assistant", "content": "Blue."}]


def row(**changes: Any) -> str:
    return json.dumps({key: value for key, value in (GOOD | changes).items() if value != "leave out"})


CASES = {
    "a list": ("[]", f"is a list, not an object; {SHAPE}"),
    "chat": (json.dumps(chat("Colour?", "Blue.")), f"is no pair: it has neither chosen nor rejected (found messages); {SHAPE}"),
    "answered already": (row(messages=ANSWERED), "has in messages the assistant's turn as the last; end messages with what both answers reply to"),
    "no prompt": (row(messages="leave out"), f"has neither messages nor prompt (found chosen, rejected); {SHAPE}"),
    "two prompts": (row(prompt="Colour?"), "has both messages and prompt; keep the one that both answers reply to"),
    "no message": (row(messages=[]), f"has in messages no message; {SHAPE}"),
    "messages no list": (row(messages="Colour?"), f"has in messages a string; {SHAPE}"),
    "prompt a number": (row(messages="leave out", prompt=3), f"has in prompt a number; {SHAPE}"),
    "a message no object": (row(messages=["Colour?"]), f"has in messages[0] a string, not an object; {SHAPE}"),
    "a bad role": (
        row(messages="leave out", prompt=[{"role": "human", "content": "hi"}]),
        'has in prompt[0] the role "human"; use one of system, user, assistant, tool',
    ),
    "assistant first": (
        row(messages=[*ANSWERED[1:], *ASKED]),
        "starts with the assistant's turn; put what it answers to, a user's message, before it",
    ),
    "no chosen": (row(chosen="leave out"), f"has no chosen (found messages, rejected); {SHAPE}"),
    "null rejected": (row(rejected=None), f"has no rejected (found messages, chosen, rejected); {SHAPE}"),
    "an empty answer": (row(rejected=" "), "has in rejected an empty answer; write the answer to learn, or remove the row"),
    "an answer that is a number": (row(chosen=4), f"has in chosen a number, not an object; {SHAPE}"),
    "a whole conversation": (
        row(chosen=ANSWERED),
        "has in chosen 2 messages; write the one answer, and put what comes before it into messages",
    ),
    "a user's answer": (row(chosen=ASKED), 'has in chosen the role "user"; use assistant'),
    "the same answer": (
        row(rejected={"role": "assistant", "content": "Blue."}),
        "has the same answer as chosen and as rejected, so nothing to prefer; write two answers that differ, or remove the row",
    ),
    "bad tools": (row(tools={}), "has tools that are an object; write tools as a list of JSON schemas"),
    "half a surrogate pair": (
        '{"prompt": "a", "chosen": "\\ud83d", "rejected": "b"}',
        "has in chosen half a surrogate pair; write the character whole",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("line", "sentence"), CASES.values(), ids=CASES)
def test_a_bad_row_is_named(line: str, sentence: str, root: Path) -> None:
    (root / "data" / "pairs.jsonl").write_text(f"{row()}\n{line}\n{row()}\n")
    run = run_file("inspect", data=DATA)
    with pytest.raises(RunFailure) as refused:
        inspect(run, str(root), Reporting(root / "report.json", run))
    assert (refused.value.reason, str(refused.value)) == (Reason.BAD_ROW, f"line 2 {sentence}")


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": "Colour of the sky?", "messages": "leave out"},
        {"prompt": ASKED, "messages": "leave out"},
        {"chosen": {"role": "assistant", "content": "Blue."}, "rejected": [{"role": "assistant", "content": "Green."}]},
    ],
)
def test_a_row_may_be_written_in_several_ways(other: dict[str, Any]) -> None:
    assert preference_row(1, json.loads(row(**other))) == preference_row(1, GOOD)


def test_answers_that_the_template_makes_the_same_are_no_pair() -> None:
    """Else they would be left out of the run without a word."""
    template = Template(make_tokenizer(CHATML.replace("m['content']", "(m['content'] | trim)")), "tiny")
    with pytest.raises(RunFailure) as refused:
        token_pair(template, preference_row(3, GOOD | {"chosen": "Blue.", "rejected": "Blue.\n"}))
    assert str(refused.value) == (
        "line 3 has two answers that are the same text as the base's chat template writes them, so nothing to prefer; "
        "write two answers that differ, or remove the row"
    )


def test_a_pair_is_two_chat_rows_of_which_the_last_answer_trains(root: Path) -> None:
    told = [*ANSWERED, {"role": "user", "content": "And grass?"}]
    write_rows(root / "data" / "pairs.jsonl", [{"messages": told, "chosen": "Green.", "rejected": "Green. Yes."}])
    run = run_file(data=DATA)
    template = load_template(run.base, root / "models" / "tiny")
    assert run.data
    (pair,) = training_pairs(run.data, root / "data" / "pairs.jsonl", template)
    prompt = template.prompt_ids(told)
    for answer in (pair.chosen, pair.rejected):
        assert list(answer.ids[: len(prompt)]) == prompt
        assert list(answer.trained[: len(prompt)]) == [0] * len(prompt)
        assert any(answer.trained[len(prompt) :])
    assert len(pair) == len(pair.rejected) > len(pair.chosen)
    # An answer that is cut off altogether, or cut to the other one, teaches nothing.
    (cut,) = fitting_rows([pair], len(pair.chosen), "truncate")
    assert cut.rejected.ids != cut.chosen.ids
    with pytest.raises(RunFailure) as refused:
        list(fitting_rows([pair], len(prompt), "truncate"))
    assert refused.value.reason == Reason.ROW_TOO_LONG


def test_an_inspection_counts_both_answers_and_the_longer_one(root: Path) -> None:
    longer = " ".join(["Blue."] * 300)
    write_rows(root / "data" / "pairs.jsonl", [GOOD, GOOD | {"chosen": longer}])
    run = run_file("inspect", data=DATA)
    outcome = inspect(run, str(root), Reporting(root / "report.json", run))
    counted = outcome.inspection
    assert isinstance(counted, InspectionReport)
    assert run.data
    template = load_template(run.base, root / "models" / "tiny")
    pairs = list(training_pairs(run.data, root / "data" / "pairs.jsonl", template))
    assert counted.rows == 2
    assert counted.tokens == sum(len(pair.chosen) + len(pair.rejected) for pair in pairs)
    assert counted.trained_tokens == sum(sum(p.chosen.trained) + sum(p.rejected.trained) for p in pairs)
    assert counted.longest_row == len(pairs[1].chosen)
    assert {one.tokens: one.rows for one in counted.longer}[256] == 1


@pytest.mark.parametrize(
    ("data", "lora", "sentence"),
    [
        ({"kind": "chat", "source": "pvc://data/pairs.jsonl"}, {"method": "dpo", "trainer": "TRL"}, "of kind chat, method dpo trains on kind preference"),
        (DATA, {}, "of kind preference, method sft trains on kind chat"),
        (DATA, {"method": "dpo", "trainer": "Halo"}, "spec.lora.trainer: found Halo, method dpo is trained by TRL"),
    ],
)  # fmt: skip
def test_a_method_trains_on_its_own_kind_by_a_trainer_that_has_it(
    data: dict[str, Any], lora: dict[str, Any], sentence: str, root: Path
) -> None:
    write_rows(root / "data" / "pairs.jsonl", [GOOD])
    outcome = train_here(run_file(data=data, lora=lora), root).outcome
    assert outcome
    assert outcome.reason == Reason.INVALID_SPEC
    assert sentence in outcome.message
