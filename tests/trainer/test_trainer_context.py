"""Context parallel: a step of rows that several ranks share has the gradient of its rows alone, and a run resumes to the bit."""

from __future__ import annotations

import functools
import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from agent_runs import THINKER, talk, tool_run
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from random_layouts import FORKS, GRADIENTS, runs
from rank_workers import Workers, step_gradient
from tiny_models import HYBRID, VOCABULARY, as_vector, difference, gradient_of, tiny_config, tiny_model
from trainer_support import adapter_bytes, completed, killed, run_file, train_here, write_rows

from halo_api.report import Report
from halo_api.run_file import RunFile
from halo_trainer.activations import saved_bytes
from halo_trainer.data.bundle import Tally, Tree, linear_bundles, tree_bundles
from halo_trainer.data.collate import collate, trained_tokens
from halo_trainer.data.template import TokenRow
from halo_trainer.methods import PackedSft
from halo_trainer.model import answer_logits
from halo_trainer.objectives.sft import sft_loss
from halo_trainer.parallel.context import Context
from halo_trainer.parallel.ranks import Group

CPU = torch.device("cpu")
# A router's choice can turn on the last bit, so a mixture of experts is held to its rows in fp64 only.
CASES = [("qwen3", torch.float32, 1e-5), ("qwen3_moe", torch.float64, 1e-8), ("qwen3_5_text", torch.float64, 1e-8)]
EVERY = [
    *((kind, torch.float32, 1e-5) for kind in ("llama", "qwen2", "qwen3")),
    *((kind, torch.float64, 1e-8) for kind in ("llama", "qwen2", "qwen3", "qwen3_moe", *HYBRID)),
]


@functools.cache
def lone_model(kind: str, dtype: torch.dtype) -> Any:
    """The same weights, with transformers' own attention."""
    return tiny_model(kind, dtype)


def lone_gradient(kind: str, dtype: torch.dtype, rows: list[TokenRow]) -> torch.Tensor:
    """The sum of the rows' own gradients, each by transformers' own attention on that row alone."""
    model, total = lone_model(kind, dtype), torch.zeros(())
    for each in rows:
        micro = collate([each], 0, CPU)
        loss = sft_loss(answer_logits(model, micro), micro.targets_BK, micro.trained_BK, trained_tokens(rows))
        loss.backward()  # type: ignore[no-untyped-call]
        total = total + gradient_of(model)
    return total


def long_row(length: int, *trained: int, text: int = 0) -> TokenRow:
    ids = torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(text)).tolist()
    return TokenRow(array("i", ids), bytearray(place in trained for place in range(length)))


@st.composite
def long_rows(draw: st.DrawFn) -> TokenRow:
    """A prompt and answers, of which one may be a single token; some rows have the text of others."""
    length = draw(st.integers(2, 50))
    first = draw(st.integers(1, length - 1))
    last = draw(st.sampled_from([first + 1, length]))
    later = draw(st.integers(last, length))
    return long_row(length, *range(first, last), *range(later, length), text=draw(st.integers(0, 2)))


# A row whose one trained token is predicted on the first rank, and one on the last; the same row twice; only short ones.
LOPSIDED = [long_row(40, 1), long_row(9, 8)]
LATE = [long_row(40, 39), long_row(5, 2)]
SAME = [long_row(32, 20, 21, 31)] * 2
# Of several chunks of a state, of which none ends where a rank's slice does.
CHUNKS = [long_row(150, 1, 70, 149), long_row(66, 64, 65), long_row(40, 9)]
SHORT = [long_row(6, 3), long_row(9, 8, 7), long_row(4, 1)]


def holds(workers: Workers, case: Any, rows: list[Any], kept: list[TokenRow], *how: int) -> list[int]:
    kind, dtype, bound = case
    answers = workers.ask(step_gradient, kind, dtype, rows, *how)
    expected = lone_gradient(kind, dtype, kept)
    for found, _, _ in answers:
        assert torch.equal(found, answers[0][0])
    assert difference(answers[0][0], expected) <= bound
    return [passes for _, _, passes in answers]


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "qwen3_5_text"])
def test_layers_with_split_rows_are_computed_again_to_the_same_bits(two: Workers, kind: str) -> None:
    """What they exchange is exchanged again, by all ranks in the same order."""
    rows = [*LOPSIDED, *SAME, *SHORT]
    kept, one, all_of_them = (
        two.ask(step_gradient, kind, torch.float32, rows, 2, 16, 1, again)[0][0] for again in (0, 1, 2)
    )
    assert torch.equal(one, kept)
    assert torch.equal(all_of_them, kept)


