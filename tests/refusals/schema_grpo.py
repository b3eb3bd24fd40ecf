"""GrpoRuns that the API server refuses, rule by rule."""

from __future__ import annotations

from typing import Any

from tests.refusals import Body, Refused, at


def run(**spec: Any) -> Body:
    """Return a GrpoRun that the schema accepts."""
    common = {
        "model": "qwen3-8b",
        "reward": {"mode": "single", "criterionId": "helpful"},
        "promptCount": 200,
        "rewardBudgetUsd": 25,
        "gpuHourBudget": 12.5,
    }
    return {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "GrpoRun",
        "metadata": {"name": "run"},
        "spec": common | spec,
    }


def row(what: str, good: Body, changes: dict[str, Any], *words: str, also: tuple[str, ...] = ()) -> Refused:
    """Return the row of a good object with its spec changed at dotted paths."""
    bad = good
    for path, value in changes.items():
        bad = at(bad, f"spec.{path}", value)
    return Refused(what, bad, good, words, tuple(f"spec.{path}" for path in also))


def asserting(**assertion: Any) -> list[dict[str, Any]]:
    return [assertion]


def task(**facts: Any) -> list[dict[str, Any]]:
    return [{"goal": ["Book a table for two"]} | facts]


TOOLS = {"proxyBaseUrl": "http://tools.team-a.svc:8080/v1"}
GPU = {"gpuType": "h100", "region": "eu-west-1"}
ADOPT = {"aliasName": "support", **GPU}
PLAIN = run()
SEVERAL = run(
    reward={"mode": "compositional", "criterionIds": ["helpful", "brief"], "assertions": asserting(type="json_valid")}
)
AGENTIC = run(environment=TOOLS, tasksInline=task(verifier=[{"command": "true", "timeoutSec": 5}]))
EXEC = at(SEVERAL, "spec.environment", TOOLS)
EXEC = at(EXEC, "spec.reward.assertions", asserting(type="exec", command="pytest -q", timeoutSec=120))
MATCH = at(SEVERAL, "spec.reward.assertions", asserting(type="regex_match", value="^(yes|no)$"))
LENGTH = at(SEVERAL, "spec.reward.assertions", asserting(type="max_length", value="2000"))
BILLED = run(platformGpu=GPU)
ADOPTED = run(autoAdopt=ADOPT)

