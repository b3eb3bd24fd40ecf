"""GpuClass: a GPU type of the cluster, how pods reach its nodes, and what it is worth."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from halo_api.amounts import USD_DECIMALS, exactly
from halo_api.base import ApiModel, ShortText, cel, mapped_list, rule

# In the schema alone, as what a pod takes: a class that was stored before is still read.
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
EXTENDED_RESOURCE = (
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)


class Toleration(ApiModel):
    """A taint that the pods of the class tolerate (core/v1 Toleration)."""

    key: Annotated[
        ShortText | None,
        Field(
            default=None, description="key is the taint's key; unset tolerates every key.", examples=["nvidia.com/gpu"]
        ),
    ]
    operator: Annotated[Literal["Exists", "Equal"], Field(description="operator is Exists or Equal.")] = "Equal"
    value: Annotated[
        ShortText | None, Field(default=None, description="value is the taint's value.", examples=["present"])
    ]
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None,
        Field(default=None, description="effect is the taint's effect; unset tolerates every effect."),
    ]


class Resources(ApiModel):
    """What a pod asks of its node beside GPUs, as Kubernetes quantities."""

    cpu: Annotated[
        str,
        Field(
            max_length=16,
            pattern=r"^[0-9]+([.][0-9]+)?m?$",
            description="cpu is the CPU request, in cores or thousandths (m).",
            examples=["12"],
        ),
    ] = "4"
    memory: Annotated[
        str,
        Field(
            max_length=16,
            pattern=r"^[0-9]+([.][0-9]+)?(Ki|Mi|Gi|Ti)?$",
            description="memory is the memory request and limit.",
            examples=["128Gi"],
        ),
    ] = "64Gi"


class Price(ApiModel):
    """What an hour of one GPU costs in a region."""

    region: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            description="region that the price holds in.",
            examples=["eu-west-1"],
        ),
    ]
    usd_per_hour: Annotated[
        float,
        Field(
            gt=0,
            le=10000,
            description="usdPerHour is the price of one GPU for an hour, in USD with at most 6 decimals, before the markup.",
            examples=[2.5],
            # In the schema alone: a class that was stored before this rule is still read, its rate rounded up.
            json_schema_extra=exactly(USD_DECIMALS, 1e4),
        ),
    ]
    markup: Annotated[
        float, Field(ge=1, le=100, description="markup that the price is multiplied by.", examples=[1.2])
    ] = 1.0
    active: Annotated[bool, Field(description="active false keeps the price and lets no new run use it.")] = True


class GpuClassSpec(ApiModel):
    """A GPU type: how pods reach its nodes, and what it is worth."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            rule(
                "!self.byo || !has(self.prices) || self.prices.size() == 0",
                "'must be empty on a class of your own compute (byo: true), whose hours are not billed, found %d; remove them or set byo: false'.format([self.prices.size()])",
                ".prices",
            )
        )
    )

    node_selector: Annotated[
        dict[str, Annotated[str, Field(max_length=63, json_schema_extra={"pattern": LABEL_VALUE})]],
        Field(
            max_length=16,
            description="nodeSelector picks the nodes that have this GPU.",
            json_schema_extra=cel(
                rule(
                    "self.all(key, !format.qualifiedName().validate(key).hasValue())",
                    "'has a key that no label has, found %s; write labels as nvidia.com/gpu.product'.format([self.filter(key, format.qualifiedName().validate(key).hasValue())[0]])",
                )
            ),
        ),
    ] = Field(default_factory=dict)
    tolerations: Annotated[
        list[Toleration],
        Field(
            max_length=16,
            description="tolerations are the taints of those nodes.",
            json_schema_extra=cel(
                rule(
                    "self.all(t, t.operator == 'Equal' || !has(t.value) || t.value == '')",
                    "'has a value with operator Exists, which asks for none, found %s; remove it'.format([self.filter(t, t.operator == 'Exists' && has(t.value) && t.value != '')[0].value])",
                ),
                rule(
                    "self.all(t, t.operator == 'Exists' || (has(t.key) && t.key != ''))",
                    "'has operator Equal without a key, found none; set key, or operator: Exists, which tolerates every key'",
                ),
            ),
        ),
    ] = Field(default_factory=list)
    resource_name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=253,
            description="resourceName is the extended resource that counts the GPUs.",
            examples=["nvidia.com/gpu"],
            json_schema_extra={"pattern": EXTENDED_RESOURCE},
        ),
    ] = "nvidia.com/gpu"
    memory_gi_b: Annotated[
        int,
        Field(
            alias="memoryGiB", ge=1, le=4096, description="memoryGiB is the memory of one GPU, in GiB.", examples=[80]
        ),
    ]
    per_node: Annotated[
        int, Field(ge=1, le=128, description="perNode is how many GPUs one node has.", examples=[8])
    ] = 8
    h100_equivalent: Annotated[
        float,
        Field(
            gt=0,
            le=1000,
            description="h100Equivalent says how many H100s one of these is worth, at least 0.001: its hours count that much.",
            examples=[1.4],
            # No minimum: the API server compares whole numbers with a truncated one.
            json_schema_extra=cel(
                rule(
                    "self <= 0.0 || self >= 0.001",
                    "'found %s, less than 0.001; hours of it would count as nothing'.format([string(self)])",
                )
            ),
        ),
    ] = 1.0
    peak_tflops: Annotated[
        float | None,
        Field(
            default=None,
            gt=0,
            le=1000000,
            description="peakTflops is the dense bf16 peak of one GPU, in TFLOP/s, of which an estimate is computed; unset: h100Equivalent times an H100's.",
            examples=[989],
        ),
    ]
    bandwidth_t_bs: Annotated[
        float | None,
        Field(
            alias="bandwidthTBs",
            default=None,
            gt=0,
            le=10000,
            description="bandwidthTBs is the memory bandwidth of one GPU, in TB/s; unset: h100Equivalent times an H100's.",
            examples=[3.35],
        ),
    ]
    prices: Annotated[
        list[Price],
        Field(
            max_length=64,
            description="prices of an hour, one a region; none: nothing is quoted in USD.",
            json_schema_extra=mapped_list("region"),
        ),
    ] = Field(default_factory=list)
    byo: Annotated[
        bool, Field(description="byo marks a customer's own compute: GPU time is metered and capped, never billed.")
    ] = False
    topology_key: Annotated[
        str | None,
        Field(
            default=None,
            min_length=1,
            max_length=316,
            description="topologyKey is the node label whose value the nodes of one fast fabric share, such as an NVLink domain; unset: the node itself.",
            examples=["nvidia.com/gpu.clique"],
        ),
    ]
    per_gpu: Annotated[
        Resources, Field(description="perGpu is the CPU and memory that come with each GPU of a pod.")
    ] = Field(default_factory=Resources)


class GpuClass(ApiModel):
    """GpuClass is a GPU type of the cluster."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-halo-crd": {
                "plural": "gpuclasses",
                "shortNames": ["gc"],
                "scope": "Cluster",
                "columns": [
                    ["Memory", "integer", ".spec.memoryGiB", 0],
                    ["PerNode", "integer", ".spec.perNode", 0],
                    ["H100", "number", ".spec.h100Equivalent", 0],
                    ["USD/H", "string", ".spec.prices[*].usdPerHour", 0],
                    ["Byo", "boolean", ".spec.byo", 1],
                    ["Age", "date", ".metadata.creationTimestamp", 0],
                ],
            }
        }
    )

    spec: Annotated[GpuClassSpec, Field(description="spec is how pods reach the GPUs and what they are worth.")]
