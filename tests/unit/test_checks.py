"""Whether a run is accepted: the rows of tests/refusals, what is not built yet, and what speaks first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from halo_api.training_job import TrainingJobSpec
from halo_operator.plan.admission import RULES, first_refusal
from halo_operator.plan.checks.available import RLVR_RECIPES
from halo_operator.plan.checks.catalog import spec_has_its_part
from halo_operator.plan.world import BaseEntry, GpuEntry
from tests.refusals import world_money, world_training_job
from tests.unit.builders import (
    base,
    catalog,
    dataset,
    gpu,
    inspection,
    of_tasks,
    parent,
    rft_spec,
    rlvr_spec,
    spec,
    taken,
    world,
)

ROWS = [*world_training_job.ROWS, *world_money.ROWS]
LONG_ROWS = world_training_job.rows(60_000, 8)
HYBRID = BaseEntry("smol", base(attention="hybrid", contextLength=1_000_000))


def test_a_good_run_is_accepted() -> None:
    assert first_refusal(world()) is None
    assert first_refusal(world(spec=spec(parent={"adapter": "support-v3"}), catalog=catalog(parent=parent()))) is None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_what_the_world_does_not_allow_is_refused_and_its_counterpart_passes(row: world_training_job.Row) -> None:
    found = world_training_job.refusal(row.bad)
    assert found is not None
    assert (found.reason, found.code, found.pending) == (row.reason, row.code, row.pending)
    for words in row.words:
        assert words in found.message
    assert world_training_job.refusal(row.good) is None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_a_message_names_the_field_what_was_found_and_what_would_do(row: world_training_job.Row) -> None:
    found = world_training_job.refusal(row.bad)
    assert found is not None
    field, _, rest = found.message.partition(": ")
    assert field.startswith(("spec", "metadata.name"))
    assert "found" in rest
    assert ";" in rest or "did you mean" in rest


def test_every_rule_is_broken_by_a_row() -> None:
    """A check that no table breaks may as well be missing."""
    broken = {check for check in RULES for row in ROWS if check(row.bad)} | {spec_has_its_part}
    assert [check.__name__ for check in RULES if check not in broken] == []


@pytest.mark.parametrize(
    ("spec_", "words"),
    [
        (spec().model_copy(update={"lora": None}), "found base lora_trl with no spec.lora;"),
        (spec(lora={"dataset": None}), "with no spec.lora.dataset;"),
        (spec(base="halo_rlvr"), "found base halo_rlvr with no spec.rlvr and spec.lora;"),
        (rft_spec().model_copy(update={"rlvr": rlvr_spec().rlvr}), "found base halo_rft with spec.rlvr;"),
    ],
)  # fmt: skip
def test_what_only_older_definitions_let_pass_is_refused_too(spec_: TrainingJobSpec, words: str) -> None:
    refusal = first_refusal(world(spec=spec_))
    assert refusal is not None
    assert refusal.reason == "InvalidSpec"
    assert words in refusal.message


def test_halo_rft_takes_some_lora_settings() -> None:
    assert spec_has_its_part(world(spec=rft_spec(lora={"rank": 8}))) is None


def test_every_check_has_an_answer_to_every_world() -> None:
    """The webhook asks all of them, whatever another one found missing."""
    for row in ROWS:
        for world_ in (row.bad, row.good):
            for check in RULES:
                check(world_)


@pytest.mark.parametrize(
    ("what", "changes", "words"),
    [
        ("another recipe", {"spec": rlvr_spec("support_v1")}, "spec.rlvr.recipe: found support_v1, which this version does not train yet; use sql_v2, sql_v3, sql_v4_dapo_sync or sql_v4_dapo_sync_lora"),
        ("halo_rft", {"spec": rft_spec()}, "spec.base: found halo_rft"),
        ("a warm-up", {"spec": rlvr_spec(rlvr={"warmup": {"envRevision": "public-v1", "steps": 5}})}, "spec.rlvr.warmup: found one"),
        ("a retention", {"spec": rlvr_spec(rlvr={"retention": {"envRevision": "public-v1", "steps": 5}})}, "spec.rlvr.retention: found one"),
        ("a judge", {"spec": rlvr_spec(rlvr={"judge": {"criterion": "helpful", "weight": 1}})}, "spec.rlvr.judge: found one"),
        ("weights elsewhere", {"catalog": catalog(base=BaseEntry("smol", base(source="hf://org/smol")))}, "no pvc:// source"),
    ],
)  # fmt: skip
def test_a_good_job_of_what_is_not_built_yet_is_refused(what: str, changes: dict[str, Any], words: str) -> None:
    found = changes.get("spec", spec())
    asked = world(**changes) if found.base == "lora_trl" else of_tasks(found)
    assert first_refusal(asked, RULES) is None, what
    refusal = first_refusal(asked)
    assert refusal is not None
    assert (refusal.reason, refusal.pending) == ("NotYetAvailable", False)
    assert words in refusal.message


@pytest.mark.parametrize("recipe", RLVR_RECIPES)
def test_these_recipes_are_built(recipe: str) -> None:
    assert first_refusal(of_tasks(rlvr_spec(recipe))) is None


def test_sft_and_dpo_by_trl_are_built() -> None:
    """By name, or as the base's default trainer."""
    assert first_refusal(world(spec=spec(lora={"trainer": "TRL"}))) is None
    assert first_refusal(world(catalog=catalog(base=BaseEntry("smol", base(defaultTrainer="TRL"))))) is None
    pairs = dataset(kind="preference")
    asked = world(spec=spec(lora={"method": "dpo", "trainer": "TRL"}), catalog=catalog(dataset=pairs))
    assert first_refusal(asked) is None
    unset = catalog(dataset=pairs, base=BaseEntry("smol", base(defaultTrainer="TRL")))
    assert first_refusal(world(spec=spec(lora={"method": "dpo"}), catalog=unset)) is None