REQUIRED = [
    row(f"no {field}", PLAIN, {field: None}, f"spec.{field}", "Required value")
    for field in ("model", "reward", "promptCount", "rewardBudgetUsd", "gpuHourBudget")
]
NUMBERS = [
    row("nine prompts", PLAIN, {"promptCount": 9}, "spec.promptCount", "9", "greater than or equal to 10"),
    row("half a prompt", PLAIN, {"promptCount": 10.5}, "spec.promptCount", "integer"),
    row("no judge money", PLAIN, {"rewardBudgetUsd": 0}, "spec.rewardBudgetUsd", "greater than 0"),
    row("less than no judge money", PLAIN, {"rewardBudgetUsd": -1}, "spec.rewardBudgetUsd", "greater than 0"),
    row("absurd judge money", PLAIN, {"rewardBudgetUsd": 1e308}, "spec.rewardBudgetUsd", "less than or equal to"),
    row("judge money that would have to be rounded", at(PLAIN, "spec.rewardBudgetUsd", 0.000001), {"rewardBudgetUsd": 0.0000015}, "spec.rewardBudgetUsd", "more than 6 decimals", "round it"),
    row("no GPU time", PLAIN, {"gpuHourBudget": 0}, "spec.gpuHourBudget", "greater than 0"),
    row("less than no GPU time", PLAIN, {"gpuHourBudget": -0.5}, "spec.gpuHourBudget", "greater than 0"),
    row("absurd GPU time", PLAIN, {"gpuHourBudget": 1e308}, "spec.gpuHourBudget", "less than or equal to"),
    row("GPU time that would have to be rounded", at(PLAIN, "spec.gpuHourBudget", 0.001), {"gpuHourBudget": 0.0015}, "spec.gpuHourBudget", "more than 3 decimals", "round it"),
    row("GPU time in words", PLAIN, {"gpuHourBudget": "0.5 GPU"}, "spec.gpuHourBudget", '"string"'),
    row("a number that is none", PLAIN, {"gpuHourBudget": "NaN"}, "spec.gpuHourBudget", '"string"'),
    row("no parameters", at(PLAIN, "spec.paramsB", 0.5), {"paramsB": 0}, "spec.paramsB", "greater than 0"),
    row("less than no parameters", at(PLAIN, "spec.paramsB", 8), {"paramsB": -8}, "spec.paramsB", "greater than 0"),
    row("half a step", at(PLAIN, "spec.maxSteps", 100), {"maxSteps": 0.5}, "spec.maxSteps", "integer"),
]  # fmt: skip
NAMES = [
    row("no model's name", PLAIN, {"model": ""}, "spec.model", "at least 1"),
    Refused("a misspelt field", at(PLAIN, "spec.promptCounts", 10), PLAIN, ('unknown field "spec.promptCounts"',)),
    Refused("the platform's snake_case", at(PLAIN, "spec.prompt_count", 10), PLAIN, ('unknown field "spec.prompt_count"',)),
]  # fmt: skip
REWARD = [
    row("an unknown mode", PLAIN, {"reward.mode": "several"}, "spec.reward.mode", '"several"', '"compositional"'),
    row("single without its criterion", PLAIN, {"reward.criterionId": None}, "spec.reward.criterionId", "required by mode single, found none", "add it", also=("reward.mode",)),
    row("single with several criteria", PLAIN, {"reward.criterionIds": ["brief"]}, "spec.reward.criterionIds", "belongs to mode compositional, found single", also=("reward.mode",)),
    row("single with assertions", PLAIN, {"reward.assertions": asserting(type="json_valid")}, "spec.reward.assertions", "belongs to mode compositional, found mode single", also=("reward.mode",)),
    row("compositional without criteria", SEVERAL, {"reward.criterionIds": None}, "spec.reward.criterionIds", "required by mode compositional, found none", also=("reward.mode",)),
    row("compositional with no criterion", SEVERAL, {"reward.criterionIds": []}, "spec.reward.criterionIds", "at least 1"),
    row("a criterion twice", SEVERAL, {"reward.criterionIds": ["brief", "brief"]}, "spec.reward.criterionIds", "Duplicate value"),
    row("compositional with one criterion by name", SEVERAL, {"reward.criterionId": "brief"}, "spec.reward.criterionId", "belongs to mode single, found compositional", also=("reward.mode",)),
]  # fmt: skip
ASSERTIONS = [
    row("an unknown assertion", SEVERAL, {"reward.assertions": asserting(type="xml_valid")}, "spec.reward.assertions[0].type", '"xml_valid"', '"json_valid"'),
    *(
        row(f"{type_} without a value", SEVERAL, {"reward.assertions": asserting(type=type_)}, "spec.reward.assertions[0].value", f"required by assertion type {type_}, found none", "add a value")
        for type_ in ("json_schema", "regex_match", "contains", "not_contains", "max_length", "min_length")
    ),
    row("json_valid with a value", SEVERAL, {"reward.assertions": asserting(type="json_valid", value="x")}, "spec.reward.assertions[0].value", "no meaning for assertion type json_valid", "remove it"),
    row("completed with a value", SEVERAL, {"reward.assertions": asserting(type="completed", value="x")}, "spec.reward.assertions[0].value", "no meaning for assertion type completed"),
    row("a pattern that does not end", MATCH, {"reward.assertions": asserting(type="regex_match", value="(yes")}, "spec.reward.assertions[0]", "error parsing regexp", "(yes"),
    row("a pattern that looks ahead", MATCH, {"reward.assertions": asserting(type="regex_match", value="(?=yes)")}, "spec.reward.assertions[0]", "error parsing regexp", "(?="),
    row("a length in words", LENGTH, {"reward.assertions": asserting(type="max_length", value="many")}, "spec.reward.assertions[0].value", "must be a number of characters", "found many"),
    row("a length below none", LENGTH, {"reward.assertions": asserting(type="min_length", value="-1")}, "spec.reward.assertions[0].value", "found -1"),
    row("a command without exec", SEVERAL, {"reward.assertions": asserting(type="json_valid", command="true")}, "spec.reward.assertions[0].command", "belongs to assertion type exec, found json_valid"),
    row("a time-out without exec", SEVERAL, {"reward.assertions": asserting(type="json_valid", timeoutSec=5)}, "spec.reward.assertions[0].timeoutSec", "belongs to assertion type exec, found type json_valid"),
    row("exec without a command", EXEC, {"reward.assertions": asserting(type="exec")}, "spec.reward.assertions[0].command", "required by assertion type exec, found none"),
    row("exec with an empty command", EXEC, {"reward.assertions": asserting(type="exec", command="")}, "spec.reward.assertions[0].command", "at least 1"),
    row("exec with a value", EXEC, {"reward.assertions": asserting(type="exec", command="true", value="x")}, "spec.reward.assertions[0].value", "no meaning for assertion type exec"),
    row("exec without time", EXEC, {"reward.assertions": asserting(type="exec", command="true", timeoutSec=0)}, "spec.reward.assertions[0].timeoutSec", "greater than or equal to 1"),
    row("exec with too much time", EXEC, {"reward.assertions": asserting(type="exec", command="true", timeoutSec=121)}, "spec.reward.assertions[0].timeoutSec", "less than or equal to 120"),
    row("exec without an environment", EXEC, {"environment": None}, "spec.reward.assertions", "found no spec.environment", "add spec.environment or remove the assertion", also=("reward.assertions",)),
]  # fmt: skip
AGENTS = [
    row("an environment without a proxy", AGENTIC, {"environment": {}}, "spec.environment.proxyBaseUrl", "Required value"),
    row("a proxy that is no URL", AGENTIC, {"environment.proxyBaseUrl": "tools.team-a:8080"}, "spec.environment.proxyBaseUrl", "should match"),
    row("no episode steps", at(AGENTIC, "spec.environment.maxSteps", 20), {"environment.maxSteps": 0}, "spec.environment.maxSteps", "greater than or equal to 1"),
    row("tasks without an environment", AGENTIC, {"environment": None}, "spec.tasksInline", "found no spec.environment", also=("tasksInline",)),
    row("tasks of a Dataset without an environment", run(environment=TOOLS, tasksFrom="booking"), {"environment": None}, "spec.tasksFrom", "found no spec.environment", also=("tasksFrom",)),
    row("tasks in line and of a Dataset", AGENTIC, {"tasksFrom": "booking"}, "spec.tasksFrom", "excludes spec.tasksInline, found both", also=("tasksInline",)),
    row("no task", AGENTIC, {"tasksInline": []}, "spec.tasksInline", "at least 1"),
    row("more than 10000 tasks", AGENTIC, {"tasksInline": [{"goal": [1]}] * 10001}, "spec.tasksInline", "must have at most 10000 items"),
    row("a task without a goal", AGENTIC, {"tasksInline": [{"image": "python:3.12"}]}, "spec.tasksInline[0].goal", "Required value"),
    row("a task with an empty goal", AGENTIC, {"tasksInline": task(goal=[])}, "spec.tasksInline[0].goal", "at least 1"),
    row("a long image", AGENTIC, {"tasksInline": task(image="i" * 501)}, "spec.tasksInline[0].image", "500"),
    row("a verifier without a command", AGENTIC, {"tasksInline": task(verifier=[{"timeoutSec": 5}])}, "spec.tasksInline[0].verifier[0].command", "Required value"),
    row("an empty verifier", AGENTIC, {"tasksInline": task(verifier=[{"command": ""}])}, "spec.tasksInline[0].verifier[0].command", "at least 1"),
    row("a long verifier", AGENTIC, {"tasksInline": task(verifier=[{"command": "x" * 4001}])}, "spec.tasksInline[0].verifier[0].command", "4000"),
    row("a verifier without time", AGENTIC, {"tasksInline": task(verifier=[{"command": "true", "timeoutSec": 0}])}, "spec.tasksInline[0].verifier[0].timeoutSec", "greater than or equal to 1"),
    row("a verifier with too much time", AGENTIC, {"tasksInline": task(verifier=[{"command": "true", "timeoutSec": 121}])}, "spec.tasksInline[0].verifier[0].timeoutSec", "less than or equal to 120"),
]  # fmt: skip
PLATFORM = [
    row("a platform GPU without a region", BILLED, {"platformGpu.region": None}, "spec.platformGpu.region", "Required value"),
    row("a platform GPU without a type", BILLED, {"platformGpu.gpuType": None}, "spec.platformGpu.gpuType", "Required value"),
    row("half a platform GPU", at(BILLED, "spec.platformGpu.gpuCount", 2), {"platformGpu.gpuCount": 0.5}, "spec.platformGpu.gpuCount", "integer"),
    row("platform GPUs that are provisioned", BILLED, {"autoProvision": True}, "spec.autoProvision", "excludes spec.platformGpu, found both", also=("platformGpu.gpuType",)),
    row("no alias", ADOPTED, {"autoAdopt.aliasName": None}, "spec.autoAdopt.aliasName", "Required value"),
    row("an alias without a name", ADOPTED, {"autoAdopt.aliasName": ""}, "spec.autoAdopt.aliasName", "at least 1"),
    row("a long alias", ADOPTED, {"autoAdopt.aliasName": "a" * 121}, "spec.autoAdopt.aliasName", "120"),
    row("an endpoint without a GPU", ADOPTED, {"autoAdopt.gpuType": None}, "spec.autoAdopt.gpuType", "Required value"),
    row("an endpoint without a region", ADOPTED, {"autoAdopt.region": None}, "spec.autoAdopt.region", "Required value"),
    row("a canary without traffic", at(ADOPTED, "spec.autoAdopt.canaryPercent", 1), {"autoAdopt.canaryPercent": 0}, "spec.autoAdopt.canaryPercent", "greater than or equal to 1"),
    row("a canary with more than half", at(ADOPTED, "spec.autoAdopt.canaryPercent", 50), {"autoAdopt.canaryPercent": 51}, "spec.autoAdopt.canaryPercent", "less than or equal to 50"),
]  # fmt: skip

ROWS = [*REQUIRED, *NUMBERS, *NAMES, *REWARD, *ASSERTIONS, *AGENTS, *PLATFORM]
