"""What a receipt says: the same for the same run, of equal runs the same but for identity, times and usage, as documented."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import jsonschema
import pytest

from halo_api.digests import canonical, files_digest
from halo_api.receipt import Statement, schema
from halo_api.run_status import AttemptRecord, Settlement, Usage
from halo_operator.plan.freeze import freeze
from halo_trainer.checkpoints import digest as trainer
from tests.unit import builders as b
from tests.unit.builders_receipt import IMAGE, contents, files, folder, statement

ROOT = Path(__file__).resolve().parents[2]


def test_a_receipt_says_what_made_the_adapter() -> None:
    said = statement()["predicate"]
    assert said["base"] == {"name": "smol", "revision": "rev-0001", "source": "pvc://models/smol", "dtype": "bf16"}
    assert said["recipe"]["name"] == "sft"
    assert said["recipe"]["settings"]["rank"] == 16
    assert said["datasets"] == [{"name": "chat", "sha256": b.DIGEST, "rows": 10}]
    assert said["images"] == {"trainer": [IMAGE]}
    assert said["steps"] == {"asked": 100, "done": 100}
    assert said["metrics"] == {"loss": 0.25}
    assert said["usage"]["used"]["h100Hours"] == "1.5"
    assert said["times"] == {
        "created": "2026-11-29T12:00:00Z",
        "started": "2026-11-29T10:00:00Z",
        "finished": "2026-11-29T11:30:00Z",
    }
    assert [one["name"] for one in statement()["subject"]] == sorted(contents())


def test_it_is_the_same_to_the_byte_each_time() -> None:
    assert canonical(statement()) == canonical(statement())


def test_equal_runs_differ_in_run_times_and_usage_alone() -> None:
    settled = Settlement(unit="H100Hours", held="3", used="2", charged="2", overrun="0", released="1")
    attempts = [
        AttemptRecord(
            attempt=1, started_at="2026-11-30T10:00:00Z", finished_at="2026-11-30T10:10:00Z", reason="Evicted"
        ),
        AttemptRecord(attempt=2, started_at="2026-11-30T10:20:00Z", finished_at="2026-11-30T12:00:00Z"),
    ]
    usage = Usage(h100_hours="2", settlement=settled)
    one = statement()
    other = statement(name="again", uid="uid-9", attempt=2, failures=1, attempts=attempts, usage=usage)
    assert one["subject"] == other["subject"]
    differing = {key for key, value in one["predicate"].items() if other["predicate"][key] != value}
    assert differing == {"run", "times", "usage"}
    assert one["predicate"].keys() == other["predicate"].keys()


def test_a_child_names_its_proven_parent_and_an_unproven_one_is_no_parent() -> None:
    spec = b.spec(parent={"adapter": "support-v3"})
    frozen, unproven = (
        freeze(b.world(spec=spec, catalog=b.catalog(parent=parent))) for parent in (b.parent(), b.parent(receipt=None))
    )
    with pytest.raises(ValueError, match="has no receipt"):
        statement(spec=spec, frozen=unproven)
    said = statement(spec=spec, frozen=frozen)["predicate"]["parent"]
    assert said == {"name": "support-v3", "digest": b.DIGEST, "receipt": b.RECEIPT}


def test_what_is_said_twice_must_agree() -> None:
    for path, value in (
        (("predicate", "specDigest"), b.DIGEST),
        (("predicate", "adapter", "digest"), b.DIGEST),
        (("predicate", "recipe", "settings", "rank"), 8),
        (("subject", 0, "digest", "sha256"), "0" * 64),
    ):
        said = statement()
        part = said
        for key in path[:-1]:
            part = part[key]  # type: ignore[index]
        part[path[-1]] = value  # type: ignore[index]
        with pytest.raises(ValueError, match="predicate"):
            Statement.model_validate(said)


def test_the_digest_of_a_folder_is_what_sha256sum_says_of_what_it_prints(tmp_path: Path) -> None:
    written = folder(tmp_path)
    (written / "receipt.json").unlink()
    (written / "public.pem").unlink()
    found = trainer.folder_files(written)
    assert list(found) == files(contents())
    lines = subprocess.check_output(["sha256sum", *(file.path for file in found)], cwd=written)
    assert files_digest(reversed(found)) == f"sha256:{hashlib.sha256(lines).hexdigest()}"


def test_the_schema_is_the_models_and_takes_a_receipt() -> None:
    published = (ROOT / "docs" / "receipt-schema.json").read_text()
    assert published == schema(), "run: PYTHONPATH=operator python -m halo_api.receipt docs/receipt-schema.json"
    jsonschema.validate(statement(), json.loads(published))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(statement() | {"predicateType": "https://slsa.dev/provenance/v1"}, json.loads(published))
