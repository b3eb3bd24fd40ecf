"""Adapters for tests, made with receipts by the operator's own key; what the pod finds of their files is played."""

from __future__ import annotations

from typing import Any

from halo_api import API_VERSION
from halo_api.adapter import AdapterBase
from halo_api.digests import bytes_digest
from halo_api.receipt import RECEIPT_ANNOTATION
from halo_api.report import FileProblem
from halo_api.run_status import ReceiptRef
from halo_operator.plan.freeze import freeze
from halo_operator.signing import SECRET, ReceiptSigner, sign, signer_in
from tests.api import pods
from tests.api.client import Object
from tests.api.kube import OPERATOR, OPERATOR_NAMESPACE
from tests.api.stage import Stage
from tests.unit import builders as b
from tests.unit.builders_receipt import adapter, contents, statement

REVISION = "sha256-0000000"
SYSTEM = f"/api/v1/namespaces/{OPERATOR_NAMESPACE}"
CUT = FileProblem(problem="Truncated", message="adapter_model.safetensors: found 7 bytes of 200; it was cut")


def operators_key(stage: Stage) -> ReceiptSigner:
    """The first operator of a cluster makes it once it leads."""
    secret = f"{SYSTEM}/secrets/{SECRET}"
    stage.until(lambda: stage.api.get(secret), "the operator has a key")
    return signer_in(stage.api.request("GET", secret))


def body_of(stage: Stage, name: str = "run", seed: int = 1, key: ReceiptSigner | None = None, **spec: Any) -> Object:
    """An Adapter with its receipt, as the run of its name would have published it."""
    uid, frozen = f"uid-{name}", freeze(b.world())
    based = frozen.base.model_copy(update={"name": stage.base, "revision": REVISION})
    said = statement(seed, name, uid, stage.namespace, frozen=frozen.model_copy(update={"base": based}))
    envelope = sign(said, key or operators_key(stage)).decode()
    facts = {
        "base": AdapterBase(name=stage.base, revision=REVISION),
        "receipt": ReceiptRef(digest=bytes_digest(envelope.encode())),
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "Adapter",
        "metadata": {"name": name, "annotations": {RECEIPT_ANNOTATION: envelope}},
        "spec": adapter(contents(seed), name, uid).model_copy(update=facts | spec).to_json(),
    }


def publish(stage: Stage, name: str = "run", seed: int = 1, key: ReceiptSigner | None = None, **spec: Any) -> Object:
    """Make it as the operator would."""
    return publish_body(stage, body_of(stage, name, seed, key, **spec))


def publish_body(stage: Stage, body: Object) -> Object:
    return stage.api.as_user(OPERATOR).post(stage.path("adapters"), body)


def found(stage: Stage, name: str = "run", *problems: FileProblem, pod: Object | None = None) -> None:
    """The pod at hand has hashed the files."""
    stage.finish(pod or stage.verify_pod(name), pods.verified(stage.run(name, "adapters"), *problems))


def verdict(stage: Stage, name: str = "run") -> tuple[str, str, str]:
    said = stage.condition("Verified", name, "adapters")
    return said["status"], said["reason"], stage.condition("Ready", name, "adapters")["status"]


def until(stage: Stage, wanted: tuple[str, str, str], name: str = "run", seconds: float = 180) -> None:
    stage.until(
        lambda: verdict(stage, name) == wanted, f"{name} is {wanted}: {stage.status(name, 'adapters')}", seconds
    )


def until_over(stage: Stage, wanted: tuple[str, str, str], name: str = "run") -> None:
    """The verdict is there, and its pod is gone."""
    until(stage, wanted, name)
    stage.until(lambda: not stage.verify_pods(name), f"the pod of {name} is deleted")


RIGHT = ("True", "Verified", "True")
GOING = ("Unknown", "Verifying", "False")
