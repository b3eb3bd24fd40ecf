"""What a GrpoRun uses of what it was asked: the platform's defaults and clamps, number by number."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_api.grpo_run import GrpoRunSpec
from halo_operator.plan.grpo.clamp import resolve, warnings
from tests.unit.builders_grpo import ADOPT, ENVIRONMENT, H100, agentic, body, spec

ENDS = [
    # field, least, most, what else the field needs to have an effect
    ("maxSteps", 1, 5000, {}),
    ("groupSize", 2, 16, {}),
    ("holdoutCount", 1, 2000, {}),
    ("curriculumMixRatio", 0, 0.9, {"useCandidateQueue": True}),
    ("maxCompletionTokens", 256, 32768, {}),
    ("vllmGpuMemoryUtilization", 0.05, 0.9, {"useVllm": True}),
]


@pytest.mark.parametrize(("field", "least", "most", "beside"), ENDS)
def test_a_number_is_clamped_to_both_ends(field: str, least: float, most: float, beside: dict[str, Any]) -> None:
    attribute = "".join(f"_{c.lower()}" if c.isupper() else c for c in field)
    for asked, used in ((least - 1, least), (least, least), (most, most), (most + 1, most), (1e9, most), (-1e9, least)):
        frozen = resolve(spec(**{field: int(asked) if float(asked).is_integer() else asked}, **beside))
        assert getattr(frozen, attribute) == used
        assert [c.field for c in frozen.clamped] == ([] if asked == used else [field])


def test_the_defaults_are_those_of_the_platform() -> None:
    frozen = resolve(spec())
    assert (frozen.max_steps, frozen.group_size, frozen.max_completion_tokens) == (100, 8, 1024)
    assert (frozen.qlora, frozen.use_vllm, frozen.use_candidate_queue, frozen.gpu_count) == (True, False, False, 1)
    assert (frozen.vllm_gpu_memory_utilization, frozen.curriculum_mix_ratio, frozen.params_b) == (None, None, None)
    assert frozen.clamped == []
    tools = resolve(GrpoRunSpec.model_validate(agentic()))
    assert (tools.use_vllm, tools.max_completion_tokens, tools.episode_steps) == (True, 8192, 32)
    assert tools.clamped == []


@pytest.mark.parametrize(
    ("prompts", "holdout"), [(10, 3), (14, 3), (15, 3), (16, 4), (100, 20), (101, 21), (250, 50), (10000, 2000)]
)
def test_a_fifth_is_held_out_rounded_up_and_at_least_three(prompts: int, holdout: int) -> None:
    assert resolve(spec(promptCount=prompts)).holdout_count == holdout


@pytest.mark.parametrize(
    ("asked", "used"),
    [(2.4, 2), (2.5, 3), (3.5, 4), (0.4, 1), (0.5, 1), (-7.5, 1), (1999.5, 2000), (2000.4, 2000), (1e300, 2000)],
)
def test_a_holdout_is_rounded_halves_up_and_then_clamped(asked: float, used: int) -> None:
    assert resolve(spec(holdoutCount=asked)).holdout_count == used


def test_prompts_parameters_and_gpus_are_capped() -> None:
    frozen = resolve(spec(promptCount=10001, paramsB=1e308, platformGpu=H100 | {"gpuCount": 9}))
    assert (frozen.prompt_count, frozen.params_b, frozen.gpu_count) == (10000, 1000, 8)
    assert resolve(spec(platformGpu=H100 | {"gpuCount": -3})).gpu_count == 1
    assert warnings(frozen) == (
        "spec.promptCount: found 10001, used is 10000: clamped to 10 to 10000",
        "spec.paramsB: found 1e+308, used is 1000: clamped to 0 to 1000",
        "spec.platformGpu.gpuCount: found 9, used is 8: clamped to 1 to 8",
    )


USELESS = [
    ({"environment": ENVIRONMENT, "useVllm": False}, "useVllm", "true"),
    (
        {"reward": {"mode": "compositional", "criterionIds": ["helpful"]}, "useCandidateQueue": True},
        "useCandidateQueue",
        "false",
    ),
    ({"useCandidateQueue": True, "promptTag": "support"}, "promptTag", "none"),
    ({"environment": ENVIRONMENT, "tasksFrom": "tasks", "promptTag": "support"}, "promptTag", "none"),
    ({"allowSideEffects": True}, "allowSideEffects", "false"),
    ({"curriculumMixRatio": 0.5}, "curriculumMixRatio", "0.5"),
    ({"vllmGpuMemoryUtilization": 0.95}, "vllmGpuMemoryUtilization", "0.9"),
]


@pytest.mark.parametrize(("changes", "field", "used"), USELESS)
def test_what_has_no_effect_is_said(changes: dict[str, Any], field: str, used: str) -> None:
    assert [(c.field, c.used) for c in resolve(spec(**changes)).clamped] == [(field, used)]


def test_autoadopt_and_side_effects_of_an_agentic_run_are_kept() -> None:
    frozen = resolve(spec(environment=ENVIRONMENT, allowSideEffects=True, autoAdopt=ADOPT))
    assert (frozen.allow_side_effects, frozen.canary_percent) == (True, 10)
    assert resolve(spec(autoAdopt=ADOPT | {"canaryPercent": 50})).canary_percent == 50


WHOLE = st.integers(-(2**63), 2**63 - 1)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)


@given(
    prompts=st.integers(10, 2**63 - 1),
    whole=st.fixed_dictionaries({}, optional=dict.fromkeys(("maxSteps", "groupSize", "maxCompletionTokens"), WHOLE)),
    number=st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("holdoutCount", "curriculumMixRatio", "vllmGpuMemoryUtilization"), NUMBER)
    ),
    params=st.none() | st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    gpus=st.none() | WHOLE,
    switches=st.fixed_dictionaries({}, optional=dict.fromkeys(("useVllm", "useCandidateQueue"), st.booleans())),
    tools=st.booleans(),
)
def test_any_numbers_land_inside_their_bounds_and_stay_there(
    prompts: int,
    whole: dict[str, int],
    number: dict[str, float],
    params: float | None,
    gpus: int | None,
    switches: dict[str, bool],
    tools: bool,
) -> None:
    asked = body(
        promptCount=prompts,
        paramsB=params,
        platformGpu=H100 | ({} if gpus is None else {"gpuCount": gpus}),
        environment=ENVIRONMENT if tools else None,
        **whole,
        **number,
        **switches,
    )
    frozen = resolve(GrpoRunSpec.model_validate(asked))
    assert 1 <= frozen.max_steps <= 5000
    assert 2 <= frozen.group_size <= 16
    assert 10 <= frozen.prompt_count <= 10000
    assert 1 <= frozen.holdout_count <= 2000
    assert 256 <= frozen.max_completion_tokens <= 32768
    assert 1 <= (frozen.gpu_count or 0) <= 8
    assert 0.05 <= (frozen.vllm_gpu_memory_utilization or 0.05) <= 0.9
    assert 0 <= (frozen.curriculum_mix_ratio or 0) <= 0.9
    assert 0 < (frozen.params_b or 1) <= 1000
    assert not math.isnan(frozen.curriculum_mix_ratio or 0)

    # What is used, asked for again, is used as it is: only what has no effect is still said to have none.
    again = asked | {name: value for name, value in frozen.to_json().items() if name in asked}
    again["platformGpu"] = H100 | {"gpuCount": frozen.gpu_count}
    second = resolve(GrpoRunSpec.model_validate(again))
    assert second.model_copy(update={"clamped": []}) == frozen.model_copy(update={"clamped": []})
    assert all(c.asked == c.used for c in second.clamped)
    assert len(warnings(frozen)) == len({c.field for c in frozen.clamped})
