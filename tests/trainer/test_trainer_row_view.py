"""`halo-trainer inspect FILE…`: a row as text, with what trains, where tokens end, and bundles of agent runs."""

from __future__ import annotations

import functools
import re
from array import array
from pathlib import Path

import pytest
from agent_runs import THINKER, talk
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer_support import chat, make_base, make_tokenizer, run_file, write_rows

from halo_trainer.cli import main
from halo_trainer.data.template import Template, TokenRow
from halo_trainer.row_view import shown_row

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "examples" / "agent-runs.jsonl"
tiny_tokenizer = functools.cache(make_tokenizer)


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base") / "thinker", THINKER)


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(["inspect", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def trained(shown: str) -> list[str]:
    """Return what stands in brackets, below the line that explains them."""
    return re.findall("⟦(.*?)⟧", shown.partition("\n")[2], re.S)


def test_a_row_is_shown_with_what_trains(tiny_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rows(
        tmp_path / "rows.jsonl", [chat("sky?", "Blue.", "grass?", "Green\x1b[31m."), chat("snow?", "White.")]
    )
    shown = told(capsys, "--rows", "1", "--base", tiny_base, path)
    assert shown.startswith("⟦…⟧ trains; the rest is context\nrows.jsonl, row 1: ")
    assert "snow" not in shown
    assert trained(shown) == ["Blue.<|im_end|>", "Green␛[31m.<|im_end|>"]


def test_the_example_of_agent_runs_is_two_bundles(thinker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of what a thinking base sees of tool calls, each step sees all that was said before."""
    counts = told(capsys, "--base", thinker, RUNS)
    assert counts.startswith("agent-runs.jsonl: 5 rows, ")
    bundles = told(capsys, "--base", thinker, "--bundle", "8", RUNS)
    assert bundles.startswith("agent-runs.jsonl: bundle 8: 5 steps in 2 rows: ")
    shown = told(capsys, "--base", thinker, "--bundle", "8", "--rows", "2", RUNS)
    assert "agent-runs.jsonl, bundle 2, run 'ticket-1042': " in shown
    answers = trained(shown)
    assert [answer.count("<call>") for answer in answers] == [1, 1, 0]
    assert answers[1].endswith('<call>refund {"order": "18"}</call><|im_end|>')
    alone = told(capsys, "--base", thinker, "--rows", "3-5", RUNS)
    assert trained(alone) == answers


def test_a_fork_is_shown_as_the_parts_of_a_tree(
    thinker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second step no longer sees the thinking of the first, and goes on behind the prompt that they share."""
    path = write_rows(tmp_path / "talk.jsonl", talk("a", 2))
    assert "bundle 8: 2 steps in 1 rows: " in told(capsys, "--base", thinker, "--bundle", "8", path)
    shown = told(capsys, "--base", thinker, "--bundle", "8", "--rows", "1", path)
    titles = re.findall(r"talk.jsonl, (bundle .*): \d+ tokens, (\d+) answers", shown)
    behind = "bundle 1, part {} behind part 1, run 'a'"
    assert titles == [("bundle 1, part 1, run 'a'", "0"), (behind.format(2), "1"), (behind.format(3), "1")]
    alone = told(capsys, "--base", thinker, "--rows", "1-2", path)
    assert trained(shown) == trained(alone)


@given(
    text=st.text(max_size=40).filter(lambda text: text.isprintable() and not {*text} & {*"×│"}), cut=st.integers(0, 60)
)
@settings(deadline=None)
def test_no_character_is_lost_between_tokens(text: str, cut: int) -> None:
    """Also where a character is several tokens, and where what trains begins or ends within it."""
    tokenizer = tiny_tokenizer()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    row = TokenRow(array("i", ids), bytearray(at >= cut for at in range(len(ids))))
    template = Template(tokenizer, "tiny")
    plain = shown_row(template, row, colour=True, tokens=False).plain
    if not 0 < cut < len(ids):
        assert plain == text
    edges = shown_row(template, row, colour=True, tokens=True).plain
    assert sum(int(many or 1) for many in re.findall(r"(?:×(\d+))?│", edges)) == len(ids)


def test_a_pair_is_shown_as_its_two_rows(thinker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = {"prompt": "sky?", "chosen": "Blue.", "rejected": "Green."}
    shown = told(capsys, "--rows", "1", "--tokens", "--base", thinker, write_rows(tmp_path / "p.jsonl", [pair]))
    assert "p.jsonl, row 1, chosen: " in shown
    assert "p.jsonl, row 1, rejected: " in shown
    assert "<|im_end|>│" in shown


def test_the_run_files_own_data_are_shown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = root / "run.json"
    path.write_text(run_file("inspect").canonical())
    shown = told(capsys, "--rows", "2,4", "--run-file", path, "--volumes", root)
    assert [line for line in shown.splitlines() if line.startswith("chat.jsonl, row")] == [
        line for line in shown.splitlines() if re.match(r"chat.jsonl, row [24]: \d+ tokens, \d+ train", line)
    ]
    assert shown.count("⟦") == 3


def test_of_several_files_the_one_with_the_bad_row_is_named(
    tiny_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write_rows(tmp_path / "good.jsonl", [chat("sky?", "Blue.")])
    bad = write_rows(tmp_path / "bad.jsonl", [chat("sky?")])
    assert main(["inspect", "--base", str(tiny_base), str(good), str(bad)]) == 1
    assert capsys.readouterr().err.startswith("halo-trainer: bad.jsonl: line 1 has no assistant turn")


def test_what_can_not_be_shown_is_said(thinker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [chat("sky?", "Blue.")])
    pairs = write_rows(tmp_path / "p.jsonl", [{"prompt": "sky?", "chosen": "Blue.", "rejected": "Green."}])
    nowhere = tmp_path / "run.json"
    for arguments, sentence in (
        (["--rows", "2", "--base", thinker, path], f"--rows: {path} has no row 2; name a lower one"),
        (["--rows", "0", path], "--rows: found '0'; write row numbers from 1 on, as 3, as 3,7 or as 3-7"),
        (["--rows", "1,7-99999999999999", "--base", thinker, path], f"--rows: {path} has no row 7; name a lower one"),
        (["--rows", "3-1", path], "--rows: found '3-1'; write row numbers from 1 on, as 3, as 3,7 or as 3-7"),
        (["--rows", "9" * 5000, path], f"--rows: found '{'9' * 5000}"[:2000]),
        (["--rows", "5-", path], "--rows: found '5-'; write row numbers from 1 on, as 3, as 3,7 or as 3-7"),
        (["--bundle", "0", path], "--bundle: found 0; use 1 or more"),
        (["--bundle", "2", "--base", thinker, pairs], f"--bundle: {pairs} has rows of kind preference, which are no steps"),
        # Five steps, and two bundles of them.
        (["--bundle", "8", "--rows", "3", "--base", thinker, RUNS], f"--rows: {RUNS} has no row 3; name a lower one"),
        (["--bundle", "2", "--base", thinker, path], f"--bundle: {path} has chats and no steps of agent runs; leave it out"),
        (["--base", thinker, tmp_path / "no.jsonl"], f"{tmp_path}/no.jsonl is not there; put the JSONL file there, or name another one in the Dataset's spec.source"),
        (["--run-file", nowhere, path], f"no --base is named and there is no run file {nowhere}; name a base and files"),
        (["--run-file", nowhere, "--rows", "1"], f"no FILE is named and there is no run file {nowhere}; name a base and files"),
    ):  # fmt: skip
        assert main(["inspect", *map(str, arguments)]) == 1
        assert capsys.readouterr().err == f"halo-trainer: {sentence}\n"
