"""Bundles: in a row or a tree of several steps, each answer trains once, behind exactly what its own row has before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from agent_runs import THINKER, talk, tool_run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_layouts import row, runs
from trainer_support import CHATML, adapter_bytes, chat, make_tokenizer, run_file, train_here, write_rows

from halo_api.run_file import BaseRef
from halo_api.run_status import FrozenLora
from halo_trainer.data.bundle import Tally, Tree, linear_bundles, taught, tree_bundles
from halo_trainer.data.collate import collate, trained_tokens
from halo_trainer.data.load import fitting_rows
from halo_trainer.data.steps import step_row
from halo_trainer.data.template import Template, TokenRow
from halo_trainer.model import answer_logits, attach_lora, load_base, trained_parameters
from halo_trainer.objectives.sft import sft_loss

BASE = BaseRef(name="tiny", source="pvc://models/tiny", revision="abcdef0", dtype="fp32", context_length=512)
WHOLE = 1 << 20


# What a trained token is: all that it sees, and itself.
Lesson = tuple[tuple[int, ...], int]


def lessons(rows: Iterable[TokenRow]) -> Counter[Lesson]:
    return Counter((tuple(r.ids[:at]), r.ids[at]) for r in rows for at in range(1, len(r)) if r.trained[at])


def tree_lessons(trees: Iterable[Tree]) -> Counter[Lesson]:
    """The same of trees, by the rule that says what a token of a segment sees."""
    found: Counter[Lesson] = Counter()
    for tree in trees:
        seen: list[tuple[int, ...]] = []
        for index, segment in enumerate(tree.segments):
            assert segment.parent is None or 0 <= segment.parent < index
            assert len(segment) == len(segment.trained) > 0
            before = () if segment.parent is None else seen[segment.parent]
            seen.append((*before, *segment.ids))
            for at, trained in enumerate(segment.trained, len(before)):
                if trained and at:
                    found[seen[index][:at], seen[index][at]] += 1
    return found


@given(steps=runs(), most=st.integers(1, 6), length=st.integers(1, 24))
@settings(max_examples=300, deadline=None)
def test_each_answer_trains_once_behind_what_it_saw(steps: list[TokenRow], most: int, length: int) -> None:
    """Whatever the runs are, and wherever the longest row is cut."""
    kept = [r.truncated(length) for r in steps if r.truncated(length).teaches]
    tallies = Tally(), Tally()
    rows = list(linear_bundles(kept, most, tallies[0]))
    trees = list(tree_bundles(kept, most, length, tallies[1]))
    assert lessons(rows) == tree_lessons(trees) == lessons(kept)
    assert max(map(len, rows), default=0) <= length
    assert max(map(len, trees), default=0) <= length
    for tally, bundles in zip(tallies, (rows, trees), strict=True):
        assert (tally.steps, tally.rows) == (len(kept), len(bundles))
        assert tally.step_tokens == sum(len(taught(r)) for r in kept)
    assert tallies[0].row_tokens == sum(map(len, rows))
    assert tallies[1].row_tokens == sum(map(len, trees))


@given(steps=runs(), most=st.integers(1, 6))
@settings(max_examples=200, deadline=None)
def test_a_tree_holds_no_beginning_twice(steps: list[TokenRow], most: int) -> None:
    """Segments of one parent begin with different tokens, unless both train them."""
    for tree in tree_bundles(steps, most, WHOLE, Tally()):
        siblings: dict[tuple[int | None, int], list[int]] = {}
        for segment in tree.segments:
            siblings.setdefault((segment.parent, segment.ids[0]), []).append(segment.trained[0])
        assert all(len(found) == 1 or all(found) for found in siblings.values())


def test_steps_that_see_all_before_are_one_row_and_others_are_not_joined() -> None:
    steps = [row("a", [1], [2]), row("a", [1, 2, 3], [4], tail=[9]), row("a", [1, 2, 3, 4, 5], [6, 7])]
    (bundle,) = linear_bundles(steps, 8, Tally())
    assert (list(bundle.ids), list(bundle.trained)) == ([1, 2, 3, 4, 5, 6, 7], [0, 1, 0, 1, 0, 1, 1])
    tally = Tally()
    assert [len(r) for r in linear_bundles(steps, 2, tally)] == [4, 7]
    assert (tally.steps, tally.rows, tally.step_tokens, tally.row_tokens) == (3, 2, 13, 11)
    # The next run, and rows of no run, begin the same.
    others = [row("a", [1], [2]), row("b", [1, 2], [3])]
    assert len(list(linear_bundles(others, 8, Tally()))) == len(list(tree_bundles(others, 8, WHOLE, Tally()))) == 2
    assert len(list(linear_bundles([row("", [1], [2]), row("", [1, 2], [3])], 8, Tally()))) == 2
    # The same step twice trains twice.
    assert len(list(linear_bundles([steps[0], steps[0]], 8, Tally()))) == 2


def test_a_fork_begins_a_row_or_a_segment() -> None:
    """The second step no longer sees the thinking (8) before the answer (4, 5), which is context where it comes again."""
    steps = [row("a", [1, 2], [8, 4, 5]), row("a", [1, 2, 4, 5, 3], [6])]
    assert [len(r) for r in linear_bundles(steps, 8, Tally())] == [5, 6]
    tally = Tally()
    (tree,) = tree_bundles(steps, 8, WHOLE, tally)
    assert [(list(s.ids), list(s.trained), s.parent) for s in tree.segments] == [
        ([1, 2], [0, 0], None),
        ([8, 4, 5], [1, 1, 1], 0),
        ([4, 5, 3, 6], [0, 0, 0, 1], 0),
    ]
    assert str(tally) == "2 steps in 1 rows: 11 tokens as rows of their own, 9 bundled, 1.22 times less"


def test_a_tree_is_cut_before_a_step_that_makes_it_too_long() -> None:
    steps = [row("a", [1, 2], [3]), row("a", [1, 2, 4], [5, 6]), row("a", [1, 2, 4, 5, 6], [7])]
    assert [len(tree) for tree in tree_bundles(steps, 8, 6, Tally())] == [6, 6]
    assert [len(tree) for tree in tree_bundles(steps, 8, 5, Tally())] == [3, 5, 6]


@pytest.mark.parametrize(
    ("template", "steps", "linear", "segments"),
    [
        # Tools: each step sees the thinking of those before. Talk: it sees none of it.
        (THINKER, tool_run("a", 7), 1, 1),
        (THINKER, talk("a", 5), 5, 9),
        (CHATML, [s | {"answer": {"role": "assistant", "content": "Blue."}} for s in talk("a", 5)], 1, 1),
    ],
)
def test_what_templates_make_of_runs(template: str, steps: list[dict[str, Any]], linear: int, segments: int) -> None:
    made = Template(make_tokenizer(template), "tiny")
    rows = [made.token_row(step_row(1, line)) for line in steps]
    assert len(list(linear_bundles(rows, 8, Tally()))) == linear
    tally = Tally()
    (tree,) = tree_bundles(rows, 8, WHOLE, tally)
    assert len(tree.segments) == segments
    assert tree_lessons([tree]) == lessons(rows)
    assert tally.ratio > 1.5


@pytest.fixture(scope="module")
def model(tiny_base: Path) -> Any:
    """A model whose adapter is not the identity."""
    model = attach_lora(load_base(BASE, tiny_base), FrozenLora(dataset="chat", rank=4, alpha=8), 0)
    torch.manual_seed(1)
    for parameter in trained_parameters(model).values():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def gradient(model: Any, rows: list[TokenRow]) -> torch.Tensor:
    """Return the gradient of a step of these rows, each in a forward pass of its own."""
    parameters = trained_parameters(model)
    for parameter in parameters.values():
        parameter.grad = None
    for each in rows:
        micro = collate([each], 0, torch.device("cpu"))
        loss = sft_loss(answer_logits(model, micro), micro.targets_BK, micro.trained_BK, trained_tokens(rows))
        loss.backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.reshape(-1) for p in parameters.values() if p.grad is not None])


SAME = row("a", [1, 2], [3, 4])
EMPTY = [row("a", [1, 2], [3]), row("a", [1, 2, 3], [4]), row("a", [1, 2, 3, 4], [5])]
HISTORY = [row("a", [1, 2], [8, 3, 4]), row("a", [1, 2, 3, 4, 5], [6]), row("a", [1, 2, 3, 4, 5, 6, 3, 4], [3, 4])]


@given(steps=runs(300), most=st.integers(2, 6), length=st.integers(2, 30))
@example([SAME, SAME, SAME], 4, 30)
@example(EMPTY, 4, 30)
@example(HISTORY, 4, 30)
@example(EMPTY, 4, 4)
@example(HISTORY, 4, 6)
@settings(max_examples=25, deadline=None)
def test_a_bundle_has_the_gradient_of_its_steps(model: Any, steps: list[TokenRow], most: int, length: int) -> None:
    kept = [r.truncated(length) for r in steps if trained_tokens([r.truncated(length)])]
    if not kept:
        return
    bundles = list(linear_bundles(kept, most, Tally()))
    assert trained_tokens(bundles) == trained_tokens(kept)
    alone = gradient(model, kept)
    assert (gradient(model, bundles) - alone).norm() <= 1e-5 * alone.norm()


def test_a_real_run_has_the_gradient_of_its_steps_wherever_it_is_cut(model: Any) -> None:
    """A tool loop, at every length that cuts it at, before or behind the boundary of a step."""
    made = Template(make_tokenizer(THINKER), "tiny")
    rows = [made.token_row(step_row(1, line)) for line in tool_run("a", 2)]
    ends = sorted(
        {length + by for r in rows for length in (len(r), len(taught(r)), r.trained.index(1)) for by in (-1, 0, 1)}
    )
    for length in ends:
        if length <= rows[0].trained.index(1):
            continue
        kept = list(fitting_rows(rows, length, "truncate"))
        bundles = list(linear_bundles(kept, 8, Tally()))
        alone = gradient(model, kept)
        assert len(bundles) == 1
        assert (gradient(model, bundles) - alone).norm() <= 1e-5 * alone.norm()


def agent_file(root: Path, **lora: Any) -> Any:
    """Write two runs, the one a talk and the other with a tool's results, and return a run file that trains on them."""
    lines = []
    for name, turns in (("a", 3), ("b", 4)):
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"Colour of {name}?"}]
        for at in range(turns):
            answer = {"role": "assistant", "content": f"Colour {at}."}
            lines.append({"run": name, "messages": list(messages), "answer": answer})
            messages += [answer, {"role": "tool" if at % 2 else "user", "content": "And now?" * (at % 3)}]
    write_rows(root / "data" / "chat.jsonl", lines)
    return lambda **train: run_file(lora=lora, steps=4, saveSteps=4, **train)


