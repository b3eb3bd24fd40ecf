"""What a GrpoRun is rewarded for: judged criteria, assertions as gates, and the tasks of an agentic run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from halo_api.base import ApiModel, Name, cel, rule

VALUED = ("json_schema", "regex_match", "contains", "not_contains", "max_length", "min_length")
VALUELESS = ("json_valid", "completed")

Seconds = Annotated[
    int | None,
    Field(
        default=None,
        ge=1,
        le=120,
        description="timeoutSec ends the command after this many seconds, which counts as failed; 1 to 120; unset: 60. Example: 30",
    ),
]


def listed(types: tuple[str, ...]) -> str:
    """Return the names as a CEL list."""
    return "[" + ", ".join(f"'{name}'" for name in types) + "]"


def wanted_only(field: str, where: str, found: str) -> str:
    """Return the message of a field that goes with one choice: it is missing there, or set elsewhere."""
    return (
        f"has(self.{field}) ? 'belongs to {where}, found ' + {found} + '; remove it or change that'"
        f" : 'is required by {where}, found none; add it'"
    )


ASSERTION_RULES = (
    rule(
        f"has(self.value) || !(self.type in {listed(VALUED)})",
        "'is required by assertion type %s, found none; add a value'.format([self.type])",
        ".value",
    ),
    rule(
        f"!has(self.value) || !(self.type in {listed((*VALUELESS, 'exec'))})",
        "'has no meaning for assertion type %s, found one; remove it'.format([self.type])",
        ".value",
    ),
    rule(
        "!has(self.value) || !(self.type in ['max_length', 'min_length']) || self.value.matches('^[0-9]{1,9}$')",
        "'must be a number of characters for assertion type %s, found %s; write it as a string such as \"2000\"'.format([self.type, self.value.substring(0, self.value.size() < 64 ? self.value.size() : 64)])",
        ".value",
    ),
    # CEL's own engine is RE2: a pattern that it can't compile is refused with its words, and no pattern hangs a run.
    rule(
        "self.type != 'regex_match' || !has(self.value) || ''.matches(self.value) in [true, false]",
        "'must be an RE2 pattern'",
        ".value",
    ),
    rule(
        "has(self.command) == (self.type == 'exec')",
        wanted_only("command", "assertion type exec", "self.type"),
        ".command",
    ),
    rule(
        "!has(self.timeoutSec) || self.type == 'exec'",
        "'belongs to assertion type exec, found type %s; remove it'.format([self.type])",
        ".timeoutSec",
    ),
)


class Assertion(ApiModel):
    """A check of an answer without a judge: where it fails, the answer's reward is zero."""

    model_config = {"json_schema_extra": cel(*ASSERTION_RULES)}

    type: Annotated[
        Literal[
            "json_valid", "json_schema", "regex_match", "contains", "not_contains", "max_length", "min_length",
            "completed", "tool_called", "no_tool_call", "exec",
        ],
        Field(description="type is what is checked; exec runs a command, only with spec.environment. Example: json_valid"),
    ]  # fmt: skip
    value: Annotated[
        str | None,
        Field(
            default=None,
            max_length=16384,
            description="value is what is compared: a JSON schema, an RE2 pattern, a substring, a number of characters, or for tool_called and no_tool_call a tool's name (unset: any tool); at most 16384 characters. Example: '^[A-Z]'",
        ),
    ]
    command: Annotated[
        str | None,
        Field(
            default=None,
            min_length=1,
            max_length=4000,
            description="command of type exec runs after an episode and passes with exit code 0; 1 to 4000 characters. Example: pytest -q",
        ),
    ]
    timeout_sec: Seconds


