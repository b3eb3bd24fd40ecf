"""Base models, GPU classes, data sets and adapters that the API server refuses, rule by rule."""

from __future__ import annotations

from tests.refusals import Body, Refused
from tests.refusals.bodies import at
from tests.refusals.schema_training_job import outside, row


def an(kind: str, name: str, /, **spec: object) -> Body:
    """Return an object of a kind."""
    return {"apiVersion": "halo.training/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


DIGEST = f"sha256:{'0' * 64}"
SHAPE = {"layers": 36, "heads": 32, "kvHeads": 8, "headDim": 128, "hidden": 4096, "vocabulary": 151936}
BASE = an(
    "BaseModel", "qwen3-8b",
    source="pvc://halo-models/qwen3-8b", revision="b968826d9c46", parametersB=8.19, contextLength=40960,
    offers=["lora_trl"], shape=SHAPE,
)  # fmt: skip
CLASS = an("GpuClass", "h100", memoryGiB=80, prices=[{"region": "eu-west-1", "usdPerHour": 2.5, "markup": 1.2}])
BYO = an("GpuClass", "own", memoryGiB=80, byo=True)
DATA = an("Dataset", "tickets", kind="chat", source="pvc://halo-data/tickets.jsonl", baseModels=["qwen3-8b"])
TASKS = at(at(DATA, "spec.kind", "tasks"), "spec.environment", "returns-desk-2")
ADAPTER = an(
    "Adapter", "tickets-sft",
    base={"name": "qwen3-8b", "revision": "b968826d9c46"}, rank=16, alpha=32, uri="pvc://halo-artifacts/run/adapter",
    digest=DIGEST, files=[{"path": "adapter_model.safetensors", "sha256": DIGEST, "size": 1}],
)  # fmt: skip


def price(**changes: object) -> list[dict[str, object]]:
    return [{"region": "eu-west-1", "usdPerHour": 2.5, "markup": 1.2} | changes]


SOURCES = (
    "/models/qwen",
    "pvc://models",
    "http://host/model",
    "s3://bucket",
    "hostPath://models",
    "hf://",
    "pvc://a/../b",
)

BASE_ROWS = [
    *(row(f"weights at {source}", BASE, {"source": source}, "spec.source", f'"{source}"') for source in SOURCES),
    row("a branch, not a revision", BASE, {"revision": "main"}, "spec.revision"),
    row("nothing offered", BASE, {"offers": []}, "spec.offers", "at least 1"),
    row("an unknown offer", BASE, {"offers": ["full"]}, "spec.offers", '"full"', '"lora_trl"'),
    row("an offer twice", BASE, {"offers": ["grpo", "grpo"]}, "spec.offers", "Duplicate value"),
    row("an unknown method", BASE, {"methods": ["ppo"]}, "spec.methods", '"ppo"', '"dpo"'),
    row("a list of no recipes", BASE, {"recipes": []}, "spec.recipes", "at least 1"),
    row("an unknown attention", BASE, {"attention": "linear"}, "spec.attention", '"linear"', '"hybrid"'),
    row("an unknown dtype", BASE, {"dtype": "fp16"}, "spec.dtype", '"fp16"', '"bf16"'),
    row("an unknown quantization", BASE, {"quantization": "int8"}, "spec.quantization", '"int8"', '"nf4"'),
    row(
        "four bits under rollouts",
        BASE,
        {"quantization": "nf4", "offers": ["lora_trl", "halo_rlvr"]},
        "spec.quantization",
        "found nf4 on a base that offers more than lora_trl",
        "offer lora_trl alone",
    ),
    row("an unknown trainer", BASE, {"defaultTrainer": "trl"}, "spec.defaultTrainer", '"trl"', '"TRL"'),
    row("half a shape", BASE, {"shape.heads": None}, "spec.shape.heads", "Required value"),
    *outside("parametersB", BASE, 0, 10001),
    *outside("contextLength", BASE, 0, 16777217),
    *outside("gpus", BASE, 0, 9),
]
CLASS_ROWS = [
    row("a price of your own compute", BYO, {"prices": price()}, "spec.prices", "byo: true", "found 1", "remove them", also=("spec.byo",)),
    row("two prices of a region", CLASS, {"prices": price() + price()}, "spec.prices", "Duplicate value"),
    row("a price of nothing", CLASS, {"prices": price(usdPerHour=0)}, "spec.prices[0].usdPerHour", "greater than 0"),
    row("a price below none", CLASS, {"prices": price(usdPerHour=-1)}, "spec.prices[0].usdPerHour", "greater than 0"),
    row("an absurd price", CLASS, {"prices": price(usdPerHour=1e308)}, "spec.prices[0].usdPerHour", "less than"),
    row("a price finer than a micro-USD", CLASS, {"prices": price(usdPerHour=2.5000001)}, "spec.prices[0].usdPerHour", "more than 6 decimals", "round it"),
    row("a price with its currency", CLASS, {"prices": price(usdPerHour="2.5 USD")}, "spec.prices[0].usdPerHour", '"string"'),
    row("a markup below 1", CLASS, {"prices": price(markup=0.2)}, "spec.prices[0].markup", "greater than or equal to 1"),
    row("a price of no region", CLASS, {"prices": [{"usdPerHour": 2.5}]}, "spec.prices[0].region", "Required value"),
    *(row(f"{field} of {value}", CLASS, {f"perGpu.{field}": value}, f"spec.perGpu.{field}", f'"{value}"') for field, value in (("cpu", "1.2.3"), ("cpu", "."), ("memory", "1..5Gi"), ("memory", "64GB"), ("memory", "-1Gi"))),
    row("a resource of no domain", CLASS, {"resourceName": "gpu"}, "spec.resourceName", '"gpu"'),
    row("a label with a space", CLASS, {"nodeSelector": {"gpu type": "h100"}}, "spec.nodeSelector", "found gpu type", "write labels as"),
    row("a label's value with a space", CLASS, {"nodeSelector": {"gpu": "h 100"}}, "spec.nodeSelector.gpu", '"h 100"'),
    row("a taint that exists with a value", CLASS, {"tolerations": [{"key": "gpu", "operator": "Exists", "value": "x"}]}, "spec.tolerations", "found x", "remove it"),
    row("a taint that equals without its key", CLASS, {"tolerations": [{"value": "x"}]}, "spec.tolerations", "operator Equal without a key"),
    *outside("memoryGiB", CLASS, 0, 4097),
    *outside("perNode", CLASS, 0, 129),
    *outside("h100Equivalent", CLASS, 0, 1001),
    row("a GPU worth next to nothing", CLASS, {"h100Equivalent": 1e-300}, "spec.h100Equivalent", "less than 0.001"),
    *outside("peakTflops", CLASS, 0, 1000001),
    *outside("bandwidthTBs", CLASS, 0, 10001),
]  # fmt: skip
DATA_ROWS = [
    row("an unknown kind of rows", DATA, {"kind": "text"}, "spec.kind", '"text"', '"preference"'),
    row("a source that is no volume", DATA, {"source": "s3://bucket/rows.jsonl"}, "spec.source", '"s3://bucket/rows.jsonl"'),
    row("no base model", DATA, {"baseModels": []}, "spec.baseModels", "at least 1"),
    row("a base model twice", DATA, {"baseModels": ["a", "a"]}, "spec.baseModels", "Duplicate value"),
    row("an environment of chat", TASKS, {"kind": "chat"}, "spec.environment", "belongs to kind tasks, found kind chat", "remove it", also=("environment",)),
]  # fmt: skip
ADAPTER_ROWS = [
    row("no files", ADAPTER, {"files": []}, "spec.files", "at least 1"),
    row("a digest that is none", ADAPTER, {"digest": "sha256:1"}, "spec.digest", '"sha256:1"'),
    row("a folder that is no volume", ADAPTER, {"uri": "/tmp/adapter"}, "spec.uri", '"/tmp/adapter"'),
    *(
        row(
            f"a file at {path}",
            ADAPTER,
            {"files": [{"path": path, "sha256": DIGEST, "size": 1}]},
            "spec.files",
            "found a path that leads elsewhere;",
            "no part begins with",
        )
        for path in ("../../.profile", "/etc/passwd", "a//b", ".hidden")
    ),
    row("an unknown mode", ADAPTER, {"mode": "thinking"}, "spec.mode", '"thinking"', '"final"'),
    *outside("rank", ADAPTER, 0, 257),
    *outside("alpha", ADAPTER, 0, 4097),
]

ROWS: list[Refused] = [*BASE_ROWS, *CLASS_ROWS, *DATA_ROWS, *ADAPTER_ROWS]
