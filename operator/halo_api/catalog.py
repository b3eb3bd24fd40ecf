"""The cluster's catalog: base models that can be trained, and the GPU types they train on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from halo_api.base import ApiModel, ShortText, VolumeUri


class BaseModelSpec(ApiModel):
    """A base model: where its weights lie, which revision, and what it can train."""

    source: Annotated[
        VolumeUri,
        Field(
            description="source is where the weights and tokenizer lie: pvc://CLAIM/PATH, a claim of the run's namespace."
        ),
    ]
    revision: Annotated[
        str,
        Field(
            min_length=7,
            max_length=128,
            pattern=r"^[A-Za-z0-9][-A-Za-z0-9._:]*$",
            description="revision pins the exact weights: a commit or a digest. Adapters record it.",
        ),
    ]
    parameters_b: Annotated[
        float, Field(gt=0, le=10000, description="parametersB is the number of parameters, in billions.")
    ]
    active_parameters_b: Annotated[
        float | None,
        Field(
            default=None,
            gt=0,
            le=10000,
            description="activeParametersB is the number used per token, in billions, of a mixture of experts.",
        ),
    ]
    moe: Annotated[bool, Field(description="moe is true for a mixture of experts.")] = False
    attention: Annotated[
        Literal["full", "hybrid"],
        Field(description="attention is full, or hybrid where some layers keep a recurrent state."),
    ] = "full"
    context_length: Annotated[
        int, Field(ge=128, le=16777216, description="contextLength is the longest row the base can see, in tokens.")
    ]
    dtype: Annotated[
        Literal["bf16", "fp32"],
        Field(
            description="dtype is the precision the frozen base computes in; the adapter itself is always trained in fp32."
        ),
    ] = "bf16"
    gpus: Annotated[
        int,
        Field(ge=1, le=8, description="gpus is how many GPUs one rollout server of this base needs (tensor parallel)."),
    ] = 1
    offers: Annotated[
        list[Literal["lora_trl", "halo_rlvr", "halo_rft", "grpo"]],
        Field(
            min_length=1,
            max_length=4,
            description="offers lists what the base can train.",
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ]
    default_trainer: Annotated[
        Literal["Halo", "TRL"], Field(description="defaultTrainer trains a job that names no spec.lora.trainer.")
    ] = "Halo"
    fine_tunable: Annotated[bool, Field(description="fineTunable false keeps the entry but refuses new runs.")] = True


class Toleration(ApiModel):
    """A taint that the pods of the class tolerate (core/v1 Toleration)."""

    key: Annotated[
        ShortText | None, Field(default=None, description="key is the taint's key; unset tolerates every key.")
    ]
    operator: Annotated[Literal["Exists", "Equal"], Field(description="operator is Exists or Equal.")] = "Equal"
    value: Annotated[ShortText | None, Field(default=None, description="value is the taint's value.")]
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None,
        Field(default=None, description="effect is the taint's effect; unset tolerates every effect."),
    ]


class Resources(ApiModel):
    """What a pod asks of its node beside GPUs, as Kubernetes quantities."""

    cpu: Annotated[
        str,
        Field(
            max_length=16, pattern=r"^[0-9]+([.][0-9]+)?m?$", description="cpu is the CPU request, such as 4 or 500m."
        ),
    ] = "4"
    memory: Annotated[
        str,
        Field(
            max_length=16,
            pattern=r"^[0-9]+([.][0-9]+)?(Ki|Mi|Gi|Ti)?$",
            description="memory is the memory request and limit, such as 64Gi.",
        ),
    ] = "64Gi"


class GpuClassSpec(ApiModel):
    """A GPU type: how pods reach its nodes, and what it is worth."""

    node_selector: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]],
        Field(max_length=16, description="nodeSelector picks the nodes that have this GPU."),
    ] = Field(default_factory=dict)
    tolerations: Annotated[
        list[Toleration], Field(max_length=16, description="tolerations are the taints of those nodes.")
    ] = Field(default_factory=list)
    resource_name: Annotated[
        str, Field(max_length=253, description="resourceName is the extended resource that counts the GPUs.")
    ] = "nvidia.com/gpu"
    memory_gi_b: Annotated[
        int, Field(alias="memoryGiB", ge=1, le=4096, description="memoryGiB is the memory of one GPU.")
    ]
    per_node: Annotated[int, Field(ge=1, le=128, description="perNode is how many GPUs one node has.")] = 8
    h100_equivalent: Annotated[
        float, Field(gt=0, le=1000, description="h100Equivalent says how many H100s one of these is worth.")
    ] = 1.0
    per_gpu: Annotated[
        Resources, Field(description="perGpu is the CPU and memory that come with each GPU of a pod.")
    ] = Field(default_factory=Resources)


class BaseModel(ApiModel):
    """BaseModel is an entry of the cluster's catalog of models that can be trained."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-halo-crd": {
                "plural": "basemodels",
                "shortNames": ["bm"],
                "scope": "Cluster",
                "columns": [
                    ["Parameters", "number", ".spec.parametersB", 0],
                    ["Context", "integer", ".spec.contextLength", 0],
                    ["Offers", "string", ".spec.offers", 0],
                    ["Age", "date", ".metadata.creationTimestamp", 0],
                    ["Source", "string", ".spec.source", 1],
                    ["Revision", "string", ".spec.revision", 1],
                ],
            }
        }
    )

    spec: Annotated[BaseModelSpec, Field(description="spec is what the base is and can.")]


class GpuClass(ApiModel):
    """GpuClass is a GPU type of the cluster."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-halo-crd": {
                "plural": "gpuclasses",
                "shortNames": [],
                "scope": "Cluster",
                "columns": [
                    ["Memory", "integer", ".spec.memoryGiB", 0],
                    ["PerNode", "integer", ".spec.perNode", 0],
                    ["H100", "number", ".spec.h100Equivalent", 0],
                    ["Age", "date", ".metadata.creationTimestamp", 0],
                ],
            }
        }
    )

    spec: Annotated[GpuClassSpec, Field(description="spec is how pods reach the GPUs and what they are worth.")]
