"""Adapter: one published adapter version, made by the operator from a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from halo_api.base import ApiModel, Name, Sha256, ShortText, Text, Time, VolumeUri, at_creation, cel, mapped_list, rule
from halo_api.conditions import Condition
from halo_api.run_status import ReceiptRef

# As in a uri: no path leads out of the adapter's folder, wherever that is copied to.
FILE_PATH = r"^[A-Za-z0-9_][-A-Za-z0-9._]*(/[A-Za-z0-9_][-A-Za-z0-9._]*)*$"
NO_WAY_OUT = at_creation(
    f"self.files.all(f, f.path.matches('{FILE_PATH}'))",
    # Naming the path would cost more than the API server allows: of what a filter returns it knows no length.
    "'found a path that leads elsewhere; a path has letters, digits, ., _ and - between single slashes, '"
    " + 'and no part begins with . or -'",
    ".files",
)
# A PEFT folder: its configuration, and its weights.
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


class AdapterFile(ApiModel):
    """One file of the adapter."""

    path: Annotated[
        str,
        Field(max_length=256, description="path below the adapter's folder.", examples=["adapter_model.safetensors"]),
    ]
    sha256: Annotated[Sha256, Field(description="sha256 of its bytes.", examples=["sha256:" + 64 * "0"])]
    size: Annotated[int, Field(description="size in bytes.", examples=[73911112])]


class AdapterBase(ApiModel):
    """The base that the adapter belongs to."""

    name: Annotated[Name, Field(description="name of the BaseModel.", examples=["qwen3-8b"])]
    revision: Annotated[
        ShortText,
        Field(description="revision it was trained on.", examples=["b968826d9c46dd6066d109eabc6255188de91218"]),
    ]


class TrainedBy(ApiModel):
    """The run that made it."""

    kind: Annotated[ShortText, Field(description="kind of the run.", examples=["TrainingJob"])]
    name: Annotated[Name, Field(description="name of the run.", examples=["support-sft"])]
    uid: Annotated[ShortText, Field(description="uid of the run.", examples=["0d4c7d3e-6f0b-4c5e-9a51-0a3b6d1f2e77"])]
    step: Annotated[int, Field(description="step the adapter was taken after.", examples=[200])]


class AdapterParent(ApiModel):
    """The adapter that it continues."""

    name: Annotated[Name, Field(description="name of the Adapter.", examples=["support-v2"])]
    digest: Annotated[Sha256, Field(description="digest that it had.", examples=[f"sha256:{'0' * 64}"])]


class AdapterSpec(ApiModel):
    """An adapter version is a record of bytes: immutable."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            rule("self == oldSelf", "'is immutable: an adapter version is a record of bytes'"), NO_WAY_OUT
        )
    )

    base: Annotated[AdapterBase, Field(description="base that the adapter belongs to.")]
    rank: Annotated[int, Field(ge=1, le=256, description="rank of the LoRA.", examples=[16])]
    alpha: Annotated[float, Field(gt=0, le=4096, description="alpha of the LoRA.", examples=[32])]
    uri: Annotated[
        VolumeUri,
        Field(
            description="uri of the folder: a PEFT directory.", examples=["pvc://halo-artifacts/adapters/support-sft"]
        ),
    ]
    digest: Annotated[
        Sha256,
        Field(
            description="digest is the SHA-256 over the sorted lines 'sha256  path' of its files.",
            examples=["sha256:" + 64 * "0"],
        ),
    ]
    files: Annotated[
        list[AdapterFile],
        Field(min_length=1, max_length=64, description="files of the adapter.", json_schema_extra=mapped_list("path")),
    ]
    trained_by: Annotated[
        TrainedBy | None,
        Field(default=None, description="trainedBy is the run that made it; unset for an imported one."),
    ]
    parent: Annotated[
        AdapterParent | None, Field(default=None, description="parent that it continues; unset: it started anew.")
    ]
    mode: Annotated[
        Literal["final", "reasoning"] | None,
        Field(
            default=None,
            description="mode it is served in: final, thinking off, or reasoning, on; unset: as the base is.",
        ),
    ]
    receipt: Annotated[
        ReceiptRef | None,
        Field(
            default=None,
            description="receipt is the signed record of how it was trained; without one it is never a parent.",
        ),
    ]


class Ancestor(AdapterParent):
    """One adapter in the line that it descends from."""

    receipt: Annotated[
        Sha256 | None, Field(default=None, description="receipt is the digest of its receipt, as its child's says.")
    ]


class Verification(ApiModel):
    """The last time that its files were hashed again and its receipt was checked."""

    started_at: Annotated[Time, Field(description="startedAt is when the pod that hashed them was made.")]
    finished_at: Annotated[Time, Field(description="finishedAt is when it ended.")]
    digest: Annotated[Sha256, Field(description="digest over the files that it found.")]
    key_id: Annotated[
        ShortText | None,
        Field(default=None, description="keyId of the key that signed the receipt, where it is right."),
    ]


class AdapterStatus(ApiModel):
    """What was found when its files were hashed again and its receipt was checked."""

    observed_generation: Annotated[
        int | None,
        Field(default=None, description="observedGeneration is the generation that was looked at; -1 until then."),
    ]
    conditions: Annotated[
        list[Condition],
        Field(max_length=16, description="conditions of the adapter.", json_schema_extra=mapped_list("type")),
    ] = Field(default_factory=list)
    verification: Annotated[
        Verification | None, Field(default=None, description="verification is the last one that ended.")
    ]
    lineage: Annotated[
        list[Ancestor],
        Field(max_length=64, description="lineage is what it descends from, its parent first."),
    ] = Field(default_factory=list)
    waiting: Annotated[
        Text | None, Field(default=None, description="waiting says in one line what the verification waits for.")
    ]


class Adapter(ApiModel):
    """Adapter is one published adapter version: base, rank, folder and the digest of its files."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-halo-crd": {
                "plural": "adapters",
                "shortNames": ["ada"],
                "scope": "Namespaced",
                "columns": [
                    ["Base", "string", ".spec.base.name", 0],
                    ["Rank", "integer", ".spec.rank", 0],
                    ["Run", "string", ".spec.trainedBy.name", 0],
                    ["Step", "integer", ".spec.trainedBy.step", 0],
                    ["Verified", "string", '.status.conditions[?(@.type=="Verified")].status', 0],
                    ["Age", "date", ".metadata.creationTimestamp", 0],
                    ["Origin", "string", ".metadata.labels.halo\\.training/origin", 1],
                    ["Mode", "string", ".spec.mode", 1],
                    ["Why", "string", '.status.conditions[?(@.type=="Verified")].reason', 1],
                    ["Waiting", "string", ".status.waiting", 1],
                    ["Parent", "string", ".spec.parent.name", 1],
                    ["URI", "string", ".spec.uri", 1],
                    ["Digest", "string", ".spec.digest", 1],
                ],
            }
        }
    )

    spec: Annotated[AdapterSpec, Field(description="spec is what was published.")]
    status: Annotated[AdapterStatus | None, Field(default=None, description="status of the adapter.")]
