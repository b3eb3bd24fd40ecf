"""A catalog entry in 4 bits: what its runs' pods are told, what its receipts say and what an estimate makes of it."""

from __future__ import annotations

from typing import Literal

import pytest

from halo_operator.plan.estimate_model import model_of
from halo_operator.plan.freeze import freeze
from halo_operator.plan.run import plan_run
from halo_operator.plan.world import BaseEntry
from tests.unit import builders as b
from tests.unit.builders_receipt import statement


@pytest.mark.parametrize("kept", ["nf4", None])
def test_the_pod_and_the_receipt_say_how_the_base_was_kept(kept: str | None) -> None:
    world = b.world(catalog=b.catalog(base=BaseEntry("smol", b.base(quantization=kept))))
    child = plan_run(world, b.NOW).create[0]
    assert b.run_file(child).base.quantization == kept
    said = statement(frozen=freeze(world))["predicate"]["base"]
    assert said.get("quantization") == kept


@pytest.mark.parametrize(("dtype", "whole"), [("bf16", 2.0), ("fp32", 4.0)])
def test_four_bits_are_kept_of_weights_that_are_read_whole(dtype: Literal["bf16", "fp32"], whole: float) -> None:
    model = model_of(b.base(quantization="nf4", dtype=dtype, parametersB=1))
    assert (model.weights, model.stored) == (pytest.approx(0.55e9), pytest.approx(whole * 1e9))
