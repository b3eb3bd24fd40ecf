"""A trained run, its adapter's folder and its signed receipt, as the operator makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from halo_api.adapter import AdapterBase, AdapterFile, AdapterSpec, TrainedBy
from halo_api.digests import bytes_digest, files_digest
from halo_api.run_status import AttemptRecord, Checkpoint, Progress, Topology, Usage
from halo_api.training_job import TrainingJobStatus
from halo_operator.plan.freeze import freeze
from halo_operator.plan.receipt import Known, statement_of
from halo_operator.plan.world import Meta, Object
from halo_operator.signing import ReceiptSigner, sign
from tests.unit import builders as b

IMAGE = "registry.example/halo-trainer@sha256:" + "1" * 64
# The numbers are secrets of no one: keys for tests only.
KEY = ReceiptSigner(ec.derive_private_key(11, ec.SECP256R1()))
OTHER_KEY = ReceiptSigner(ec.derive_private_key(12, ec.SECP256R1()))


def contents(seed: int = 1) -> dict[str, bytes]:
    """The files of an adapter; those of another seed have the same configuration and sizes."""
    config = {"base_model_name_or_path": "smol", "lora_alpha": 32, "r": 16, "revision": "rev-0001"}
    return {
        "adapter_config.json": json.dumps(config, sort_keys=True).encode(),
        "adapter_model.safetensors": bytes((seed * 7 + n) % 256 for n in range(200)),
        "tokenizer/vocab.txt": b"a\nb\n%d\n" % seed,
    }


def files(found: dict[str, bytes]) -> list[AdapterFile]:
    return [AdapterFile(path=path, sha256=bytes_digest(data), size=len(data)) for path, data in sorted(found.items())]


def adapter(found: dict[str, bytes], name: str = "run", uid: str = "uid-1") -> AdapterSpec:
    return AdapterSpec(
        base=AdapterBase(name="smol", revision="rev-0001"),
        rank=16,
        alpha=32,
        uri=f"pvc://halo-artifacts/{uid}/a1/adapter",
        digest=files_digest(files(found)),
        files=files(found),
        trained_by=TrainedBy(kind="TrainingJob", name=name, uid=uid, step=100),
    )


def status(**changes: Any) -> TrainingJobStatus:
    attempt = AttemptRecord(attempt=1, started_at="2026-11-29T10:00:00Z", finished_at="2026-11-29T11:30:00Z")
    facts: dict[str, Any] = {
        "frozen": freeze(b.world()),
        "attempt": 1,
        "attempts": [attempt],
        "topology": Topology(nodes=1, gpus_per_node=1),
        "progress": Progress(step=100, steps=100, percent=100, loss=0.5, updated_at="2026-11-29T11:29:00Z"),
        "checkpoints": [
            Checkpoint(step=100, attempt=1, uri="pvc://a/u/c", digest=b.DIGEST, loss=0.25, at="2026-11-29T11:28:00Z")
        ],
        "usage": Usage(h100_hours="1.5"),
    }
    return TrainingJobStatus(**(facts | changes))


def statement(seed: int = 1, name: str = "run", uid: str = "uid-1", namespace: str = "team", **changes: Any) -> Object:
    meta = Meta(kind="TrainingJob", namespace=namespace, name=name, uid=uid, generation=1, created_at=b.NOW)
    known = Known(operator_version="0.1.0", images={"trainer": [IMAGE, IMAGE]})
    spec = changes.pop("spec", b.spec())
    return statement_of(meta, spec, status(**changes), adapter(contents(seed), name, uid), known)


def folder(where: Path, seed: int = 1, name: str = "run", key: ReceiptSigner = KEY) -> Path:
    """Write an adapter's folder as it is pulled: its files, its receipt, the public key."""
    for path, data in contents(seed).items():
        (where / path).parent.mkdir(parents=True, exist_ok=True)
        (where / path).write_bytes(data)
    (where / "receipt.json").write_bytes(sign(statement(seed, name, f"uid-{seed}"), key))
    (where / "public.pem").write_text(KEY.public_pem)
    return where
