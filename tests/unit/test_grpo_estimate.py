"""The quote of a GrpoRun: colocated on its GPUs, judged, and never above its two budgets."""

from __future__ import annotations

from typing import Any

import pytest

from halo_operator.plan.estimate import estimate
from halo_operator.plan.grpo.clamp import resolve
from halo_operator.plan.grpo.estimate import grpo_quote, grpo_workload
from halo_operator.plan.grpo.plan import grpo_answer, plan_grpo
from tests.unit.builders_grpo import CREATED, ENVIRONMENT, H100, catalog, gpu, granted, world


def seconds(**changes: Any) -> float:
    found = world(**changes)
    work = grpo_workload(found, resolve(found.spec))
    assert work
    return estimate(work).total


def test_the_quote_is_inside_both_budgets() -> None:
    found = world(maxSteps=5000, gpuHourBudget=10, rewardBudgetUsd=0.5)
    quoted = grpo_quote(found, resolve(found.spec))
    assert quoted
    assert quoted.usd
    assert quoted.capped
    assert quoted.h100_hours.high == "10"
    # 10 hours at 2.5 x 1.2 USD, and judges for half a dollar.
    assert quoted.usd.high == "30.5"


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"maxSteps": 10}, {"maxSteps": 20}),
        ({"groupSize": 4}, {"groupSize": 16}),
        ({"maxCompletionTokens": 512}, {"maxCompletionTokens": 4096}),
        ({"useVllm": True}, {"useVllm": False}),
        ({"holdoutCount": 10}, {"holdoutCount": 2000}),
        ({"paramsB": 1}, {"paramsB": 70}),
        ({"platformGpu": H100 | {"gpuCount": 8}}, {"platformGpu": H100}),
        ({"useVllm": True}, {"environment": ENVIRONMENT, "reward": {"mode": "single", "criterionId": "solved"}}),
    ],
)
def test_more_work_takes_longer(less: dict[str, Any], more: dict[str, Any]) -> None:
    assert seconds(**less) < seconds(**more)


def test_the_bake_off_is_in_it() -> None:
    quoted = grpo_answer(world()).estimate
    assert quoted
    assert {phase.name for phase in quoted.phases} >= {"start", "decode", "train", "reward", "evaluation", "publish"}


def test_ones_own_compute_has_no_price_and_a_provisioned_box_the_dearest() -> None:
    own = grpo_answer(world(platformGpu=None)).estimate
    assert own
    assert own.usd is None
    dear = gpu("b200", prices=[{"region": "eu-west", "usdPerHour": 9}], h100Equivalent=2.3)
    box = grpo_answer(world(catalog(gpus=(gpu(), dear)), platformGpu=None, autoProvision=True)).estimate
    assert box
    assert (box.usd_per_gpu_hour, box.inputs["gpus"]) == ("9", "8")


@pytest.mark.parametrize("gone", [{"base": None}, {"gpus": ()}])
def test_there_is_no_quote_while_something_is_not_there(gone: dict[str, Any]) -> None:
    assert grpo_answer(world(catalog(**gone))).estimate is None


def test_the_status_keeps_it() -> None:
    found = world()
    plan = plan_grpo(granted(found), CREATED)
    assert plan.status
    assert plan.status.estimate == grpo_answer(found).estimate
