"""Where the metrics of a namespace's runs also go: Weights & Biases."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from halo_api.base import ApiModel, Name

# Parts of an address: W&B takes nothing else in a project's or an entity's name.
WandbName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.-]+$")]
WebAddress = Annotated[str, Field(min_length=8, max_length=512, pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$")]
API_KEY_VARIABLE = "WANDB_API_KEY"


class Wandb(ApiModel):
    """A project of Weights & Biases, and the Secret that opens it."""

    project: Annotated[
        WandbName,
        Field(description="project that the runs are listed in; W&B makes it when missing.", examples=["halo"]),
    ]
    entity: Annotated[
        WandbName | None,
        Field(
            default=None,
            description="entity: the team or user that has the project; unset: the key's own default.",
            examples=["team-a"],
        ),
    ]
    base_url: Annotated[
        WebAddress | None,
        Field(
            default=None,
            description="baseUrl of a W&B server of your own; unset: W&B's cloud.",
            examples=["https://wandb.example.com"],
        ),
    ]
    secret_name: Annotated[
        Name,
        Field(
            description="secretName is the Secret of this namespace that has the API key. The operator never reads it; without "
            "it runs train all the same, and their log says that nothing goes to W&B.",
            examples=["wandb"],
        ),
    ]
    secret_key: Annotated[
        str,
        Field(
            min_length=1,
            max_length=253,
            pattern=r"^[-._a-zA-Z0-9]+$",
            description="secretKey of the API key in it; default WANDB_API_KEY.",
            examples=["WANDB_API_KEY"],
        ),
    ] = API_KEY_VARIABLE


class Tracking(ApiModel):
    """Where metrics go beside the run's own volume."""

    wandb: Annotated[Wandb | None, Field(default=None, description="wandb: a project of Weights & Biases.")]
