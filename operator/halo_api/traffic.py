"""What inspection counts in logged traffic and in a candidate queue: what a GrpoRun can draw its prompts from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from halo_api.base import ApiModel, Name, ShortText, mapped_list


class TagCount(ApiModel):
    """How many successful requests carry a tag."""

    tag: Annotated[ShortText, Field(description="tag of the requests.")]
    prompts: Annotated[int, Field(ge=0, description="prompts with that tag, each counted once.")]


class ServedBy(ApiModel):
    """An adapter that answered some of the traffic."""

    adapter: Annotated[Name, Field(description="adapter of this namespace.")]
    prompts: Annotated[int, Field(ge=0, description="prompts that it answered.")]


class CandidateCount(ApiModel):
    """How many prompts the served policy gave up on for one criterion."""

    criterion: Annotated[Name, Field(description="criterion that they were given up for.")]
    prompts: Annotated[int, Field(ge=0, description="prompts, each counted once.")]


class TrafficCounts(ApiModel):
    """What a data set of kind traffic, or candidates, holds."""

    successful: Annotated[int, Field(ge=0, description="successful prompts of kind traffic, each counted once.")] = 0
    tags: Annotated[
        list[TagCount],
        Field(max_length=1000, description="tags of the prompts, at most 1000.", json_schema_extra=mapped_list("tag")),
    ] = Field(default_factory=list)
    served_by: Annotated[
        list[ServedBy],
        Field(
            max_length=100,
            description="servedBy lists the adapters that answered prompts, at most 100.",
            json_schema_extra=mapped_list("adapter"),
        ),
    ] = Field(default_factory=list)
    candidates: Annotated[
        list[CandidateCount],
        Field(
            max_length=100,
            description="candidates of kind candidates, by criterion, at most 100.",
            json_schema_extra=mapped_list("criterion"),
        ),
    ] = Field(default_factory=list)
