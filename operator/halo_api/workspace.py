"""Workspace: a namespace's money, limits and defaults; the object of that name, `workspace`, is the only one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from halo_api.amounts import Amount, Hours, Usd
from halo_api.base import ApiModel, Name, ShortText, Text, Time, cel, mapped_list, rule
from halo_api.conditions import Condition
from halo_api.ledger import LedgerEntry, Rate, RunRef
from halo_api.tracking import Tracking

WORKSPACE = "workspace"


class Wallet(ApiModel):
    """Prepaid money."""

    credit_usd: Annotated[
        Usd,
        Field(
            description="creditUsd is all that was ever paid in, in USD with at most 6 decimals. "
            "What is spent is not taken off here but counted in status; lowered below what is spent and held, it is "
            "Overdrawn: nothing new is held.",
            examples=[500],
        ),
    ]


class Allocation(ApiModel):
    """GPU time that the workspace's runs share."""

    h100_hours: Annotated[
        Hours,
        Field(
            description="h100Hours is all that was ever granted, in hours of an H100 with at most 3 decimals. "
            "Each run takes its share of it with budget.h100Hours, which it then must name.",
            examples=[1200],
        ),
    ]


class Features(ApiModel):
    """What the workspace may do at all."""

    fine_tuning: Annotated[
        bool,
        Field(description="fineTuning false refuses new runs, as if there were no such API.", examples=[True]),
    ] = True


class Pipeline(ApiModel):
    """Defaults of runs."""

    rollout_gpus: Annotated[
        int,
        Field(
            ge=1,
            le=1024,
            description="rolloutGpus of a halo_rlvr job that names none, on a base of one catalog GPU.",
            examples=[2],
        ),
    ] = 1


class Storage(ApiModel):
    """Where adapters, checkpoints and receipts live."""

    claim: Annotated[
        Name,
        Field(
            description="claim is the PersistentVolumeClaim of this namespace that they lie on; ReadWriteMany where runs "
            "have several nodes.",
            examples=["halo-artifacts"],
        ),
    ]


class WorkspaceSpec(ApiModel):
    """What the platform team grants a namespace."""

    wallet: Annotated[
        Wallet | None,
        Field(default=None, description="wallet that runs are held on and charged to, in USD; unset: no wallet."),
    ]
    allocation: Annotated[
        Allocation | None,
        Field(
            default=None,
            description="allocation of H100-hours that TrainingJobs are held on instead of the wallet; unset: none is shared.",
        ),
    ]
    plan: Annotated[
        Literal["free", "paid"],
        Field(description="plan: free, or paid, where a halo_rlvr job must name budget.h100Hours.", examples=["paid"]),
    ] = "free"
    features: Annotated[Features, Field(description="features that are on.")] = Field(default_factory=Features)
    pipeline: Annotated[Pipeline, Field(description="pipeline holds the defaults of runs.")] = Field(
        default_factory=Pipeline
    )
    auto_provision: Annotated[
        bool,
        Field(
            description="autoProvision true lets a GrpoRun have its GPUs provisioned (spec.autoProvision); false refuses it.",
            examples=[True],
        ),
    ] = False
    starts_per_minute: Annotated[
        int,
        Field(
            ge=1,
            le=100000,
            description="startsPerMinute of GrpoRuns, by their creation; more are refused.",
            examples=[20],
        ),
    ] = 20
    tracking: Annotated[
        Tracking | None,
        Field(
            default=None,
            description="tracking: where the metrics of TrainingJobs also go, by a run's admission; unset: only onto its volume.",
        ),
    ]
    storage: Annotated[
        Storage | None,
        Field(
            default=None,
            description="storage where adapters live; unset: TrainingJobs use the operator's default claim and GrpoRuns are "
            "refused.",
        ),
    ]


class WorkspaceHold(ApiModel):
    """Money or hours set aside for one run, at a frozen rate."""

    run: Annotated[RunRef, Field(description="run that it is held for.")]
    unit: Annotated[Literal["USD", "H100Hours"], Field(description="unit of the amount: USD or H100Hours.")]
    amount: Annotated[Amount, Field(description="amount that is held, in that unit.")]
    rate: Annotated[Rate, Field(description="rate that use is charged at.")]
    quoted: Annotated[
        Amount | None, Field(default=None, description="quoted at admission: the estimate's centre, in that unit.")
    ]
    placed_at: Annotated[Time, Field(description="placedAt is when it was placed.")]
    raised_at: Annotated[
        Time | None, Field(default=None, description="raisedAt is when it was last raised with the run's budget.")
    ]


