"""Environment: one revision of a task environment, and what its qualification found when it really ran."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from halo_api.amounts import Amount
from halo_api.base import ApiModel, Name, ShortText, Text, Time, cel, mapped_list, rule
from halo_api.conditions import Condition

Url = Annotated[
    str,
    Field(
        min_length=8,
        max_length=512,
        pattern=r"^https?://[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[0-9]{1,5})?(/[-A-Za-z0-9._~%/]*)?$",
    ),
]


class SecretKey(ApiModel):
    """A key of a Secret of the same namespace; its value never leaves the pod that needs it."""

    name: Annotated[Name, Field(description="name of the Secret.", examples=["staging-token"])]
    key: Annotated[
        str,
        Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$", description="key in it.", examples=["token"]),
    ]


class Staging(ApiModel):
    """The customer's staging system, which a harness acts on while it is trained."""

    url: Annotated[
        Url,
        Field(
            description="url of the staging system: http(s)://HOST[:PORT][/PATH].",
            examples=["https://staging.example/api"],
        ),
    ]
    token: Annotated[
        SecretKey | None,
        Field(default=None, description="token that is sent with each request, as a key of a Secret; unset: none."),
    ]


class Splits(ApiModel):
    """The package's own names of its task lists; they must share no task."""

    train: Annotated[
        ShortText, Field(min_length=1, description="train is the split that runs train on.", examples=["train"])
    ] = "train"
    eval: Annotated[
        ShortText, Field(min_length=1, description="eval is the split that nothing is trained on.", examples=["eval"])
    ] = "eval"


class EnvironmentSpec(ApiModel):
    """A revision of an environment hub package, or of a customer's harness: immutable, since runs rely on its qualification."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            rule(
                "self == oldSelf",
                "'is immutable: runs rely on the revision that was qualified; create another Environment instead'",
            ),
            rule(
                "has(self.staging) == (self.package == 'Harness')",
                "'found package %s: a Harness declares its staging system, and only a Harness has one'.format([self.package])",
                ".staging",
            ),
        )
    )

    package: Annotated[
        Literal["OpenEnv", "Verifiers", "NeMoGym", "AutomationBench", "Harness"],
        Field(
            description="package says what it is: a bridged environment (OpenEnv, Verifiers, NeMoGym, AutomationBench), or a "
            "customer's Harness.",
            examples=["OpenEnv"],
        ),
    ]
    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=253,
            pattern=r"^[A-Za-z0-9][-A-Za-z0-9._/]*$",
            description="name of the package in its hub.",
            examples=["zapier/AutomationBench"],
        ),
    ]
    revision: Annotated[
        str,
        Field(
            min_length=1,
            max_length=128,
            pattern=r"^[A-Za-z0-9][-A-Za-z0-9._:+]*$",
            description="revision of the package that is pinned: a version, commit or digest.",
            examples=["1.0.0"],
        ),
    ]
    image: Annotated[
        str,
        Field(
            min_length=1,
            max_length=512,
            pattern=r"^[a-z0-9][-a-z0-9.:]*(/[a-z0-9][-a-z0-9._]*)*(:[A-Za-z0-9_][-A-Za-z0-9._]*)?(@sha256:[0-9a-f]{64})?$",
            description="image that serves the environment; the digest that its qualification ran on is what runs use.",
            examples=["registry.example/envs/bench:1.0.0"],
        ),
    ]
    arguments: Annotated[
        dict[str, Annotated[str, Field(max_length=1024)]],
        Field(
            max_length=64, description="arguments of the package, by name; at most 64.", examples=[{"toolset": "api"}]
        ),
    ] = Field(default_factory=dict)
    splits: Annotated[Splits, Field(description="splits of its tasks.")] = Field(default_factory=Splits)
    max_turns: Annotated[
        int | None,
        Field(
            default=None,
            ge=1,
            le=10000,
            description="maxTurns an episode may take; unset: the package's own max_turns.",
            examples=[32],
        ),
    ]
    staging: Annotated[
        Staging | None,
        Field(default=None, description="staging system of a Harness; required there, refused elsewhere."),
    ]


class Qualification(ApiModel):
    """What episodes that really ran have shown."""

    episodes: Annotated[int, Field(description="episodes that ran.")]
    deterministic: Annotated[bool, Field(description="deterministic: the same seed and steps gave the same results.")]
    gold_reward: Annotated[Amount, Field(description="goldReward of the packages' own solutions; 1 is wanted.")]
    empty_reward: Annotated[Amount, Field(description="emptyReward of doing nothing; below 1 is wanted.")]
    concurrent: Annotated[int, Field(description="concurrent episodes that ran at once without a leak.")]
    unscored: Annotated[int, Field(description="unscored episodes: the verifier gave no reward.")]
    disjoint: Annotated[bool, Field(description="disjoint: no task is in both splits.")]
    turn_seconds_p95: Annotated[
        Amount, Field(description="turnSecondsP95: what the environment took for a turn, 95th percentile, in seconds.")
    ]
    image_digest: Annotated[ShortText, Field(description="imageDigest that ran; runs use it.")]
    at: Annotated[Time, Field(description="at is when it ended.")]


class EnvironmentStatus(ApiModel):
    """What qualification found; set by episodes that ran, never by declaration."""

    observed_generation: Annotated[
        int | None,
        Field(default=None, description="observedGeneration is the generation that was looked at; -1 until then."),
    ]
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=16,
            description="conditions: Qualified when runs may train on it; Ready the same; Stalled when it never will be.",
            json_schema_extra=mapped_list("type"),
        ),
    ] = Field(default_factory=list)
    train_tasks: Annotated[int | None, Field(default=None, description="trainTasks of the train split.")]
    eval_tasks: Annotated[int | None, Field(default=None, description="evalTasks of the eval split.")]
    max_turns: Annotated[int | None, Field(default=None, description="maxTurns that an episode may take.")]
    qualification: Annotated[
        Qualification | None, Field(default=None, description="qualification as it was last measured.")
    ]
    waiting: Annotated[
        Text | None, Field(default=None, description="waiting says in one line what the qualification waits for.")
    ]


class Environment(ApiModel):
    """Environment is one revision of an environment that runs train on; in the operator's namespace it is public."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-halo-crd": {
                "plural": "environments",
                "shortNames": ["env"],
                # Nobody writes its status yet: a default that says so would keep GitOps tools waiting for ever.
                "reconciled": False,
                "scope": "Namespaced",
                "columns": [
                    ["Package", "string", ".spec.package", 0],
                    ["Name", "string", ".spec.name", 0],
                    ["Revision", "string", ".spec.revision", 0],
                    ["Qualified", "string", '.status.conditions[?(@.type=="Qualified")].status', 0],
                    ["Tasks", "integer", ".status.trainTasks", 0],
                    ["Age", "date", ".metadata.creationTimestamp", 0],
                    ["Image", "string", ".spec.image", 1],
                    ["Turns", "integer", ".status.maxTurns", 1],
                    ["Message", "string", '.status.conditions[?(@.type=="Qualified")].message', 1],
                ],
            }
        }
    )

    spec: Annotated[EnvironmentSpec, Field(description="spec is which revision of which package.")]
    status: Annotated[EnvironmentStatus | None, Field(default=None, description="status is what qualification found.")]
