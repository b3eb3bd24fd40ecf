"""Trees in training: bundles whose steps fork have the gradient of their steps, and a run on them resumes to the bit."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from agent_runs import THINKER, talk, tool_run
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from random_layouts import FORKS, GRADIENTS, row, runs
from tiny_models import VOCABULARY, difference, gradient_of, tiny_model
from trainer_support import adapter_bytes, run_file, train_here, write_rows

from halo_trainer.attention import install
from halo_trainer.data.batches import rank_share
from halo_trainer.data.bundle import Tally, tree_bundles
from halo_trainer.data.collate import collate, trained_tokens
from halo_trainer.data.layout import tree_layout
from halo_trainer.data.template import TokenRow
from halo_trainer.methods import PackedSft
from halo_trainer.model import answer_logits
from halo_trainer.objectives.sft import sft_loss

CPU = torch.device("cpu")
# A router's choice can turn on the last bit, so a mixture of experts is held to its rows in fp64 only.
CASES = [
    *((kind, torch.float32, 1e-5) for kind in ("llama", "qwen3")),
    *((kind, torch.float64, 1e-8) for kind in ("llama", "qwen3", "qwen3_moe")),
]


@functools.cache
def models(kind: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """The same weights twice: with transformers' own attention, and with that of layouts."""
    alone, flat = tiny_model(kind, dtype), tiny_model(kind, dtype)
    install(flat.get_base_model())
    return alone, flat


@pytest.mark.parametrize(("kind", "dtype", "bound"), CASES)
@GRADIENTS
@given(
    steps=runs(VOCABULARY),
    most=st.integers(2, 6),
    length=st.integers(4, 40),
    size=st.integers(1, 3),
    world=st.integers(1, 2),
)
@example(FORKS, 4, 40, 2, 1)
@example(FORKS, 4, 9, 3, 2)
def test_a_step_of_trees_has_the_gradient_of_its_steps_alone(
    kind: str, dtype: torch.dtype, bound: float, steps: list[TokenRow], most: int, length: int, size: int, world: int
) -> None:
    """Through the method as the loop calls it, on every rank; wherever maxLength cuts the steps and the trees."""
    kept = [cut for cut in (each.truncated(length) for each in steps) if trained_tokens([cut])]
    assume(kept)
    alone, flat = models(kind, dtype)
    denominator = trained_tokens(kept)
    expected = torch.zeros(())
    for each in kept:
        micro = collate([each], 0, CPU)
        sft_loss(answer_logits(alone, micro), micro.targets_BK, micro.trained_BK, denominator).backward()
        expected = expected + gradient_of(alone)
    method = PackedSft(list(tree_bundles(kept, most, length, Tally())), flat, CPU)
    step = list(range(len(method.lengths)))
    assert method.denominator(step) == denominator
    for rank in range(world):
        for part in method.passes(rank_share(step, method.lengths, rank, world), size):
            method.share(part, step).loss.backward()
    assert difference(gradient_of(flat), expected) <= bound


@settings(max_examples=100, deadline=None)
@given(steps=runs(), most=st.integers(1, 6))
def test_a_trees_numbers_are_those_of_its_layout(steps: list[TokenRow], most: int) -> None:
    """Also of trees with several roots: where the first tokens of two steps differ."""
    for tree in tree_bundles(steps, most, 1 << 20, Tally()):
        layout = tree_layout(tree.segments)
        seen = sum(depth + 1 for depth in layout.positions)
        keys = sum(end - start for run in layout.runs for start, end in run.keys)
        assert (len(tree), tree.predicted, tree.pairs) == (len(layout), len(layout.targets), seen)
        assert tree.copies == keys / len(layout)


def test_the_first_token_of_a_root_has_no_loss() -> None:
    (tree,) = tree_bundles([row("a", [], [1, 2]), row("a", [], [3, 2])], 8, 40, Tally())
    assert [segment.parent for segment in tree.segments] == [None, None]
    assert (tree.predicted, tree.pairs) == (2, 6)


def talks(root: Path, **lora: Any) -> Any:
    """Write two talks, of which each step forks, and a tool loop; return a run file that trains on their bundles."""
    (root / "models" / "tiny" / "chat_template.jinja").write_text(THINKER)
    write_rows(root / "data" / "chat.jsonl", [*talk("a", 3), *tool_run("b", 2), *talk("c", 2)])
    return functools.partial(run_file, lora={"packing": True, "microBatch": 2} | lora, steps=4, saveSteps=2)


def test_a_run_learns_the_same_from_trees(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps of all eight rows, and steps of the three trees that hold the same answers."""
    from safetensors.torch import load

    alone = train_here(talks(root)(batch=8, output="alone"), root)
    forked = train_here(talks(root, bundle=8)(batch=3, output="forked"), root)
    assert "bundle 8: 8 steps in 3 rows: " in capsys.readouterr().out
    assert alone.progress
    assert forked.progress
    assert forked.progress.loss == pytest.approx(alone.progress.loss, rel=1e-4)
    assert forked.progress.tokens < alone.progress.tokens / 1.5
    assert forked.progress.bundle_ratio == pytest.approx(alone.progress.tokens / forked.progress.tokens, rel=0.05)
    expected, found = (load(adapter_bytes(root, name)["adapter_model.safetensors"]) for name in ("alone", "forked"))
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-2, atol=1e-4)


def test_a_run_on_trees_resumes_to_the_bit(root: Path) -> None:
    file = talks(root, bundle=3, dropout=0.1)
    straight = train_here(file(batch=2, output="straight"), root)
    assert [checkpoint.step for checkpoint in straight.checkpoints] == [2, 4]
    kept = straight.checkpoints[0]
    resume = {"step": kept.step, "uri": kept.uri, "digest": kept.digest}
    train_here(file(batch=2, output="second", resume=resume), root)
    assert adapter_bytes(root, "second") == adapter_bytes(root, "straight")


def test_a_fork_begins_a_row_where_trees_do_not_train(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without packing, and on a base that is not packed; and there only."""
    train_here(talks(root, bundle=8, packing=False)(batch=2, output="padded"), root)
    assert "bundle 8: 8 steps in 6 rows: " in capsys.readouterr().out
    config = root / "models" / "tiny" / "config.json"
    rope = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}
    config.write_text(json.dumps(json.loads(config.read_text()) | rope))
    assert train_here(talks(root, bundle=8)(batch=2, output="dynamic"), root).outcome.result == "Succeeded"
    told = capsys.readouterr().out
    assert "bundle 8: 8 steps in 6 rows: " in told
    assert "rows are padded, not packed: its dynamic rotary positions" in told


def test_bundles_are_made_before_the_weights_are_read(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = talks(root, bundle=8)(output="none")
    (root / "models" / "tiny" / "model.safetensors").unlink()
    assert train_here(file, root).outcome.reason == "BaseMissing"
    assert "bundle 8: 8 steps in 3 rows: " in capsys.readouterr().out
    (root / "models" / "tiny" / "config.json").write_text("{")
    outcome = train_here(file, root).outcome
    assert outcome.reason == "BaseMissing"
    assert outcome.message.startswith("base tiny: its config.json can't be loaded (")
