"""What an estimate reads from a TrainingJob and its catalog: rows, episodes, GPUs, for each base and every recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_api.criterion import CriterionSpec
from halo_api.estimate import Estimate
from halo_operator.plan.budget import BUDGET, hold_of, quote_of
from halo_operator.plan.estimate import Workload, estimate
from halo_operator.plan.estimate_runs import workload_of
from halo_operator.plan.quote import amounts, quote, quote_lines
from halo_operator.plan.world import BaseEntry, CriterionEntry, GpuEntry, RunWorld
from halo_operator.recipes import RECIPES
from tests.unit import builders as b

Object = dict[str, Any]

QWEN3_8B = {
    "parametersB": 8.19, "contextLength": 40960, "offers": ["lora_trl", "halo_rlvr", "halo_rft"], "chatTemplate": {"thinking": True},
    "shape": {"layers": 36, "heads": 32, "kvHeads": 8, "headDim": 128, "hidden": 4096, "vocabulary": 151936},
}  # fmt: skip


def world(
    recipe: str = "sql_v3", model: dict[str, Any] | None = None, criterion: CriterionEntry | None = None, **changes: Any
) -> RunWorld:
    spec, base = b.spec(**changes), BaseEntry("smol", b.base(**(QWEN3_8B | (model or {}))))
    found = b.catalog(base=base, recipe=RECIPES[recipe], criterion=criterion)
    if spec.base != "lora_trl":
        spec, found = spec.model_copy(update={"lora": None}), replace(found, dataset=None)
    return b.world(spec=spec, catalog=found)


def rlvr(recipe: str = "sql_v3", gpus: int = 2, rollout: int = 1, **changes: Any) -> RunWorld:
    part = {"recipe": recipe, "rolloutGpus": rollout} | changes.pop("rlvr", {})
    return world(recipe, **({"base": "halo_rlvr", "gpu": {"type": "h100", "count": gpus}, "rlvr": part} | changes))


def work(found: RunWorld) -> Workload:
    made = workload_of(found)
    assert made
    return made


def hours(found: RunWorld) -> float:
    return amounts(estimate(work(found))).centre / 3_600_000


def test_rows_are_those_that_were_counted() -> None:
    training = work(world()).training
    assert (training.rows, training.row_tokens, training.longest) == (8, 90, 120)
    cut = work(world(lora={"maxLength": 64, "overlength": "truncate"})).training
    assert (cut.row_tokens, cut.longest) == (64, 64)


def test_dpo_trains_two_rows_a_pair_and_scores_them() -> None:
    training = work(world(lora={"method": "dpo"})).training
    # A pair was counted as one row of both answers.
    assert (training.rows, training.row_tokens, training.scorings) == (16, 45, 1)


def test_long_rows_are_split_as_far_as_the_longest_needs() -> None:
    found = world(contextParallel="auto", gpu={"type": "h100", "count": 8})
    counted = b.inspection(longestRow=100_000, tokens=500_000)
    long = replace(found, catalog=replace(found.catalog, dataset=b.dataset(inspections=(counted,))))
    assert work(long).training.context_parallel == 4


@pytest.mark.parametrize("recipe", [name for name, entry in RECIPES.items() if not entry.spec.retired])
def test_every_recipe_has_an_estimate(recipe: str) -> None:
    found = work(rlvr(recipe, gpus=4, rollout=2, rlvr={"rolloutReplicas": 2}))
    assert found.rollout
    assert found.rollout.episode_tokens <= 40960 + 1
    most = RECIPES[recipe].spec.rows.max_tokens
    assert found.training.row_tokens <= (most or 40960)
    assert found.updates_per_round == RECIPES[recipe].spec.rollouts.updates_per_round
    assert found.overlapped == (recipe == "sql_v4_dapo_async1")
    assert 0.1 < hours(rlvr(recipe, gpus=4, rollout=2)) < 10_000


def test_rollouts_beside_training_are_faster() -> None:
    sync, beside = (rlvr(name, gpus=4, rollout=2, rlvr={"rolloutReplicas": 2}) for name in ("sql_v4_dapo_sync", "sql_v4_dapo_async1"))  # fmt: skip
    assert hours(beside) < hours(sync)
    assert estimate(work(beside)).overlap > 0


def test_two_updates_a_round_sample_half_as_often() -> None:
    once, twice = rlvr("sql_v4_dapo_sync"), rlvr("sql_v4_cispo_reuse2")
    assert estimate(work(twice)).seconds["decode"] < estimate(work(once)).seconds["decode"]


def test_thinking_costs_more() -> None:
    assert hours(rlvr(mode="final")) < hours(rlvr(mode="reasoning"))
    assert hours(rlvr()) == hours(rlvr(mode="reasoning"))
    assert hours(rlvr(model={"chatTemplate": {"thinking": False}})) == hours(rlvr(mode="final"))


def test_a_judges_spend_is_in_the_quote() -> None:
    judge = {"url": "https://judge.example/v1", "model": "judge-1", "inputUsd": 0.4, "outputUsd": 1.6}
    spec = CriterionSpec.model_validate({"unit": "trace", "rubric": "Is the answer right?", "judge": judge})
    judged = rlvr(rlvr={"judge": {"criterion": "c", "weight": 0.5}}, criterion=CriterionEntry("c", spec))
    found = estimate(work(judged))
    # 100 steps of 8 episodes, each judged on 4,000 tokens and in 500.
    assert found.judge_micro_usd == 100 * 8 * (4000 * 0.4 + 500 * 1.6)
    assert quote(found, 3_000_000).usd != quote(replace(found, judge_micro_usd=0), 3_000_000).usd


def test_rft_samples_before_it_trains() -> None:
    rft = {"base": "halo_rft", "rft": {"dataset": "tasks", "tasks": 100, "samples": 4}}
    found = work(world(**rft))
    assert found.sampled_first
    assert found.sampled_first.episodes == 400
    more = work(world(**(rft | {"rft": {"dataset": "tasks", "tasks": 200, "samples": 4}})))
    assert estimate(found).to_first_checkpoint < estimate(more).to_first_checkpoint
    assert estimate(found).seconds["decode"] > 0


def test_a_qwen3_8b_costs_what_the_examples_say() -> None:
    """64 episodes of about 6 turns, 100 steps, one GPU trains and one samples: 11.1 GPU hours with whole-trajectory rows."""
    rows_a_turn = hours(rlvr(batch=64, steps=100, mode="final"))
    assert 11.1 < rows_a_turn < 60


def test_the_quote_in_words_fits_a_warning() -> None:
    found = quote(estimate(work(rlvr(steps=1_000_000, batch=65_536, gpus=1024, rollout=512))), 10_000_000, 10**12)
    lines = quote_lines(found)
    assert all(len(line) <= 250 for line in lines)
    assert lines[0].startswith("quote: ")
    assert "no more than the budget" in lines[0]
    assert "roofline" in lines[0]
    assert "first checkpoint after" in lines[1]


@pytest.mark.parametrize("missing", ["base", "gpu", "dataset"])
def test_there_is_no_estimate_while_something_is_not_there(missing: str) -> None:
    found = world()
    assert workload_of(replace(found, catalog=replace(found.catalog, **{missing: None}))) is None


bases = st.fixed_dictionaries(
    {"parametersB": st.floats(1e-6, 10_000), "contextLength": st.integers(128, 16_777_216), "gpus": st.integers(1, 8)},
    optional={
        "activeParametersB": st.floats(1e-6, 10_000),
        "attention": st.sampled_from(["full", "hybrid"]),
        "dtype": st.sampled_from(["bf16", "fp32"]),
        "shape": st.none(),
    },
)
classes = st.fixed_dictionaries(
    {"memoryGiB": st.integers(1, 4096), "h100Equivalent": st.floats(1e-300, 1000)},
    optional={
        "peakTflops": st.floats(1e-300, 1e6),
        "bandwidthTBs": st.floats(1e-300, 1e4),
        "prices": st.just([{"region": "eu", "usdPerHour": 10_000, "markup": 100}]),
    },
)


@given(
    model=bases,
    gpu=classes,
    recipe=st.sampled_from(sorted(RECIPES)),
    kind=st.sampled_from(["halo_rlvr", "halo_rft"]),
    steps=st.integers(1, 10**6),
    batch=st.integers(1, 65_536),
    count=st.integers(1, 1024),
    rollout=st.integers(1, 1023),
    budget=st.none() | st.integers(1, 10**8).map(lambda n: n / 1000),
)
@settings(max_examples=200, deadline=None)
def test_whatever_the_schema_lets_pass_has_a_quote(
    model: Object,
    gpu: Object,
    recipe: str,
    kind: str,
    steps: int,
    batch: int,
    count: int,
    rollout: int,
    budget: float | None,
) -> None:
    part = {"rlvr": {"recipe": recipe, "rolloutGpus": rollout}} if kind == "halo_rlvr" else {"rft": {"recipe": recipe}}
    asked = {"base": kind, "steps": steps, "batch": batch, "gpu": {"type": "h100", "count": count}} | part
    found = world(recipe, model, **(asked | ({"budget": {"h100Hours": budget}} if budget else {})))
    found = replace(found, catalog=replace(found.catalog, gpu=GpuEntry("h100", b.gpu(**gpu))))
    made, hold = quote_of(found), hold_of(found)
    assert made
    assert hold
    assert Estimate.model_validate(made.to_json()) == made
    assert all(refusal is None or refusal.message for refusal in (check(found) for check in BUDGET))
