"""Random GrpoRuns and what they find: mostly what people write, and the extremes that a schema lets pass."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from halo_api.grpo_run import GrpoRunSpec
from halo_operator.plan.grpo.world import GrpoCatalog, GrpoWorld, Prompts, ServingAdapter
from halo_operator.plan.world import Verdict, WorkspaceEntry
from tests.unit import builders_grpo as b

Strategy = st.SearchStrategy[Any]
# JSON integers that the API server takes for an integer, and numbers that it takes for one.
WHOLE = st.sampled_from([1, 8, 100]) | st.integers(-(2**63), 2**63 - 1)
NUMBER = st.sampled_from([0.25, 0.5, 50]) | st.floats(allow_nan=False, allow_infinity=False)
BUDGET = st.sampled_from([0.001, 1, 12.5, 1e7]) | st.integers(1, 10**10).map(lambda n: n / 1000)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=120)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
SECONDS = st.none() | st.integers(1, 120)


def present(facts: dict[str, Strategy]) -> Strategy:
    """An object without what drew None."""
    return st.fixed_dictionaries(facts).map(lambda found: {k: v for k, v in found.items() if v is not None})


VALUED = ("json_schema", "contains", "not_contains", "tool_called", "no_tool_call")
ASSERTION = st.one_of(
    st.fixed_dictionaries({"type": st.sampled_from(["json_valid", "completed", "tool_called", "no_tool_call"])}),
    st.fixed_dictionaries({"type": st.sampled_from(VALUED), "value": TEXT | st.just("{}")}),
    st.fixed_dictionaries({"type": st.just("regex_match"), "value": st.sampled_from(["a+", "(a", "(?=a)"]) | TEXT}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["max_length", "min_length"]), "value": st.sampled_from(["0", "x"])}
    ),
    present({"type": st.just("exec"), "command": TEXT, "timeoutSec": SECONDS}),
)


def rewards(*good: str) -> Strategy:
    """Rewards by these criteria, and now and then by others."""
    name = st.sampled_from([*good * 5, "helpful", "solved", "nobody"])
    single = st.fixed_dictionaries({"mode": st.just("single"), "criterionId": name})
    several = st.fixed_dictionaries(
        {"mode": st.just("compositional"), "criterionIds": st.lists(name, min_size=1, max_size=3, unique=True)},
        optional={"assertions": st.lists(ASSERTION, max_size=4)},
    )
    return single | several


TASK = present(
    {
        "goal": st.lists(JSON, min_size=1, max_size=4),
        "image": st.none() | TEXT,
        "recorded": st.none() | st.lists(JSON, max_size=4),
        "verifier": st.none() | st.lists(present({"command": TEXT, "timeoutSec": SECONDS}), max_size=2),
    }
)
GPU = present({"gpuType": st.sampled_from(["h100", "own", "h1000"]), "region": st.sampled_from(["eu-west", "x"]), "gpuCount": st.none() | WHOLE})  # fmt: skip
ADOPT = present(
    {
        "aliasName": st.just("support") | TEXT,
        "canaryPercent": st.none() | st.integers(1, 50),
        "gpuType": st.just("h100"),
        "region": st.just("eu-west"),
    }
)
TOOLS = present({"proxyBaseUrl": st.just("http://tools:8080"), "maxSteps": st.none() | st.integers(1, 10000), "simulate": st.booleans()})  # fmt: skip
OPTIONAL: dict[str, Strategy] = {
    "qlora": st.booleans(),
    "paramsB": st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    "useVllm": st.booleans(),
    "maxSteps": WHOLE,
    "groupSize": WHOLE,
    "promptTag": TEXT,
    "holdoutCount": NUMBER,
    "useCandidateQueue": st.booleans(),
    "curriculumMixRatio": NUMBER,
    "maxCompletionTokens": WHOLE,
    "vllmGpuMemoryUtilization": NUMBER,
    "allowSideEffects": st.booleans(),
    "autoAdopt": ADOPT,
    "suspend": st.booleans(),
}


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """A spec that people could write; a rule may still refuse it."""
    spec = draw(
        st.fixed_dictionaries(
            {
                "model": st.sampled_from(["qwen3-8b"] * 9) | TEXT,
                "promptCount": st.sampled_from([10, 100, 200]) | st.integers(10, 2**63 - 1),
                "rewardBudgetUsd": BUDGET,
                "gpuHourBudget": BUDGET,
            },
            optional=OPTIONAL,
        )
    )
    spec |= draw(st.sampled_from([{}, {"autoProvision": True}]) | st.fixed_dictionaries({"platformGpu": GPU}))
    agentic = draw(st.booleans())
    spec["reward"] = draw(rewards("solved") if agentic else rewards("helpful", "brief"))
    if agentic:
        spec["environment"] = draw(TOOLS)
        spec |= draw(
            st.sampled_from([{}, {"tasksFrom": "booking"}])
            | st.fixed_dictionaries({"tasksInline": st.lists(TASK, min_size=1, max_size=15)})
        )
    return spec


COUNTED = st.sampled_from([Prompts(10**6), Prompts(10**6), Prompts(None, "nobody has counted"), Prompts(0)])
WORKSPACES = st.sampled_from(
    [
        *[b.workspace(wallet={"creditUsd": 1e8})] * 6,
        b.workspace(wallet={"creditUsd": 1e8}, startsPerMinute=1),
        b.workspace(autoProvision=False, balance="0"),
        b.workspace(wallet=None),
        WorkspaceEntry(),
    ]
)


@st.composite
def worlds(draw: st.DrawFn) -> GrpoWorld:
    """The world of a random spec: mostly whole, sometimes with something missing."""
    spec = GrpoRunSpec.model_validate(draw(specs()))
    good = b.catalog()
    serving = ServingAdapter("support-v1", "round-1", b.CREATED)
    judges = {
        name: replace(entry, calibrated=draw(st.sampled_from([entry.calibrated] * 9 + [Verdict()])))
        for name, entry in good.criteria.items()
    }
    catalog = GrpoCatalog(
        base=draw(st.sampled_from([good.base] * 5 + [None])),
        workspace=draw(WORKSPACES),
        criteria=judges,
        gpus=draw(st.sampled_from([good.gpus] * 5 + [()])),
        alias=draw(st.sampled_from([good.alias] * 5 + [None])),
        traffic=draw(COUNTED),
        candidates=draw(COUNTED),
        tasks=draw(COUNTED),
        served_by=draw(st.sampled_from([(), (), (serving,)])),
    )
    starts = b.starts(*draw(st.lists(st.floats(-5, 90), max_size=25)), decided=draw(st.booleans()))
    world = replace(b.world(catalog), spec=spec, starts=starts)
    return replace(world, created_at=b.CREATED + timedelta(seconds=draw(st.integers(-5, 5))))