class AllocationUse(ApiModel):
    """The shared allocation, in H100-hours."""

    granted: Annotated[Amount, Field(description="granted by spec.allocation, in H100-hours.")]
    held: Annotated[Amount, Field(description="held: the sum of the open shares, in H100-hours.")]
    spent: Annotated[Amount, Field(description="spent: the sum of what was charged, in H100-hours.")]
    balance: Annotated[
        Amount, Field(description="balance is granted less held less spent: what is free, in H100-hours.")
    ]


class WorkspaceStatus(ApiModel):
    """The workspace's book; held and spent together are never above what was paid in or granted."""

    observed_generation: Annotated[
        int | None,
        Field(default=None, description="observedGeneration is the generation that was looked at; -1 until then."),
    ]
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=16,
            description="conditions: Ready when holds can be placed; Overdrawn when credit was lowered below commitments.",
            json_schema_extra=mapped_list("type"),
        ),
    ] = Field(default_factory=list)
    balance: Annotated[
        Amount | None, Field(default=None, description="balance is credit less held less spent: what is free, in USD.")
    ]
    held: Annotated[Amount | None, Field(default=None, description="held: the sum of the open holds, in USD.")]
    spent: Annotated[Amount | None, Field(default=None, description="spent: the sum of what was charged, in USD.")]
    allocation: Annotated[
        AllocationUse | None, Field(default=None, description="allocation as it is used, where there is one.")
    ]
    holds: Annotated[
        dict[str, WorkspaceHold],
        Field(
            max_length=1000,
            description="holds that are open, by the uid of their run; at most 1000.",
            json_schema_extra={"x-kubernetes-map-type": "atomic"},
        ),
    ] = Field(default_factory=dict)
    settled: Annotated[
        list[LedgerEntry],
        Field(max_length=200, description="settled entries that are in no LedgerPage yet; at most 200."),
    ] = Field(default_factory=list)
    entries: Annotated[
        int | None, Field(default=None, description="entries of the book: the sequence of the last one.")
    ]
    pages: Annotated[
        int | None, Field(default=None, description="pages of the book: the number of the last LedgerPage.")
    ]
    page_digest: Annotated[
        ShortText | None, Field(default=None, description="pageDigest of the last LedgerPage; the next one names it.")
    ]
    waiting: Annotated[
        Text | None, Field(default=None, description="waiting says in one line what keeps runs from being held.")
    ]


class Workspace(ApiModel):
    """Workspace is a namespace's wallet, shared allocation, plan, limits and defaults; it is named workspace."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            rule(
                f"self.metadata.name == '{WORKSPACE}'",
                f"'metadata.name: found ' + self.metadata.name + ', and a namespace has one Workspace; name it {WORKSPACE}'",
            )
        )
        | {
            "x-halo-crd": {
                "plural": "workspaces",
                "shortNames": [],
                "scope": "Namespaced",
                "columns": [
                    ["Plan", "string", ".spec.plan", 0],
                    ["Balance", "string", ".status.balance", 0],
                    ["Held", "string", ".status.held", 0],
                    ["Spent", "string", ".status.spent", 0],
                    ["H100-Free", "string", ".status.allocation.balance", 0],
                    ["Age", "date", ".metadata.creationTimestamp", 0],
                    ["Credit", "number", ".spec.wallet.creditUsd", 1],
                    ["Granted", "number", ".spec.allocation.h100Hours", 1],
                    ["H100-Held", "string", ".status.allocation.held", 1],
                    ["H100-Spent", "string", ".status.allocation.spent", 1],
                    ["Fine-Tuning", "boolean", ".spec.features.fineTuning", 1],
                    ["Waiting", "string", ".status.waiting", 1],
                ],
            }
        }
    )

    spec: Annotated[WorkspaceSpec, Field(description="spec is what the platform team grants.")]
    status: Annotated[WorkspaceStatus | None, Field(default=None, description="status is the workspace's book.")]
