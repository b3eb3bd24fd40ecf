"""LedgerPage: settled entries of a Workspace, written once by the operator, so that anybody can add every number up again."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from halo_api.amounts import Amount
from halo_api.base import ApiModel, Name, Sha256, ShortText, Time, cel, rule


class RunRef(ApiModel):
    """A run, by the identity that a recreated one of the same name does not have."""

    kind: Annotated[Literal["TrainingJob", "GrpoRun"], Field(description="kind of the run.")]
    name: Annotated[Name, Field(description="name of the run.", examples=["support-sft"])]
    uid: Annotated[ShortText, Field(description="uid of the run.", examples=["0d4c7d3e-6f0b-4c5e-9a51-0a3b6d1f2e77"])]


class Rate(ApiModel):
    """What an hour of a GPU costs, with what it was made of; frozen when the hold is placed."""

    gpu_class: Annotated[Name, Field(description="gpuClass that is priced.", examples=["h100"])]
    region: Annotated[
        ShortText | None,
        Field(default=None, description="region of the price, where prices differ.", examples=["eu-west"]),
    ]
    usd_per_hour: Annotated[
        Amount | None,
        Field(
            default=None, description="usdPerHour of one GPU before markup, in USD; unset: no price.", examples=["2.5"]
        ),
    ]
    markup: Annotated[
        Amount | None, Field(default=None, description="markup that the price is multiplied by.", examples=["1.2"])
    ]
    h100_equivalent: Annotated[
        Amount, Field(description="h100Equivalent: how many H100-hours one hour of the GPU counts.", examples=["1"])
    ]


class LedgerEntry(ApiModel):
    """One hold from its placing to its settlement."""

    sequence: Annotated[
        int, Field(ge=1, description="sequence counts the workspace's entries without a gap.", examples=[17])
    ]
    run: Annotated[RunRef, Field(description="run that the hold was for.")]
    unit: Annotated[
        Literal["USD", "H100Hours"],
        Field(description="unit of the amounts: USD of the wallet, or H100Hours of the shared allocation."),
    ]
    rate: Annotated[Rate, Field(description="rate that was frozen with the hold.")]
    quoted: Annotated[
        Amount | None, Field(default=None, description="quoted at admission: the estimate's centre.", examples=["9.4"])
    ]
    held: Annotated[Amount, Field(description="held at the end, raises included.", examples=["12.5"])]
    used: Annotated[Amount, Field(description="used as metered; it may be above what was held.", examples=["8.75"])]
    charged: Annotated[Amount, Field(description="charged: the lesser of held and used.", examples=["8.75"])]
    overrun: Annotated[
        Amount, Field(description="overrun is used less charged: reported, never charged.", examples=["0"])
    ]
    judge_usd: Annotated[
        Amount | None,
        Field(default=None, description="judgeUsd is the part of used that judges cost, in USD.", examples=["1.25"]),
    ]
    gpu_seconds: Annotated[
        Amount,
        Field(description="gpuSeconds metered: all GPUs of the run, all attempts, in seconds.", examples=["12600.5"]),
    ]
    outcome: Annotated[
        ShortText, Field(description="outcome is the reason that the run ended with.", examples=["Succeeded"])
    ]
    receipt: Annotated[
        Sha256 | None,
        Field(default=None, description="receipt is the digest of the run's receipt.", examples=["sha256:" + 64 * "0"]),
    ]
    placed_at: Annotated[
        Time, Field(description="placedAt is when the hold was placed.", examples=["2026-09-01T10:00:00Z"])
    ]
    settled_at: Annotated[
        Time, Field(description="settledAt is when the hold became the charge.", examples=["2026-09-01T13:30:00Z"])
    ]


class LedgerTotals(ApiModel):
    """The workspace's sums up to and with a page."""

    entries: Annotated[int, Field(ge=0, description="entries up to and with this page.", examples=[200])]
    spent_usd: Annotated[
        Amount, Field(description="spentUsd: the sum of what was charged in USD.", examples=["1234.5"])
    ]
    spent_h100_hours: Annotated[
        Amount, Field(description="spentH100Hours: the sum of what was charged in H100-hours.", examples=["310.25"])
    ]


class LedgerPageSpec(ApiModel):
    """A page of the book: immutable, and chained to the page before."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            rule(
                "self == oldSelf",
                "'is immutable: a settled entry never changes; the operator adds another page instead'",
            ),
            rule(
                "has(self.previous) == (self.page > 1)",
                "'found page %d: every page but the first names the digest of the one before'.format([self.page])",
                ".previous",
            ),
        )
    )

    page: Annotated[int, Field(ge=1, le=1000000000, description="page number without a gap.", examples=[1])]
    workspace_uid: Annotated[
        ShortText,
        Field(
            description="workspaceUid is the uid of the Workspace that wrote the page.",
            examples=["5b1f6f6e-1f2a-4b8e-8f3e-3f1b2c4d5e6f"],
        ),
    ]
    previous: Annotated[
        Sha256 | None,
        Field(
            default=None,
            description="previous is the SHA-256 of the spec of the page before, as canonical JSON; unset on page 1.",
            examples=["sha256:" + 64 * "0"],
        ),
    ]
    entries: Annotated[
        list[LedgerEntry],
        Field(min_length=1, max_length=200, description="entries that were settled, in their sequence."),
    ]
    totals: Annotated[LedgerTotals, Field(description="totals up to and with this page.")]


class LedgerPage(ApiModel):
    """LedgerPage is a page of a workspace's settled entries; the operator writes it once, and nobody changes it."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-halo-crd": {
                "plural": "ledgerpages",
                "shortNames": [],
                "scope": "Namespaced",
                "columns": [
                    ["Page", "integer", ".spec.page", 0],
                    ["Entries", "integer", ".spec.totals.entries", 0],
                    ["Spent$", "string", ".spec.totals.spentUsd", 0],
                    ["Spent-H100-H", "string", ".spec.totals.spentH100Hours", 0],
                    ["Age", "date", ".metadata.creationTimestamp", 0],
                    ["Previous", "string", ".spec.previous", 1],
                ],
            }
        }
    )

    spec: Annotated[LedgerPageSpec, Field(description="spec is the page.")]
