"""Random TrainingJobs and catalogs: mostly what people write, and the extremes that a schema lets pass."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields, replace
from typing import Any

from hypothesis import strategies as st

from halo_api.catalog import BaseModelSpec
from halo_api.conditions import Condition
from halo_api.dataset import DatasetStatus
from halo_api.gpu_class import GpuClassSpec
from halo_operator.plan.world import (
    AdapterEntry,
    BaseEntry,
    Catalog,
    DatasetEntry,
    EnvironmentEntry,
    GpuEntry,
    WorkspaceEntry,
)
from halo_operator.recipes import RECIPES
from tests.unit import builders as b

Strategy = st.SearchStrategy[Any]
STATUS = st.sampled_from(["True", "True", "False", "Unknown"])
RECIPE_NAMES = (*RECIPES, "sql_v9")


def number(low: int, high: int, *usual: int) -> Strategy:
    """An integer, mostly a usual one, sometimes one at an end, sometimes any."""
    return (
        st.sampled_from(usual) | st.sampled_from(usual) | st.sampled_from([low, low + 1, high]) | st.integers(low, high)
    )


def real(low: float, high: float, *usual: float) -> Strategy:
    return st.sampled_from(usual) | st.floats(low, high, exclude_min=True, allow_nan=False)


def name(*usual: str) -> Strategy:
    any_ = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9]\.[a-z0-9]{1,20}){0,5}", fullmatch=True)
    return st.sampled_from(usual) | st.sampled_from(usual) | any_.filter(lambda n: n[-1].isalnum())


def record(required: dict[str, Strategy], **optional: Strategy) -> Strategy:
    return st.fixed_dictionaries(required, optional=optional)


LORA = record(
    {"dataset": name("chat")},
    trainer=st.sampled_from(["Halo", "Halo", "TRL"]),
    method=st.sampled_from(["sft", "sft", "dpo"]),
    rank=number(1, 256, 16),
    alpha=real(0, 4096, 32.0),
    dropout=st.floats(0, 1, exclude_max=True),
    targetModules=st.lists(st.from_regex(r"[A-Za-z0-9_.\-]{1,128}", fullmatch=True), min_size=1, max_size=64, unique=True),
    learningRate=real(0, 1, 2e-4),
    warmupSteps=number(0, 1_000_000, 0),
    schedule=st.sampled_from(["cosine", "linear", "constant"]),
    weightDecay=st.floats(0, 1),
    maxGradNorm=real(0, 1000, 1.0),
    maxLength=number(8, 16_777_216, 1024),
    overlength=st.sampled_from(["refuse", "drop", "truncate"]),
    microBatch=number(1, 4096, 1),
    packing=st.booleans(),
)  # fmt: skip
RARE_LORA = record({"dataset": name("chat")}, bundle=number(1, 1024, 8), beta=real(0, 10, 0.1), method=st.just("dpo"))
PHASE = record({"envRevision": name("public-v1"), "steps": number(1, 1_000_000, 5)})
RLVR = record(
    {"recipe": st.sampled_from(RECIPE_NAMES)},
    rolloutGpus=number(1, 1023, 1, 2),
    rolloutReplicas=number(1, 512, 1, 2),
    dataset=name("questions"),
    envRevision=name("desk-v2"),
    warmup=PHASE,
    retention=PHASE,
    judge=record({"criterion": name("helpful"), "weight": real(0, 10, 1.0)}),
)
RFT = record(
    {"recipe": st.sampled_from(RECIPE_NAMES)},
    samples=number(1, 256, 8),
    tasks=number(1, 1_000_000, 1024),
    dataset=name("questions"),
    envRevision=name("desk-v2"),
)
COMMON = {
    "baseModel": name("smol"),
    "gpu": record({"type": name("h100"), "count": number(1, 1024, 1, 2, 4, 8)}),
    "steps": number(1, 1_000_000, 100),
    "batch": number(1, 65_536, 8, 16, 64),
}
OPTIONAL = {
    "saveSteps": number(1, 1_000_000, 50),
    "seed": number(0, 2_147_483_647, 0),
    "suspend": st.booleans(),
    "backoffLimit": number(0, 100, 3),
}
RARE = {
    "parent": record({"adapter": name("support-v3")}),
    "trainable": st.sampled_from(["lora", "lora", "full"]),
    "budget": record({"h100Hours": st.sampled_from([0.001, 12.5, 100_000]) | st.integers(1, 10**8).map(lambda n: n / 1000)}),
    "mode": st.sampled_from(["final", "reasoning"]),
    "contextParallel": st.sampled_from(["auto", 2, 4]),
}  # fmt: skip


GOOD = {
    "lora_trl": b.spec(gpu={"type": "h100", "count": 2}),
    "halo_rlvr": b.rlvr_spec(),
    "halo_rft": b.rft_spec(),
}


def few(keys: Any) -> Strategy:
    """Some of the keys, mostly few."""
    known = sorted(keys)
    return st.lists(st.sampled_from(known), max_size=3, unique=True) if known else st.just([])


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """A spec as JSON: a good one with some fields of a random one, or that one as it is."""
    found = draw(random_specs())
    if draw(st.integers(0, 3)) == 0:
        return found
    good = GOOD[found["base"]].to_json()
    changed: dict[str, Any] = {key: found[key] for key in draw(few(found.keys() - {"base"}))}
    part = {"lora_trl": "lora", "halo_rlvr": "rlvr", "halo_rft": "rft"}[found["base"]]
    if isinstance(changed.get(part), dict):
        asked = changed[part]
        changed[part] = good[part] | {key: asked[key] for key in draw(few(asked.keys()))}
    return good | changed


@st.composite
def random_specs(draw: st.DrawFn) -> dict[str, Any]:
    """A spec of any base, seldom with a part that does not belong to it."""
    base = draw(st.sampled_from(["lora_trl", "lora_trl", "halo_rlvr", "halo_rft"]))
    part = {"lora_trl": ("lora", LORA), "halo_rlvr": ("rlvr", RLVR), "halo_rft": ("rft", RFT)}[base]
    more = draw(st.sampled_from([{}, {}, {}, RARE, {"lora": RARE_LORA}, {"lora": LORA, "rlvr": RLVR, "rft": RFT}]))
    found = {"base": base, **draw(record(COMMON, **OPTIONAL)), part[0]: draw(part[1]), **draw(record({}, **more))}
    return {k: v for k, v in found.items() if k != part[0] or draw(st.integers(0, 30)) < 30}


BASES = record(
    {
        "source": st.sampled_from(["pvc://models/smol", "pvc://models/smol", "hf://org/smol", "s3://bucket/smol"]),
        "revision": st.sampled_from(["rev-0001", "rev-0001", "a" * 128]),
        "parametersB": real(0, 10_000, 0.1),
        "contextLength": number(128, 16_777_216, 4096, 1_000_000),
        "offers": st.sampled_from([["lora_trl", "halo_rlvr", "halo_rft", "grpo"]] * 4 + [["grpo"]]),
    },
    activeParametersB=real(0, 10_000, 0.1),
    moe=st.booleans(),
    attention=st.sampled_from(["full", "hybrid"]),
    dtype=st.sampled_from(["bf16", "fp32"]),
    gpus=number(1, 8, 1, 2),
    methods=st.sampled_from([["sft"], ["sft", "dpo"]]),
    recipes=st.sampled_from([["sql_v4_dapo_r3_122b"], list(RECIPES)]),
    defaultTrainer=st.sampled_from(["Halo", "Halo", "TRL"]),
    fineTunable=st.sampled_from([True, True, True, False]),
    chatTemplate=record({"thinking": st.booleans(), "preserve": st.booleans()}),
)
PRICE = record(
    {"region": st.just("eu"), "usdPerHour": real(0, 10_000, 2.5)}, markup=st.floats(1, 100), active=st.booleans()
)
GPUS = record(
    {"memoryGiB": number(1, 4096, 80)},
    perNode=number(1, 128, 8),
    h100Equivalent=real(0, 1000, 1.0),
    peakTflops=real(0, 1_000_000, 989.0),
    bandwidthTBs=real(0, 10_000, 3.35),
    prices=st.lists(PRICE, max_size=1),
    byo=st.booleans(),
    nodeSelector=st.dictionaries(st.just("gpu"), st.just("x"), max_size=1),
)
WORKSPACES = record(
    {},
    wallet=record({"creditUsd": st.sampled_from([0.0, 1000.0, 1e8])}),
    allocation=record({"h100Hours": st.sampled_from([0.0, 1000.0, 100_000.0])}),
    plan=st.sampled_from(["free", "paid"]),
    features=record({"fineTuning": st.sampled_from([True, True, True, False])}),
    pipeline=record({"rolloutGpus": number(1, 1024, 1, 2)}),
)


@st.composite
def datasets(draw: st.DrawFn, kind: str, revision: str) -> DatasetEntry:
    """A data set of mostly the right kind, mostly inspected."""
    entry = b.tasks(
        kind=draw(st.sampled_from([kind, kind, kind, "chat", "preference", "tasks", "traffic"])), name="chat"
    )
    rows = draw(number(0, 10**9, 500))
    counts = {
        "rows": rows,
        "tokens": draw(number(0, 10**12, 50_000)),
        "longestRow": draw(number(0, 10**7, 100, 40_000)),
    }
    counted = b.inspection(revision=revision, **counts)
    stalled = Condition(
        type="Stalled", status="True", reason="BadRow", message="line 7", observed_generation=1,
        last_transition_time="2026-11-29T11:00:00Z",
    )  # fmt: skip
    inspections = draw(st.sampled_from([[counted], [counted], [counted], []]))
    conditions = draw(st.sampled_from([[], [], [], [stalled]]))
    status = DatasetStatus(inspections=inspections, conditions=conditions, rows=rows)
    return DatasetEntry(entry.name, 1, entry.spec, status)


@st.composite
def catalogs(draw: st.DrawFn, spec: Any) -> Catalog:
    """What a run of that spec may find: what is good with some of it random, or all of it random."""
    found = draw(random_catalogs(spec))
    if draw(st.integers(0, 3)) == 0:
        return found
    good = b.catalog(parent=b.parent()) if spec.base == "lora_trl" else b.of_tasks(spec).catalog
    changed = draw(few({field.name for field in fields(Catalog)}))
    return replace(good, **{name: getattr(found, name) for name in changed})


@st.composite
def random_catalogs(draw: st.DrawFn, spec: Any) -> Catalog:
    """What a run of that spec may find: seldom all that it names, and of any size."""

    def seldom_none(found: Any) -> Any:
        return found if draw(st.integers(0, 12)) < 12 else None

    def environment() -> EnvironmentEntry | None:
        return seldom_none(b.environment(draw(STATUS)))

    base, gpu = draw(BASES), draw(GPUS)
    kind = "tasks" if spec.base != "lora_trl" else "preference" if spec.lora and spec.lora.method == "dpo" else "chat"
    part = spec.rlvr or spec.rft
    workspace = draw(st.sampled_from([None, None, draw(WORKSPACES)]))
    return Catalog(
        base=seldom_none(BaseEntry(spec.base_model, BaseModelSpec.model_validate(base))),
        base_names=("smol", "large"),
        gpu=seldom_none(GpuEntry(spec.gpu.type, GpuClassSpec.model_validate(gpu))),
        gpu_names=("h100",),
        dataset=seldom_none(draw(datasets(kind, base["revision"]))),
        adapter=draw(st.sampled_from([None, None, None, AdapterEntry("run", "other")])),
        workspace=b.workspace(**workspace) if workspace is not None else WorkspaceEntry(),
        parent=seldom_none(b.parent(draw(STATUS), rank=draw(number(1, 256, 16)))) if spec.parent else None,
        recipe=RECIPES.get(part.recipe) if part else None,
        recipe_names=tuple(RECIPES),
        environment=environment(),
        warmup=environment(),
        retention=environment(),
        criterion=seldom_none(b.criterion(draw(STATUS), draw(st.sampled_from(["False", "True"])))),
    )


WILD = st.sampled_from(
    [None, 0, -1, 1.5, 0.1, 1e308, -1e308, 2**31, 2**63, "", "0.5", "NaN", "auto", "x" * 300, "a b", True, [], ["a"] * 100, {}, {"a": 1}]
)  # fmt: skip


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every member below a JSON object."""
    if not isinstance(node, dict):
        return []
    return [found for key, value in node.items() for found in ((*path, key), *places(value, (*path, key)))]


@st.composite
def wild_specs(draw: st.DrawFn) -> dict[str, Any]:
    """A spec as somebody may have typed it: members of it missing, of another type, or out of any bounds."""
    spec = deepcopy(draw(specs()))
    for path in draw(st.lists(st.sampled_from(places(spec)), max_size=2)):
        where: Any = spec
        for key in path[:-1]:
            where = where.get(key) if isinstance(where, dict) else None
        if isinstance(where, dict) and path[-1] in where:
            where[path[-1]] = draw(WILD)
            if draw(st.integers(0, 4)) == 4:
                del where[path[-1]]
    return spec