def test_split_rows_are_built() -> None:
    assert first_refusal(LONG_ROWS) is None
    assert first_refusal(world(spec=spec(contextParallel="auto"))) is None
    assert first_refusal(replace(LONG_ROWS, catalog=replace(LONG_ROWS.catalog, base=HYBRID))) is None


def test_bundles_by_halo_are_built() -> None:
    assert first_refusal(world(spec=spec(lora={"bundle": 4}))) is None
    assert first_refusal(world(spec=spec(lora={"bundle": 4, "trainer": "Halo"}))) is None


def test_what_is_missing_speaks_before_what_is_not_built() -> None:
    refusal = first_refusal(of_tasks(rlvr_spec(), dataset=None))
    assert refusal is not None
    assert (refusal.reason, refusal.pending) == ("DatasetPending", True)


def test_what_can_never_be_right_speaks_before_what_may_still_come() -> None:
    refusal = first_refusal(world(spec=spec(gpu={"type": "h100", "count": 4}, batch=2), catalog=catalog(dataset=None)))
    assert refusal is not None
    assert refusal.reason == "Unfit"


def test_overlong_rows_are_allowed_when_the_user_says_what_to_do_with_them() -> None:
    long = catalog(dataset=dataset(inspections=(inspection(longestRow=4000),)))
    assert first_refusal(world(spec=spec(lora={"overlength": "drop"}), catalog=long)) is None


def test_an_adapter_of_the_run_itself_does_not_block_it() -> None:
    assert first_refusal(world(catalog=catalog(adapter=taken("uid-1")))) is None


def test_more_nodes_are_fine_when_they_are_full() -> None:
    two = world(spec=spec(gpu={"type": "h100", "count": 2}), catalog=catalog(gpu=GpuEntry("h100", gpu(perNode=1))))
    assert first_refusal(two) is None
