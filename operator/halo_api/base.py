"""The pydantic base class and the bounded scalar types that every resource is built from."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class ApiModel(BaseModel):
    """A frozen value with camelCase JSON keys; the API server prunes unknown keys, so an older operator skips newer ones."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object as Kubernetes stores it: camelCase, enums as strings, absent members left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def cel(*rules: dict[str, Any]) -> dict[str, Any]:
    """Attach CEL validation rules (`x-kubernetes-validations`) to a model or a field."""
    return {"x-kubernetes-validations": list(rules)}


def rule(expression: str, message: str, field: str | None = None) -> dict[str, Any]:
    """Build one CEL rule; `message` is itself a CEL string expression, so that it can name what was found.

    `field` is the JSON path that the API server names in its answer.
    """
    return {"rule": expression, "messageExpression": message} | ({"fieldPath": field} if field else {})


def at_creation(expression: str, message: str, field: str | None = None) -> dict[str, Any]:
    """Build a rule over immutable fields: it holds a new object, and never a stored one that an older rule allowed."""
    return rule(f"oldSelf.hasValue() || ({expression})", message, field) | {"optionalOldSelf": True}


IMMUTABLE = rule(
    "self == oldSelf",
    "'is immutable: a run is a record of what was asked; create a new object with another name instead'",
)

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
# As the API server takes names: a reference to what no object can be called would be waited for without end.
DNS_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

Name = Annotated[str, Field(min_length=1, max_length=253, pattern=DNS_NAME)]
ShortText = Annotated[str, Field(max_length=256)]
Text = Annotated[str, Field(max_length=32768)]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Sha256 = Annotated[str, Field(max_length=71, pattern=r"^sha256:[0-9a-f]{64}$")]
VolumeUri = Annotated[
    str,
    Field(
        min_length=8,
        max_length=512,
        pattern=r"^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[A-Za-z0-9_][-A-Za-z0-9._]*)+$",
        description="A path on a PersistentVolumeClaim of the run's namespace, written pvc://CLAIM/PATH.",
    ),
]

WeightsUri = Annotated[
    str,
    Field(
        min_length=8,
        max_length=512,
        pattern=r"^(pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[A-Za-z0-9_][-A-Za-z0-9._]*)+"
        r"|hostPath:///[A-Za-z0-9_][-A-Za-z0-9._]*(/[A-Za-z0-9_][-A-Za-z0-9._]*)*"
        r"|(s3|oci|hf)://[A-Za-z0-9][-A-Za-z0-9._]*(:[0-9]+)?(/[A-Za-z0-9_][-A-Za-z0-9._:@]*)+)$",
        description="Where a base model's weights lie: pvc://CLAIM/PATH, hostPath:///PATH, s3://BUCKET/PATH, oci://HOST/NAME or hf://OWNER/NAME.",
    ),
]


def mapped_list(key: str) -> dict[str, Any]:
    """Mark a list as a map keyed by `key`, so that server-side apply merges it by that key."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
