"""Objects beside runs that the API server refuses, rule by rule: Workspace, Environment, Criterion, ModelAlias, LedgerPage, Recipe."""

from __future__ import annotations

from typing import Any

import yaml

from tests.refusals import Body, Refused, at

DIGEST = "sha256:" + 64 * "0"


def obj(kind: str, name: str, spec: Body) -> Body:
    """Return an object of a kind."""
    return {"apiVersion": "halo.training/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def row(what: str, good: Body, changes: dict[str, Any], *words: str) -> Refused:
    """Return the row of a good object changed at dotted paths, below the spec unless they begin with metadata."""
    bad = good
    for path, value in changes.items():
        bad = at(bad, path if path.startswith("metadata.") else f"spec.{path}", value)
    return Refused(what, bad, good, words)


def outside(path: str, good: Body, low: Any, high: Any) -> list[Refused]:
    """Return the rows of a number's two bounds, an absurd one and one in words."""
    name = f"spec.{path}"
    return [
        row(f"{path} below its least", good, {path: low}, name, "should be greater than"),
        row(f"{path} above its most", good, {path: high}, name, "should be less than"),
        row(f"{path} of 1e308", good, {path: 1e308}, name),
        row(f"{path} of NaN", good, {path: "NaN"}, name, '"string"'),
    ]


WALLET = obj(
    "Workspace", "workspace", {"wallet": {"creditUsd": 500.25}, "plan": "paid", "storage": {"claim": "halo-artifacts"}}
)
SHARED = obj(
    "Workspace",
    "workspace",
    {"allocation": {"h100Hours": 1200.125}, "pipeline": {"rolloutGpus": 2}, "startsPerMinute": 20},
)
TRACKED = at(WALLET, "spec.tracking", {"wandb": {"project": "halo", "secretName": "wandb"}})
WORKSPACE = [
    row("a second Workspace", WALLET, {"metadata.name": "team-a"}, "metadata.name: found team-a", "name it workspace"),
    *outside("wallet.creditUsd", WALLET, -1, 100000001),
    row("a wallet without credit", WALLET, {"wallet": {}}, "spec.wallet.creditUsd", "Required value"),
    row("credit of a ten-millionth", at(WALLET, "spec.wallet.creditUsd", 500.000001), {"wallet.creditUsd": 500.0000001}, "spec.wallet.creditUsd", "more than 6 decimals, found 500.0000001", "round it"),
    *outside("allocation.h100Hours", SHARED, -0.5, 10000001),
    row("credit too small to count", WALLET, {"wallet.creditUsd": 1e-14}, "spec.wallet.creditUsd", "more than 6 decimals, found 1e-14"),
    row("credit next to a micro-USD", at(WALLET, "spec.wallet.creditUsd", 99999999.123456), {"wallet.creditUsd": 99999999.12345605}, "spec.wallet.creditUsd", "more than 6 decimals"),
    row("hours of a ten-thousandth", SHARED, {"allocation.h100Hours": 1200.1251}, "spec.allocation.h100Hours", "more than 3 decimals, found 1200.1251"),
    row("an unknown plan", WALLET, {"plan": "gold"}, "spec.plan", '"gold"', '"free", "paid"'),
    *outside("pipeline.rolloutGpus", SHARED, 0, 1025),
    *outside("startsPerMinute", SHARED, 0, 100001),
    row("a claim in capitals", WALLET, {"storage.claim": "Adapters"}, "spec.storage.claim", '"Adapters"'),
    row("a W&B project with a slash", TRACKED, {"tracking.wandb.project": "a/b"}, "spec.tracking.wandb.project", '"a/b"'),
    row("W&B without a Secret", TRACKED, {"tracking.wandb": {"project": "halo"}}, "spec.tracking.wandb.secretName", "Required value"),
    row("a W&B server that is no address", TRACKED, {"tracking.wandb.baseUrl": "wandb.example.com"}, "spec.tracking.wandb.baseUrl", '"wandb.example.com"'),
    row("a misspelt grant", WALLET, {"walet": {"creditUsd": 1}}, 'unknown field "spec.walet"'),
]  # fmt: skip

BRIDGED = obj(
    "Environment",
    "bench-1",
    {
        "package": "AutomationBench",
        "name": "zapier/AutomationBench",
        "revision": "1.0.0",
        "image": "registry.example/envs/bench:1.0.0",
        "arguments": {"toolset": "api"},
        "maxTurns": 32,
    },
)
HARNESS = obj(
    "Environment",
    "returns-desk-2",
    {
        "package": "Harness",
        "name": "acme/returns-desk",
        "revision": "2.1",
        "image": "registry.example/acme/returns-desk@" + DIGEST,
        "staging": {"url": "https://staging.acme.example/api", "token": {"name": "staging-token", "key": "token"}},
    },
)
ENVIRONMENT = [
    row("an unknown package", BRIDGED, {"package": "Gymnasium"}, "spec.package", '"Gymnasium"', '"OpenEnv"'),
    row("a package without a name", BRIDGED, {"name": None}, "spec.name", "Required value"),
    row("a name with a space", BRIDGED, {"name": "zapier bench"}, "spec.name", '"zapier bench"'),
    row("a package without a revision", BRIDGED, {"revision": None}, "spec.revision", "Required value"),
    row("an empty revision", BRIDGED, {"revision": ""}, "spec.revision", "at least 1 chars long"),
    row("no image", BRIDGED, {"image": None}, "spec.image", "Required value"),
    row("an image in capitals", BRIDGED, {"image": "registry.example/Bench:1"}, "spec.image", '"registry.example/Bench:1"'),
    row("an image with half a digest", BRIDGED, {"image": "registry.example/bench@sha256:12ab"}, "spec.image"),
    row("65 arguments", BRIDGED, {"arguments": {f"a{i}": "x" for i in range(65)}}, "spec.arguments", "must have at most 64 items"),
    row("an argument that is a number", BRIDGED, {"arguments": {"seed": 1}}, "spec.arguments.seed", '"integer"', "string"),
    row("an empty split", at(BRIDGED, "spec.splits.train", "train"), {"splits.train": ""}, "spec.splits.train", "at least 1 chars long"),
    *outside("maxTurns", BRIDGED, 0, 10001),
    row("a harness without its staging system", HARNESS, {"staging": None}, "spec.staging", "found package Harness", "declares its staging system"),
    row("a staging system of a bridged environment", BRIDGED, {"staging": {"url": "https://staging.example"}}, "spec.staging", "found package AutomationBench", "only a Harness has one"),
    row("a staging system behind another scheme", HARNESS, {"staging.url": "ftp://staging.acme.example"}, "spec.staging.url", "ftp://"),
    row("a token without its key", HARNESS, {"staging.token.key": None}, "spec.staging.token.key", "Required value"),
]  # fmt: skip

HELPFUL = obj(
    "Criterion",
    "helpful",
    {
        "unit": "request",
        "rubric": "The answer solves what was asked.",
        "judge": {
            "url": "https://judge.example/v1",
            "model": "judge-large-2026-06",
            "inputUsd": 0.4,
            "outputUsd": 1.6,
            "maxTokens": 512,
        },
        "grades": {"dataset": "support-grades", "minAgreement": 0.85},
    },
)
CRITERION = [
    row("an unknown unit", HELPFUL, {"unit": "conversation"}, "spec.unit", '"conversation"', '"request", "trace"'),
    row("no rubric", HELPFUL, {"rubric": None}, "spec.rubric", "Required value"),
    row("a rubric of a word", HELPFUL, {"rubric": "good"}, "spec.rubric", "at least 10 chars long"),
    row("a rubric of a book", HELPFUL, {"rubric": "x" * 32769}, "spec.rubric", "32768"),
    row("no judge", HELPFUL, {"judge": None}, "spec.judge", "Required value"),
    row("a judge without a scheme", HELPFUL, {"judge.url": "judge.example/v1"}, "spec.judge.url", '"judge.example/v1"'),
    row("a judge without a price", HELPFUL, {"judge.inputUsd": None}, "spec.judge.inputUsd", "Required value"),
    row("a model with a space", HELPFUL, {"judge.model": "judge large"}, "spec.judge.model", '"judge large"'),
    *outside("judge.inputUsd", HELPFUL, -0.1, 10001),
    *outside("judge.outputUsd", HELPFUL, -0.1, 10001),
    row("a price of a ten-millionth", HELPFUL, {"judge.outputUsd": 1.6000001}, "spec.judge.outputUsd", "more than 6 decimals, found 1.6000001"),
    *outside("judge.maxTokens", HELPFUL, 15, 32769),
    *outside("grades.minAgreement", HELPFUL, 0.4, 1.1),
]  # fmt: skip

BASE_ALIAS = obj(
    "ModelAlias", "support", {"baseModel": "qwen3-8b", "adapter": "support-sft", "canaries": {"maxPercent": 20}}
)
ENDPOINT_ALIAS = obj("ModelAlias", "support", {"endpoint": "https://models.example/v1"})
LONG = at(ENDPOINT_ALIAS, "metadata.name", 120 * "a")
MODEL_ALIAS = [
    row("a name of 121 characters", LONG, {"metadata.name": 121 * "a"}, "metadata.name: found 121 characters", "at most 120"),
    row("an alias of nothing", ENDPOINT_ALIAS, {"endpoint": None}, "spec", "found neither baseModel nor endpoint"),
    row("an alias of two things", ENDPOINT_ALIAS, {"baseModel": "qwen3-8b"}, "spec", "found baseModel qwen3-8b and an endpoint", "keep one of them"),
    row("an adapter of an endpoint", ENDPOINT_ALIAS, {"adapter": "support-sft"}, "spec.adapter", "found support-sft", "name it in spec.baseModel"),
    row("an endpoint without a scheme", ENDPOINT_ALIAS, {"endpoint": "models.example/v1"}, "spec.endpoint", '"models.example/v1"'),
    *outside("canaries.maxPercent", BASE_ALIAS, 0, 51),
]  # fmt: skip

ENTRY: Body = {
    "sequence": 1,
    "run": {"kind": "TrainingJob", "name": "support-sft", "uid": "0d4c7d3e-6f0b-4c5e-9a51-0a3b6d1f2e77"},
    "unit": "USD",
    "rate": {"gpuClass": "h100", "region": "eu-west", "usdPerHour": "2.5", "markup": "1.2", "h100Equivalent": "1"},
    "held": "12.5",
    "used": "8.75",
    "charged": "8.75",
    "overrun": "0",
    "gpuSeconds": "10500",
    "outcome": "Succeeded",
    "placedAt": "2026-09-01T10:00:00Z",
    "settledAt": "2026-09-01T13:30:00Z",
}
TOTALS = {"entries": 1, "spentUsd": "8.75", "spentH100Hours": "0"}
FIRST = obj("LedgerPage", "page-1", {"page": 1, "workspaceUid": "5b1f6f6e", "entries": [ENTRY], "totals": TOTALS})
SECOND = obj(
    "LedgerPage",
    "page-2",
    {"page": 2, "workspaceUid": "5b1f6f6e", "previous": DIGEST, "entries": [ENTRY], "totals": TOTALS},
)
LEDGER_PAGE = [
    row("page 0", FIRST, {"page": 0}, "spec.page", "should be greater than or equal to 1"),
    row("a second page of a broken chain", SECOND, {"previous": None}, "spec.previous", "found page 2", "the digest of the one before"),
    row("a first page with one before", FIRST, {"previous": DIGEST}, "spec.previous", "found page 1"),
    row("a page without entries", FIRST, {"entries": []}, "spec.entries", "at least 1 items"),
    row("a page of 201 entries", FIRST, {"entries": [ENTRY | {"sequence": i + 1} for i in range(201)]}, "spec.entries", "200 items"),
    row("an amount that is no decimal", FIRST, {"entries": [ENTRY | {"charged": "1e5"}]}, "spec.entries[0].charged", '"1e5"'),
    row("an amount that is a number", FIRST, {"entries": [ENTRY | {"charged": 8.75}]}, "spec.entries[0].charged", '"number"', "string"),
    row("an unknown unit", FIRST, {"entries": [ENTRY | {"unit": "EUR"}]}, "spec.entries[0].unit", '"EUR"', '"USD"'),
    row("a run of another kind", FIRST, {"entries": [ENTRY | {"run": ENTRY["run"] | {"kind": "Job"}}]}, "spec.entries[0].run.kind", '"Job"'),
]  # fmt: skip

RECIPE = obj("Recipe", "sql-v9", yaml.safe_load("""
name: sql_v9
digest: sha256:0000000000000000000000000000000000000000000000000000000000000000
summary: A recipe of the tests.
environment:
  {name: sql, version: 3, split: train, hiddenVariants: true, skipOrphanForeignKeys: true, extraction: false, isolatedRuntime: false,
   unscored: leave-out}
reward: {name: verifier, brokenCheckPenalty: 0}
objective:
  {name: GRPO, ratio: token, clipLow: 0.2, clipHigh: 0.2, kl: 0, advantageScale: group-std, advantageStdFloor: 0.001,
   normalisation: sequence, oldLogProbs: rollout, dynamicSampling: {enabled: false, maxRounds: 1}, truncatedAnswers: train}
rollouts:
  {mode: sync, updatesPerRound: 1, minReplicas: 1, groupSize: 8, maxTurns: 16, maxTokensPerTurn: 4096, temperature: 1, topP: 1, topK: -1,
   minP: 0, thinking: base, reasoningAllowed: true, sendReasoningBack: false}
rows: {layout: turn, overlength: mask}
lora:
  {rank: 16, alpha: 32, dropout: 0, targetModules: all-linear, learningRate: 1.0e-5, schedule: constant, warmupSteps: 0, weightDecay: 0,
   beta1: 0.9, beta2: 0.999, epsilon: 1.0e-8, maxGradNorm: 1}
serving: folded
weightSync: {prompts: 8, tokens: 32, maxMeanLogProbGap: 0.1, timeoutSeconds: 300, retries: 2}
routingReplay: false
moeOnly: false
judgeAllowed: true
envRevision: refused
dataset: required
bases: [halo_rlvr, halo_rft]
"""))  # fmt: skip
RETIRED = at(at(RECIPE, "spec.retired", True), "spec.successor", "sql_v10")
RECIPES = [
    row("a recipe under the name of an object", RECIPE, {"name": "sql-v9"}, "spec.name", '"sql-v9"'),
    row("a setting that is not written", RECIPE, {"rollouts.temperature": None}, "spec.rollouts.temperature", "Required value"),
    row("CISPO with GRPO's clips", RECIPE, {"objective.name": "CISPO"}, "spec.objective", "found CISPO", "CISPO has ratioFloor and ratioCap"),
    row("GRPO without its clips", RECIPE, {"objective.clipLow": None}, "spec.objective", "found GRPO", "clipLow and clipHigh"),
    row("a successor of what is not retired", RETIRED, {"retired": False}, "spec.successor", "found sql_v10", "not retired"),
    row("an unknown base", RECIPE, {"bases": ["lora_trl"]}, "spec.bases[0]", '"lora_trl"', '"halo_rlvr"'),
    row("an episode that counts zero as it was not scored", RECIPE, {"environment.unscored": "zero"}, "spec.environment.unscored", '"zero"', '"leave-out"'),
    row("a weight sync without a bound", RECIPE, {"weightSync.maxMeanLogProbGap": None}, "spec.weightSync.maxMeanLogProbGap", "Required value"),
    row("half a digest", RECIPE, {"digest": "sha256:12ab"}, "spec.digest", '"sha256:12ab"'),
    *outside("rollouts.groupSize", RECIPE, 1, 1025),
    *outside("rollouts.temperature", RECIPE, 0, 2.1),
    *outside("lora.learningRate", RECIPE, 0, 1.1),
    *outside("weightSync.maxMeanLogProbGap", RECIPE, 0, 10.1),
    *outside("weightSync.retries", RECIPE, -1, 11),
]  # fmt: skip

ROWS = [*WORKSPACE, *ENVIRONMENT, *CRITERION, *MODEL_ALIAS, *LEDGER_PAGE, *RECIPES]
