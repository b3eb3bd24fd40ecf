"""The estimate that a run is quoted by: frozen into its status at admission, phase by phase, so that it can be held to what was measured."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from halo_api.amounts import Amount
from halo_api.base import ApiModel, ShortText, mapped_list

# The phases of every kind of run, in the order in which the first of each comes.
PhaseName = Literal[
    "start",
    "load",
    "prefill",
    "decode",
    "environment",
    "reward",
    "score",
    "train",
    "sync",
    "save",
    "evaluation",
    "publish",
]


class Band(ApiModel):
    """An amount that is not known yet: probably between low and high, around centre."""

    low: Annotated[Amount, Field(description="low end, such as 1.2.")]
    centre: Annotated[Amount, Field(description="centre, such as 2.4.")]
    high: Annotated[Amount, Field(description="high end, such as 4.8; what is held where no budget is set.")]


class EstimatedPhase(ApiModel):
    """One phase of the run at the estimate's centre."""

    name: Annotated[
        PhaseName,
        Field(
            description="name: start, load (weights), prefill, decode, environment, reward, score (log-probabilities without a gradient), train, sync, save (checkpoints), evaluation or publish."
        ),
    ]
    seconds: Annotated[Amount, Field(description="seconds on the clock, such as 840; all GPUs are billed for each.")]
    h100_hours: Annotated[
        Amount, Field(alias="h100Hours", description="h100Hours of all GPUs in it, before the budget caps them.")
    ]


class Estimate(ApiModel):
    """What the run will probably take, as it was quoted; quoted and reserved at no more than the budget."""

    h100_hours: Annotated[
        Band,
        Field(
            alias="h100Hours",
            description="h100Hours of the whole run: GPUs x hours x the class's h100Equivalent; at most the budget.",
        ),
    ]
    usd: Annotated[
        Band | None,
        Field(
            default=None,
            description="usd of the whole run at usdPerGpuHour, a judge's spend included; absent where the GPU has no price.",
        ),
    ]
    usd_per_gpu_hour: Annotated[
        Amount | None,
        Field(default=None, description="usdPerGpuHour is the price of one GPU hour, markup included, in USD."),
    ]
    start: Annotated[Amount, Field(description="start: H100-hours until training begins; such as 0.083.")]
    to_first_checkpoint: Annotated[
        Amount, Field(description="toFirstCheckpoint: H100-hours from there to the first checkpoint; such as 0.41.")
    ]
    publish: Annotated[Amount, Field(description="publish: H100-hours to write the adapter; such as 0.009.")]
    first_checkpoint_seconds: Annotated[
        int, Field(description="firstCheckpointSeconds on the clock until the first checkpoint, start included.")
    ]
    seconds: Annotated[
        int, Field(description="seconds on the clock that the whole run takes, before the budget ends it.")
    ]
    capped: Annotated[
        bool,
        Field(
            description="capped is true where the budget is below the estimate's high end, so that it was quoted less."
        ),
    ] = False
    basis: Annotated[
        Literal["roofline", "measured"],
        Field(description="basis: roofline, from arithmetic and half to twice as much; or measured on runs like it."),
    ]
    rates: Annotated[
        ShortText, Field(description="rates is the version of the table of constants, such as roofline-1.")
    ]
    phases: Annotated[
        list[EstimatedPhase],
        Field(
            max_length=16,
            description="phases at the estimate's centre; what was measured is held to them one by one.",
            json_schema_extra=mapped_list("name"),
        ),
    ] = Field(default_factory=list)
    overlap_seconds: Annotated[
        Amount | None,
        Field(
            default=None,
            description="overlapSeconds that rollouts and training go on at the same time (async recipes): phases add up to seconds and these.",
        ),
    ]
    inputs: Annotated[
        dict[str, Annotated[str, Field(max_length=64)]],
        Field(
            max_length=64,
            description="inputs are the numbers that it was made from, by name: rows, tokens, GPUs, parameters and so on.",
        ),
    ] = Field(default_factory=dict)