REWARD_RULES = (
    rule(
        "has(self.criterionId) == (self.mode == 'single')",
        wanted_only("criterionId", "mode single", "self.mode"),
        ".criterionId",
    ),
    rule(
        "has(self.criterionIds) == (self.mode == 'compositional')",
        wanted_only("criterionIds", "mode compositional", "self.mode"),
        ".criterionIds",
    ),
    rule(
        "!has(self.assertions) || self.mode == 'compositional'",
        "'belongs to mode compositional, found mode %s; remove it or set mode: compositional'.format([self.mode])",
        ".assertions",
    ),
)


class Reward(ApiModel):
    """The reward: one criterion, or the mean of several with assertions as gates."""

    model_config = {"json_schema_extra": cel(*REWARD_RULES)}

    mode: Annotated[
        Literal["single", "compositional"],
        Field(
            description="mode is single, one criterion, or compositional, several criteria and assertions. Example: single"
        ),
    ]
    criterion_id: Annotated[
        Name | None,
        Field(
            default=None,
            description="criterionId names the calibrated Criterion of mode single, in this namespace. Example: helpful",
        ),
    ]
    criterion_ids: Annotated[
        list[Name] | None,
        Field(
            default=None,
            min_length=1,
            max_length=32,
            description="criterionIds name the calibrated Criteria of mode compositional, 1 to 32; their mean is the reward. Example: [helpful, brief]",
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ]
    assertions: Annotated[
        list[Assertion] | None,
        Field(
            default=None,
            max_length=32,
            description="assertions of mode compositional are gates: one that fails makes the reward zero; at most 32; unset: none. Example: [{type: json_valid}]",
        ),
    ]

    @property
    def criteria(self) -> tuple[str, ...]:
        """Return the names of all criteria of either mode."""
        return tuple(self.criterion_ids or ([self.criterion_id] if self.criterion_id else ()))


class ToolEnvironment(ApiModel):
    """The tool environment that an agentic run's episodes go through."""

    proxy_base_url: Annotated[
        str,
        Field(
            min_length=8,
            max_length=2048,
            pattern=r"^https?://[^\s]+$",
            description="proxyBaseUrl is the OpenAI-compatible tool proxy that episodes run through. Example: http://tools.team-a.svc:8080/v1",
        ),
    ]
    max_steps: Annotated[
        int | None,
        Field(
            default=None,
            ge=1,
            le=10000,
            description="maxSteps ends an episode after this many model turns; 1 to 10000; unset: 32. Example: 20",
        ),
    ]
    simulate: Annotated[
        bool,
        Field(
            description="simulate true replays a task's recorded tool replies instead of calling tools; default false. Example: true"
        ),
    ] = False


class Verifier(ApiModel):
    """A command that decides whether an episode did its task."""

    command: Annotated[
        str,
        Field(
            min_length=1,
            max_length=4000,
            description="command passes with exit code 0; 1 to 4000 characters. Example: test -f /tmp/report.md",
        ),
    ]
    timeout_sec: Seconds


# Nullable, else an item that is null could be created, and then no rule could compare it at the next update.
AnyJson = Annotated[Any, Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True, "nullable": True})]


class Task(ApiModel):
    """One task of an agentic run."""

    goal: Annotated[
        list[AnyJson],
        Field(
            min_length=1,
            max_length=1024,
            description="goal is what the policy is given, at least one JSON value: a text or chat messages. Example: ['Book a table for two']",
        ),
    ]
    image: Annotated[
        str | None,
        Field(
            default=None,
            max_length=500,
            description="image is the container image in which the task's commands run, at most 500 characters; unset: the installation's. Example: python:3.12",
        ),
    ]
    recorded: Annotated[
        list[AnyJson] | None,
        Field(
            default=None,
            max_length=4096,
            description="recorded are the tool replies that environment.simulate replays, any JSON values; unset: none. Example: [{tool: search, reply: none}]",
        ),
    ]
    verifier: Annotated[
        list[Verifier] | None,
        Field(
            default=None,
            max_length=32,
            description="verifier are the commands that must all pass, at most 32; unset: none. Example: [{command: 'true', timeoutSec: 5}]",
        ),
    ]