@pytest.mark.parametrize("case", CASES)
@settings(GRADIENTS, max_examples=6)
@given(rows=st.lists(long_rows(), min_size=1, max_size=6), whole=st.integers(4, 40), size=st.integers(1, 2))
@example(LOPSIDED, 16, 1)
@example(LATE, 16, 1)
@example(SAME, 16, 1)
@example(SHORT, 16, 1)
@example(CHUNKS, 50, 2)
def test_a_step_of_split_rows_has_the_gradient_of_its_rows_alone(
    two: Workers, case: Any, rows: list[TokenRow], whole: int, size: int
) -> None:
    holds(two, case, rows, rows, 2, whole, size)


def bundles(steps: list[TokenRow], forks: bool, most: int = 6) -> list[TokenRow] | list[Tree]:
    if forks:
        return list(tree_bundles(steps, most, 1 << 20, Tally()))
    return list(linear_bundles(steps, most, Tally()))


@pytest.mark.parametrize("case", CASES)
@settings(GRADIENTS, max_examples=4)
@given(steps=runs(VOCABULARY), forks=st.booleans(), whole=st.integers(4, 20), size=st.integers(1, 2))
@example(FORKS, True, 6, 1)
@example(FORKS, False, 6, 1)
def test_a_step_of_split_bundles_has_the_gradient_of_its_steps_alone(
    two: Workers, case: Any, steps: list[TokenRow], forks: bool, whole: int, size: int
) -> None:
    kept = [each for each in steps if trained_tokens([each])]
    assume(kept)
    holds(two, case, bundles(kept, forks and case[0] not in HYBRID), kept, 2, whole, size)


@pytest.mark.parametrize(("kind", "dtype"), [("llama", torch.float32), ("qwen3_5_text", torch.float64)])
def test_ranks_wait_for_each_other_only_where_a_row_is_split(kind: str, dtype: torch.dtype) -> None:
    """Here there is no other one. Each has its own rows whole; one without rows goes through the pass all the same."""
    model = tiny_model(kind, dtype)
    step = list(range(len(SHORT)))
    for rows in (SHORT, SHORT[:1]):
        for rank in range(2):
            method = PackedSft(rows, model, CPU, context=Context(Group(rank, 2), 16))
            (part,) = method.passes(step[: len(rows)], 2)
            method.share(part, part).loss.backward()
        found = gradient_of(model)
        assert difference(found, lone_gradient(kind, dtype, rows)) <= 1e-5


def test_a_trial_keeps_the_keys_of_a_whole_group() -> None:
    """By which it is decided what is computed again: beside its own a rank keeps keys and values of the others, in each layer."""
    model, length = tiny_model("llama"), 32
    kept = []
    for context in (None, Context(Group(0, 4), 16)):
        method = PackedSft(SHORT, model, CPU, context=context)
        kept.append(saved_bytes(model, functools.partial(method.trial, length)))
    config = model.config
    # Three times, of keys and values, in fp32.
    others = 3 * 2 * length * config.hidden_size // config.num_attention_heads * config.num_key_value_heads * 4
    assert kept[1] - kept[0] >= config.num_hidden_layers * others


def test_short_rows_lie_beside_a_split_one_in_one_pass(two: Workers) -> None:
    case = ("llama", torch.float32)
    assert holds(two, (*case, 1e-5), [*SHORT, *LATE], [*SHORT, *LATE], 2, 16, 2) == [1, 1]
    # What is computed again is gathered again, by all ranks, and no bit is another.
    kept, again = (two.ask(step_gradient, *case, [*SHORT, *LATE], 2, 16, 2, layers) for layers in (0, 2))
    assert torch.equal(again[0][0], kept[0][0])


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY)
@pytest.mark.parametrize("sharing", [2, 4])
@settings(GRADIENTS, max_examples=40)
@given(
    rows=st.lists(long_rows(), min_size=1, max_size=8),
    steps=runs(VOCABULARY),
    forks=st.booleans(),
    whole=st.integers(4, 30),
    size=st.integers(1, 2),
)
def test_groups_of_a_world_have_the_gradient_of_their_rows_alone(
    four: Workers,
    case: Any,
    sharing: int,
    rows: list[TokenRow],
    steps: list[TokenRow],
    forks: bool,
    whole: int,
    size: int,
) -> None:
    """Two groups of two ranks and one of four, of rows and bundles in one step."""
    kept = [each for each in steps if trained_tokens([each])]
    forks = forks and case[0] not in HYBRID
    holds(four, case, [*rows, *bundles(kept, forks)], [*rows, *kept], sharing, whole, size)


