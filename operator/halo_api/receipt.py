"""The receipt: an in-toto statement about an adapter's files, whose predicate says how they came to be.

`python -m halo_api.receipt FILE` writes its JSON schema. Two runs with equal inputs have receipts that differ in `run`, `times`
and `usage` alone; what identifies, dates or meters a run stands there and nowhere else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from halo_api.adapter import AdapterFile
from halo_api.base import ApiModel, Name, Sha256, ShortText, Time, VolumeUri
from halo_api.digests import files_digest, json_digest
from halo_api.estimate import Band
from halo_api.run_status import AttemptRecord, FrozenRecipe, Hold, Topology, Usage

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://halo.training/receipt/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
# Beside the adapter's files, and none of them.
RECEIPT_NAME = "receipt.json"
KEY_NAME = "public.pem"
# On the Adapter: the envelope itself, so that who reads the Adapter has it without its volume.
RECEIPT_ANNOTATION = "halo.training/receipt"
# In the operator's namespace: a public key a file, KEYID.pem, of every key that it has signed with.
KEYS_CONFIG_MAP = "halo-operator-receipt-keys"


class ReceiptRun(ApiModel):
    """Which run it was, and how it went."""

    kind: Annotated[ShortText, Field(description="kind of the run.")]
    namespace: Annotated[Name, Field(description="namespace of the run.")]
    name: Annotated[Name, Field(description="name of the run, and of its Adapter.")]
    uid: Annotated[ShortText, Field(description="uid of the run.")]
    attempt: Annotated[int, Field(description="attempt that published the adapter, counted from 1.")]
    failures: Annotated[int, Field(description="failures of the infrastructure that it was relaunched after.")] = 0
    attempts: Annotated[list[AttemptRecord], Field(description="attempts are the last 10, as they ended.")]


class ReceiptTimes(ApiModel):
    """When it was, by the API server's clock."""

    created: Annotated[Time | None, Field(default=None, description="created is when the run was applied.")]
    started: Annotated[
        Time | None, Field(default=None, description="started is when the first attempt had all its nodes.")
    ]
    finished: Annotated[Time | None, Field(default=None, description="finished is when the last attempt ended.")]


class Quoted(ApiModel):
    """What the run was quoted at admission."""

    h100_hours: Annotated[Band, Field(description="h100Hours of the whole run.")]
    usd: Annotated[Band | None, Field(default=None, description="usd of it; unset without a price.")]
    rates: Annotated[ShortText, Field(description="rates is the version of the table that it was quoted by.")]


class ReceiptUsage(ApiModel):
    """What the run was quoted, held and used; `used.settlement` says what it was charged."""

    quoted: Annotated[Quoted | None, Field(default=None, description="quoted at admission.")]
    held: Annotated[Hold | None, Field(default=None, description="held for it; unset where nothing was.")]
    used: Annotated[Usage | None, Field(default=None, description="used, and charged.")]


class ResolvedRecipe(ApiModel):
    """Every setting that decides what trained, defaults resolved."""

    name: Annotated[ShortText, Field(description="name: sft, dpo or a recipe.")]
    settings: Annotated[dict[str, Any], Field(description="settings as they were frozen at admission.")]
    digest: Annotated[Sha256, Field(description="digest is the SHA-256 of settings as canonical JSON.")]
    file: Annotated[
        FrozenRecipe | None, Field(default=None, description="file of the recipe, with its own digest; unset for lora.")
    ]


class ReceiptBase(ApiModel):
    """The base model that was trained on."""

    name: Annotated[Name, Field(description="name of the BaseModel.")]
    revision: Annotated[ShortText, Field(description="revision of its weights.")]
    source: Annotated[VolumeUri, Field(description="source of its weights.")]
    dtype: Annotated[Literal["bf16", "fp32"], Field(description="dtype of the frozen base.")]
    quantization: Annotated[
        Literal["nf4"] | None,
        Field(default=None, description="quantization it was kept in while it trained; unset: none."),
    ]


class ReceiptParent(ApiModel):
    """The adapter that was continued."""

    name: Annotated[Name, Field(description="name of the Adapter.")]
    digest: Annotated[Sha256, Field(description="digest over its files.")]
    receipt: Annotated[Sha256, Field(description="receipt is the digest of its own receipt, which was verified.")]


class ReceiptDataset(ApiModel):
    """The data that was trained on."""

    name: Annotated[Name, Field(description="name of the Dataset.")]
    sha256: Annotated[Sha256, Field(description="sha256 of the file.")]
    rows: Annotated[int, Field(description="rows in it.")]


class ReceiptEnvironment(ApiModel):
    """An environment that was trained on."""

    use: Annotated[Literal["training", "warmup", "retention"], Field(description="use that was made of it.")]
    name: Annotated[Name, Field(description="name of the Environment.")]
    package: Annotated[ShortText, Field(description="package and name of the environment, such as OpenEnv acme/desk.")]
    revision: Annotated[ShortText, Field(description="revision of it.")]
    image: Annotated[str, Field(max_length=512, description="image that ran.")]


