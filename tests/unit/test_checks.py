"""Whether a run is accepted: one row a fact, with the words that a person reads."""

from __future__ import annotations

import pytest

from halo_operator.plan.checks import first_refusal
from halo_operator.plan.world import BaseEntry, GpuEntry
from tests.unit.builders import base, catalog, dataset, gpu, inspection, spec, taken, world


def test_a_good_run_is_accepted() -> None:
    assert first_refusal(world()) is None


@pytest.mark.parametrize(
    ("why", "changes", "reason", "words"),
    [
        ("a kind of training that comes later", {"spec": spec(base="halo_rlvr")}, "NotYetAvailable", "spec.base: found halo_rlvr"),
        ("a base with a typing error", {"spec": spec(baseModel="smoll"), "catalog": catalog(base=None)}, "UnknownBaseModel", "found 'smoll', which is not in the catalog (kubectl get basemodels); did you mean smol"),
        ("a base of another name", {"spec": spec(baseModel="zz"), "catalog": catalog(base=None)}, "UnknownBaseModel", "there are: large, smol"),
        ("a base that is closed", {"catalog": catalog(base=BaseEntry("smol", base(fineTunable=False)))}, "BaseNotOffered", "fineTunable is false"),
        ("a base that offers other things", {"catalog": catalog(base=BaseEntry("smol", base(offers=["grpo"])))}, "BaseNotOffered", "smol offers grpo"),
        ("an unknown GPU class", {"spec": spec(gpu={"type": "h200", "count": 1}), "catalog": catalog(gpu=None)}, "UnknownGpuClass", "found 'h200'"),
        ("TRL", {"spec": spec(lora={"trainer": "TRL"})}, "NotYetAvailable", "set trainer: Halo"),
        ("DPO", {"spec": spec(lora={"method": "dpo"})}, "NotYetAvailable", "use sft"),
        ("GPUs that fill no whole nodes", {"spec": spec(gpu={"type": "h100", "count": 12}, batch=64)}, "Unfit", "use 8 or 16"),
        ("fewer rows than GPUs", {"spec": spec(gpu={"type": "h100", "count": 4}, batch=2)}, "Unfit", "use at least 4"),
        ("a name that another run's adapter has", {"catalog": catalog(adapter=taken("other"))}, "AdapterNameTaken", "choose another name"),
        ("a data set that can't be read", {"catalog": catalog(dataset=dataset(stalled="line 7: no assistant turn"))}, "DatasetInvalid", "line 7: no assistant turn"),
        ("rows longer than the base sees", {"catalog": catalog(dataset=dataset(inspections=(inspection(longestRow=4000),)))}, "RowTooLong", "has 4000 tokens, more than the 2048 that fit"),
        ("a limit beyond the base's context", {"spec": spec(lora={"maxLength": 4096})}, "RowTooLong", "found 4096"),
    ],
)  # fmt: skip
def test_a_run_that_can_never_be_right_is_refused(why: str, changes: dict, reason: str, words: str) -> None:
    refusal = first_refusal(world(**changes))
    assert refusal is not None, why
    assert (refusal.reason, refusal.pending) == (reason, False)
    assert words in refusal.message


@pytest.mark.parametrize(
    ("what", "changes", "reason"),
    [
        ("the data set", {"catalog": catalog(dataset=None)}, "DatasetPending"),
        ("its inspection", {"catalog": catalog(dataset=dataset(inspections=()))}, "DatasetPending"),
        ("its inspection at the catalog's revision", {"catalog": catalog(dataset=dataset(inspections=(inspection(revision="rev-0000"),)))}, "DatasetPending"),
        ("the base among those that count it", {"catalog": catalog(dataset=dataset(bases=("large",), inspections=()))}, "DatasetNotCounted"),
    ],
)  # fmt: skip
def test_what_may_still_appear_is_waited_for(what: str, changes: dict, reason: str) -> None:
    refusal = first_refusal(world(**changes))
    assert refusal is not None, what
    assert (refusal.reason, refusal.pending) == (reason, True)


def test_overlong_rows_are_allowed_when_the_user_says_what_to_do_with_them() -> None:
    long = catalog(dataset=dataset(inspections=(inspection(longestRow=4000),)))
    assert first_refusal(world(spec=spec(lora={"overlength": "drop"}), catalog=long)) is None


def test_an_adapter_of_the_run_itself_does_not_block_it() -> None:
    assert first_refusal(world(catalog=catalog(adapter=taken("uid-1")))) is None


def test_more_nodes_are_fine_when_they_are_full() -> None:
    two = world(spec=spec(gpu={"type": "h100", "count": 2}), catalog=catalog(gpu=GpuEntry("h100", gpu(perNode=1))))
    assert first_refusal(two) is None