def weights(root: Path, output: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load

    return load(adapter_bytes(root, output)["adapter_model.safetensors"])


def test_a_run_learns_the_same_from_bundles(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps of all seven rows, and steps of the two bundles that hold the same answers."""
    alone = train_here(agent_file(root)(batch=7, output="alone"), root)
    bundled = train_here(agent_file(root, bundle=8)(batch=2, output="bundled"), root)
    told = "bundle 8: 7 steps in 2 rows: "
    assert told in capsys.readouterr().out
    assert alone.progress
    assert bundled.progress
    assert bundled.progress.loss == pytest.approx(alone.progress.loss, rel=1e-4)
    assert (alone.progress.bundle_ratio, bundled.progress.tokens < alone.progress.tokens / 2) == (None, True)
    assert bundled.progress.bundle_ratio == pytest.approx(alone.progress.tokens / bundled.progress.tokens, rel=0.05)
    for name, expected in weights(root, "alone").items():
        torch.testing.assert_close(weights(root, "bundled")[name], expected, rtol=1e-2, atol=1e-4)


def test_a_bundled_run_goes_on_bit_for_bit(root: Path) -> None:
    file = agent_file(root, bundle=2)
    straight = train_here(file(batch=3, output="straight"), root)
    assert straight.outcome
    assert straight.outcome.result == "Succeeded"
    run = file(batch=3, output="first")
    first = train_here(run.model_copy(update={"train": run.train.model_copy(update={"save_steps": 2})}), root)
    kept = first.checkpoints[0]
    resume = {"step": kept.step, "uri": kept.uri, "digest": kept.digest}
    train_here(file(batch=3, output="second", resume=resume), root)
    assert adapter_bytes(root, "second") == adapter_bytes(root, "straight")


def test_bundles_of_what_has_no_steps_are_refused(root: Path) -> None:
    """Before the base is loaded, which takes minutes for a large one."""
    (root / "models" / "tiny" / "model.safetensors").unlink()
    write_rows(root / "data" / "chat.jsonl", [chat("Colour?", "Blue.")])
    outcome = train_here(run_file(lora={"bundle": 4}), root).outcome
    assert outcome
    assert (outcome.reason, outcome.message) == (
        "InvalidSpec",
        "spec.lora.bundle: found 4, and data set chat has chats and no steps of agent runs; "
        "leave it out, or name a data set whose lines have run, messages and answer",
    )
    pairs = {"name": "chat", "kind": "preference", "source": "pvc://data/chat.jsonl"}
    outcome = train_here(run_file(lora={"bundle": 4, "method": "dpo"}, data=pairs), root).outcome
    assert outcome
    assert outcome.message == "spec.lora.bundle: belongs to sft by Halo, found method dpo; remove it"