class ReceiptAdapter(ApiModel):
    """What was published."""

    digest: Annotated[Sha256, Field(description="digest is the SHA-256 over the sorted lines 'sha256  path'.")]
    rank: Annotated[int, Field(description="rank of the LoRA.")]
    alpha: Annotated[float, Field(description="alpha of the LoRA.")]
    mode: Annotated[
        Literal["final", "reasoning"] | None,
        Field(default=None, description="mode it is served in; unset: its base's."),
    ]
    files: Annotated[
        list[AdapterFile], Field(min_length=1, description="files, those of the subject, with their sizes.")
    ]


class Steps(ApiModel):
    """How much was trained."""

    asked: Annotated[int, Field(description="asked for.")]
    done: Annotated[int, Field(description="done: the step that the adapter was taken after.")]


class Metrics(ApiModel):
    """What the last step said."""

    loss: Annotated[float | None, Field(default=None, description="loss is the mean loss per trained token.")]
    reward: Annotated[float | None, Field(default=None, description="reward is the mean reward of its episodes.")]


class ReceiptCheckpoint(Metrics):
    """A checkpoint on the way."""

    step: Annotated[int, Field(description="step after which it was written.")]
    digest: Annotated[Sha256, Field(description="digest over its files.")]


class ReceiptOperator(ApiModel):
    """Who signs."""

    version: Annotated[ShortText, Field(description="version of the operator that signed.")]
    accepted: Annotated[ShortText, Field(description="accepted: version of the operator that accepted the run.")]


class Receipt(ApiModel):
    """The predicate: everything that made the adapter what it is."""

    spec: Annotated[dict[str, Any], Field(description="spec of the run, defaults filled in.")]
    spec_digest: Annotated[Sha256, Field(description="specDigest is the SHA-256 of spec as canonical JSON.")]
    recipe: Annotated[ResolvedRecipe, Field(description="recipe as resolved.")]
    base: Annotated[ReceiptBase, Field(description="base that was trained on.")]
    parent: Annotated[ReceiptParent | None, Field(default=None, description="parent; unset: it started anew.")]
    datasets: Annotated[list[ReceiptDataset], Field(description="datasets that were trained on.")]
    environments: Annotated[list[ReceiptEnvironment], Field(description="environments that were trained on.")]
    seed: Annotated[int, Field(description="seed of the run.")]
    images: Annotated[
        dict[str, list[Annotated[str, Field(max_length=512)]]],
        Field(description="images by role, as the nodes named what ran: REPOSITORY@sha256:..., each once, sorted."),
    ]
    topology: Annotated[Topology | None, Field(default=None, description="topology of the GPUs.")]
    adapter: Annotated[ReceiptAdapter, Field(description="adapter that was published.")]
    steps: Annotated[Steps, Field(description="steps of training.")]
    metrics: Annotated[Metrics, Field(description="metrics of the last step.")]
    checkpoints: Annotated[
        list[ReceiptCheckpoint],
        Field(description="checkpoints that the run kept: the last 3 and the one of the lowest loss."),
    ]
    operator: Annotated[ReceiptOperator, Field(description="operator that signed.")]
    run: Annotated[ReceiptRun, Field(description="run that it is about.")]
    times: Annotated[ReceiptTimes, Field(description="times of the run.")]
    usage: Annotated[ReceiptUsage, Field(description="usage of the run.")]


class SubjectDigest(ApiModel):
    """The digest of one file."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="sha256 of its bytes, in hex.")]


class Subject(ApiModel):
    """One file of the adapter."""

    name: Annotated[str, Field(min_length=1, max_length=256, description="name: its path below the adapter's folder.")]
    digest: Annotated[SubjectDigest, Field(description="digest of it.")]


class Statement(ApiModel):
    """An in-toto Statement v1 whose predicate is a receipt."""

    type_: Annotated[Literal["https://in-toto.io/Statement/v1"], Field(alias="_type", description="_type of it.")]
    subject: Annotated[list[Subject], Field(min_length=1, description="subject: every file of the adapter.")]
    predicate_type: Annotated[Literal["https://halo.training/receipt/v1"], Field(description="predicateType of it.")]
    predicate: Annotated[Receipt, Field(description="predicate: how the files came to be.")]

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Statement:
        """What is said twice must be said the same: one reader may look here, another there."""
        said = self.predicate
        if self.subject != subjects(said.adapter.files):
            raise ValueError("subject: names other files than predicate.adapter.files")
        for where, found, wanted in (
            ("adapter.digest", said.adapter.digest, files_digest(said.adapter.files)),
            ("specDigest", said.spec_digest, json_digest(said.spec)),
            ("recipe.digest", said.recipe.digest, json_digest(said.recipe.settings)),
        ):
            if found != wanted:
                raise ValueError(f"predicate.{where}: found {found}, but what it is of has {wanted}")
        return self


def subjects(files: Iterable[AdapterFile]) -> list[Subject]:
    """Return the subject of a statement about these files, sorted by path."""
    return [
        Subject(name=file.path, digest=SubjectDigest(sha256=file.sha256.removeprefix("sha256:")))
        for file in sorted(files, key=lambda file: file.path)
    ]


def schema() -> str:
    """Return the JSON schema of a statement, as docs/receipt-schema.json has it."""
    found = Statement.model_json_schema(by_alias=True)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": PREDICATE_TYPE}
    return json.dumps(head | found, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(schema())