def split_runs(root: Path, **lora: Any) -> Callable[..., RunFile]:
    """Write talks whose steps fork, and a tool loop; return run files that train on their bundles, alone or by two processes.

    The three bundles have 134, 297 and 90 tokens.
    """
    (root / "models" / "tiny" / "chat_template.jinja").write_text(THINKER)
    write_rows(root / "data" / "chat.jsonl", [*talk("a", 3), *tool_run("b", 2), *talk("c", 2)])
    chosen = {"packing": True, "bundle": 3, "microBatch": 1} | lora
    split = {"contextParallel": {"group": 2, "wholeRow": 200}, "layout": {"gpusPerNode": 2}}

    def run(output: str, processes: int = 2, **train: Any) -> RunFile:
        return run_file(output=output, lora=chosen, batch=2, **(split if processes == 2 else {}), **train)

    return run


def test_a_run_over_two_processes_learns_what_one_does(root: Path) -> None:
    """Started as a pod starts it: bundles that fork, longer than one rank takes, beside shorter ones."""
    run = split_runs(root)
    alone = train_here(run("one", processes=1), root).progress
    told = completed(run("two"), root)
    assert "2 ranks share rows of more than 200 tokens: 1 of 3, the longest of 297\n" in told
    both = Report.model_validate_json((root / "report.json").read_bytes()).progress
    assert alone
    assert both
    assert (both.tokens, both.bundle_ratio) == (alone.tokens, alone.bundle_ratio)
    assert both.loss == pytest.approx(alone.loss, rel=1e-5)
    one, two = (
        as_vector(safetensors.torch.load(adapter_bytes(root, name)["adapter_model.safetensors"]))
        for name in ("one", "two")
    )
    assert difference(two, one) < 1e-5


@pytest.mark.slow
def test_a_killed_run_over_two_processes_goes_on_to_the_same_bytes(root: Path) -> None:
    run = split_runs(root, dropout=0.1)
    completed(run("straight", steps=40), root)
    resume = killed(run("first", steps=40), root)
    completed(run("second", steps=40, resume=resume), root)
    assert adapter_bytes(root, "second") == adapter_bytes(root, "straight")


@pytest.mark.parametrize(
    ("lora", "split", "told"),
    [
        ({"packing": False}, (2, 40), "rows that are split over GPUs are packed, found packing false; set spec.lora.packing: true, or remove one"),
        ({"packing": False, "trainer": "TRL"}, (2, 40), "rows that are split over GPUs belong to sft by Halo, found trainer TRL; remove it"),
        ({"packing": True}, (2, 40), "2 GPUs share a row, found 1, no multiple of 2; use 2"),
    ],
)  # fmt: skip
def test_what_can_not_split_rows_is_refused(
    root: Path, lora: dict[str, Any], split: tuple[int, int], told: str
) -> None:
    group, whole = split
    outcome = train_here(run_file(lora=lora, contextParallel={"group": group, "wholeRow": whole}), root).outcome
    assert outcome
    assert (outcome.reason, outcome.message) == ("InvalidSpec", f"spec.contextParallel: {told}")


def test_rows_of_a_base_that_is_not_packed_are_not_split(root: Path) -> None:
    """Said before the weights are read."""
    config = root / "models" / "tiny" / "config.json"
    rope = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}
    config.write_text(json.dumps(json.loads(config.read_text()) | rope))
    (root / "models" / "tiny" / "model.safetensors").unlink()
    split = {"group": 2, "wholeRow": 40}
    outcome = train_here(run_file(lora={"packing": True}, contextParallel=split), root).outcome
    assert outcome
    assert outcome.message == (
        "spec.contextParallel: rows that are split over GPUs: base tiny has none, since its dynamic rotary positions depend on "
        "the longest row of a forward pass; remove it"
    )


def test_heads_that_a_group_can_not_share_are_refused(root: Path) -> None:
    """Said before the weights are read."""
    tiny_config("qwen3_5_text").save_pretrained(root / "models" / "tiny")
    (root / "models" / "tiny" / "model.safetensors").unlink()
    outcome = train_here(run_file(lora={"packing": True}, contextParallel={"group": 8, "wholeRow": 40}), root).outcome
    assert outcome
    assert outcome.message == (
        "spec.contextParallel: rows that are split over GPUs: base tiny has none, since its linear attention has 4 key heads, "
        "no multiple of 8; remove it"
    )


def test_bundles_grow_no_longer_than_their_group_takes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where no row is split."""
    split_runs(root)
    split = {"group": 1, "wholeRow": 150}
    run_of = functools.partial(run_file, lora={"packing": True, "bundle": 3}, steps=2, batch=2)
    assert train_here(run_of(contextParallel=split), root).outcome.result == "Succeeded"
    assert "bundle 3: 8 steps in 5 rows: " in capsys.readouterr().out
