"""BaseModel: an entry of the cluster's catalog of models that can be trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from halo_api.base import ApiModel, WeightsUri, cel, rule

RecipeName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9_]+$")]


class ChatTemplate(ApiModel):
    """What the base's chat template can do."""

    thinking: Annotated[
        bool, Field(description="thinking says that answers can carry a reasoning part, which mode reasoning needs.")
    ] = False
    preserve: Annotated[
        bool, Field(description="preserve says that the reasoning of earlier turns stays in the prompt of later ones.")
    ] = False


def size(what: str, most: int, example: int) -> Any:
    """Build a field of a model's shape."""
    return Field(ge=1, le=most, description=what, examples=[example])


class Shape(ApiModel):
    """The base's sizes, of which an estimate is computed; unset, they are guessed from parametersB."""

    layers: Annotated[int, size("layers is the number of transformer blocks.", 1000, 36)]
    heads: Annotated[int, size("heads is the number of attention heads of a layer.", 1024, 32)]
    kv_heads: Annotated[int, size("kvHeads is the number of key-value heads of a layer.", 1024, 8)]
    head_dim: Annotated[int, size("headDim is the size of a head.", 4096, 128)]
    hidden: Annotated[int, size("hidden is the size of the residual stream.", 1000000, 4096)]
    vocabulary: Annotated[int, size("vocabulary is the number of tokens.", 10000000, 151936)]


class BaseModelSpec(ApiModel):
    """A base model: where its weights lie, which revision, and what it can train."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            rule(
                "!has(self.quantization) || self.offers.all(o, o == 'lora_trl')",
                # Words alone: the API server bounds what a message may cost by the longest that its parts could be.
                "'found nf4 on a base that offers more than lora_trl, whose rollouts are served in dtype; leave it out, or offer lora_trl alone'",
                ".quantization",
            )
        )
    )

    source: Annotated[
        WeightsUri,
        Field(
            description="source is where the weights and tokenizer lie: pvc://CLAIM/PATH, a claim of the run's namespace; hostPath:///PATH, s3://BUCKET/PATH, oci://HOST/NAME and hf://OWNER/NAME can be catalogued, not trained yet.",
            examples=["pvc://halo-models/qwen3-8b"],
        ),
    ]
    revision: Annotated[
        str,
        Field(
            min_length=7,
            max_length=128,
            pattern=r"^[A-Za-z0-9][-A-Za-z0-9._:]*$",
            description="revision pins the exact weights: a commit or a digest. Adapters record it.",
            examples=["b968826d9c46dd6066d109eabc6255188de91218"],
        ),
    ]
    parameters_b: Annotated[
        float,
        Field(gt=0, le=10000, description="parametersB is the number of parameters, in billions.", examples=[8.2]),
    ]
    active_parameters_b: Annotated[
        float | None,
        Field(
            default=None,
            gt=0,
            le=10000,
            description="activeParametersB is the number used per token, in billions, of a mixture of experts; unset: parametersB.",
            examples=[3],
        ),
    ]
    moe: Annotated[bool, Field(description="moe is true for a mixture of experts.")] = False
    attention: Annotated[
        Literal["full", "hybrid"],
        Field(description="attention is full, or hybrid where some layers keep a recurrent state."),
    ] = "full"
    context_length: Annotated[
        int,
        Field(
            ge=128,
            le=16777216,
            description="contextLength is the longest row the base can see, in tokens.",
            examples=[40960],
        ),
    ]
    dtype: Annotated[
        Literal["bf16", "fp32"],
        Field(
            description="dtype is the precision the frozen base computes in; the adapter itself is always trained in fp32."
        ),
    ] = "bf16"
    quantization: Annotated[
        Literal["nf4"] | None,
        Field(
            default=None,
            description="quantization keeps the frozen base in 4 bits while a LoRA trains on it (QLoRA): nf4; unset: in dtype. The adapter serves on the base as it is. For offers lora_trl alone.",
        ),
    ]
    gpus: Annotated[
        int,
        Field(
            ge=1,
            le=8,
            description="gpus is how many GPUs one rollout server of this base needs (tensor parallel).",
            examples=[2],
        ),
    ] = 1
    offers: Annotated[
        list[Literal["lora_trl", "halo_rlvr", "halo_rft", "grpo"]],
        Field(
            min_length=1,
            max_length=4,
            description="offers lists what the base can train: lora_trl, halo_rlvr, halo_rft of TrainingJobs, and grpo, of GrpoRuns.",
            examples=[["lora_trl", "halo_rlvr"]],
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ]
    methods: Annotated[
        list[Literal["sft", "dpo"]],
        Field(
            min_length=1,
            max_length=2,
            description="methods that lora_trl trains on this base; unset: sft and dpo.",
            examples=[["sft"]],
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ] = ["sft", "dpo"]
    recipes: Annotated[
        list[RecipeName] | None,
        Field(
            default=None,
            min_length=1,
            max_length=64,
            description="recipes are the only ones that train this base, by halo_rlvr and halo_rft; unset: every one whose own needs it meets.",
            examples=[["sql_v4_dapo_r3_122b"]],
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ]
    chat_template: Annotated[
        ChatTemplate, Field(description="chatTemplate says what the base's chat template can do.")
    ] = Field(default_factory=ChatTemplate)
    shape: Annotated[
        Shape | None, Field(default=None, description="shape is the base's sizes; unset: guessed from parametersB.")
    ]
    default_trainer: Annotated[
        Literal["Halo", "TRL"], Field(description="defaultTrainer trains a job that names no spec.lora.trainer.")
    ] = "Halo"
    fine_tunable: Annotated[bool, Field(description="fineTunable false keeps the entry but refuses new runs.")] = True


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
                    ["GPUs", "integer", ".spec.gpus", 0],
                    ["Age", "date", ".metadata.creationTimestamp", 0],
                    ["Source", "string", ".spec.source", 1],
                    ["Revision", "string", ".spec.revision", 1],
                ],
            }
        }
    )

    spec: Annotated[BaseModelSpec, Field(description="spec is what the base is and can.")]
