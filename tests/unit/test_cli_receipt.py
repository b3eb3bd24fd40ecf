"""kubectl halo receipt: what it says of a folder and of an Adapter, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from halo_api.digests import bytes_digest
from halo_api.receipt import RECEIPT_ANNOTATION
from halo_cli.__main__ import main
from halo_operator.signing import sign
from tests.unit.builders_receipt import KEY, OTHER_KEY, adapter, contents, folder, statement

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def pulled(tmp_path: Path) -> Path:
    """An adapter's folder, and the public key somewhere else."""
    (tmp_path / "trusted.pem").write_text(KEY.public_pem)
    return folder(tmp_path / "run")


def offline(where: Path, *more: str) -> int:
    return main(["receipt", "verify", "--offline", "--key", str(where.parent / "trusted.pem"), str(where), *more])


def test_a_folder_that_is_right(pulled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert offline(pulled) == 0
    assert capsys.readouterr().out == f"verified: team/run after step 100, 3 files, signed by key {KEY.key_id}\n"


def cut(where: Path) -> None:
    (where / "adapter_model.safetensors").write_bytes(contents()["adapter_model.safetensors"][:7])


def change(where: Path) -> None:
    (where / "adapter_config.json").write_bytes(contents()["adapter_config.json"].replace(b"16", b"61"))


def add(where: Path) -> None:
    (where / "tokenizer" / "more.bin").write_bytes(b"")


def link(where: Path) -> None:
    (where / "code").symlink_to(where / "tokenizer", target_is_directory=True)


def remove(where: Path) -> None:
    (where / "tokenizer" / "vocab.txt").unlink()


def forge(where: Path) -> None:
    (where / "receipt.json").write_bytes(sign(statement(), OTHER_KEY))
    # What lies beside the files is not trusted.
    (where / "public.pem").write_text(OTHER_KEY.public_pem)


def swap(where: Path) -> None:
    (where / "receipt.json").write_bytes(sign(statement(2, "other", "uid-2"), KEY))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (cut, "adapter_model.safetensors: Truncated: found 7 bytes of 200"),
        (change, "adapter_config.json: Changed: found sha256:"),
        (add, "tokenizer/more.bin: Extra: "),
        (link, "code: Extra: "),
        (remove, "tokenizer/vocab.txt: Missing: "),
        (
            forge,
            f"receipt.signatures.keyid: UnknownKey: found {OTHER_KEY.key_id}; the keys that are trusted: {KEY.key_id}",
        ),
        (swap, "adapter_model.safetensors: Changed: found sha256:"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_what_was_done_to_a_folder_is_said(
    harm: Any, says: str, pulled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harm(pulled)
    assert offline(pulled) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"NOT VERIFIED  {says}")
    assert harm is not swap or "the receipt of team/other after step 100" in out


def test_what_can_not_be_told_is_no_verdict(pulled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = str(pulled.parent / "trusted.pem")
    for arguments, says in (
        (("--offline", str(pulled)), "--offline needs --key FILE"),
        (("--offline", "--key", key, "run"), "run: no such folder, and --offline"),
        (("--key", key, "./nothing"), "./nothing: no such folder"),
        (("--key", str(pulled / "receipt.json"), str(pulled)), "found no public key in PEM"),
        (("--key", key, str(pulled), "--receipt", "nothing.json"), "nothing.json: can't be read"),
    ):
        assert main(["receipt", "verify", *arguments]) == 2
        assert says in capsys.readouterr().err


def test_several_keys_are_trusted_after_a_rotation(pulled: Path) -> None:
    (pulled.parent / "trusted.pem").write_text(OTHER_KEY.public_pem + KEY.public_pem)
    assert offline(pulled) == 0


def test_show_says_what_the_receipt_says(pulled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["receipt", "show", str(pulled)]) == 0
    out = capsys.readouterr().out
    assert "run         TrainingJob team/run (uid-1), attempt 1\n" in out
    assert f"signed by   {KEY.key_id} (not verified here)\n" in out
    assert main(["receipt", "show", "--json", str(pulled)]) == 0
    assert json.loads(capsys.readouterr().out) == statement(uid="uid-1")


def kubectl(folder_: Path, monkeypatch: pytest.MonkeyPatch, **objects: Any) -> None:
    """A kubectl that knows these objects by their kind."""
    for kind, body in objects.items():
        (folder_ / f"{kind}.json").write_text(json.dumps(body))
    (folder_ / "kubectl").write_text(
        f'#!/bin/sh\ncase "$*" in *configmap*) k=keys ;; *) k=adapter ;; esac\n'
        f'cat {folder_}/$k.json 2>/dev/null || {{ echo "Error from server (NotFound): no" >&2; exit 1; }}\n'
    )
    (folder_ / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder_}:{os.environ['PATH']}")


KEYS = {"data": {f"{KEY.key_id}.pem": KEY.public_pem}}


def published(receipt: bytes, verified: str | None = "True", digest: str | None = None) -> dict[str, Any]:
    """An Adapter as the operator makes it."""
    spec = adapter(contents()).to_json()
    spec["receipt"] = {"digest": digest or bytes_digest(receipt), "uri": "pvc://halo-artifacts/run/receipt.json"}
    meta = {"name": "run", "namespace": "team", "annotations": {RECEIPT_ANNOTATION: receipt.decode()}}
    condition = {
        "type": "Verified",
        "status": verified,
        "reason": "Hashed",
        "message": "adapter_model.safetensors differs",
    }
    return {"metadata": meta, "spec": spec, "status": {"conditions": [condition] if verified else []}}


OWN = sign(statement(), KEY)


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (published(OWN), 0, "verified: team/run after step 100"),
        (
            published(OWN, "False"),
            1,
            "files: Unverified: the operator hashed them again: adapter_model.safetensors differs",
        ),
        (published(OWN, None), 2, "nobody has hashed them again yet; pull the adapter"),
        (published(sign(statement(1, "other", "uid-2"), KEY)), 1, "receipt: OtherAdapter: it is of team/other"),
        (published(OWN, digest="sha256:" + "0" * 64), 1, "spec.receipt.digest: OtherAdapter"),
        (published(sign(statement(), OTHER_KEY)), 1, "UnknownKey"),
        ({"metadata": {"name": "run"}, "spec": {}}, 2, "has no receipt: it was imported"),
    ],
)
def test_an_adapter_of_the_cluster(
    body: dict[str, Any],
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kubectl(tmp_path, monkeypatch, keys=KEYS, adapter=body)
    assert main(["receipt", "verify", "run"]) == code
    said = capsys.readouterr()
    assert says in said.out + said.err


def test_a_bare_name_is_an_adapters_whatever_lies_here(
    pulled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the copy would be called verified in place of what it was copied from."""
    pulled.rename(pulled.with_name("run"))
    monkeypatch.chdir(pulled.parent)
    kubectl(pulled.parent, monkeypatch, keys=KEYS, adapter=published(sign(statement(), OTHER_KEY)))
    assert main(["receipt", "verify", "run"]) == 1
    assert "UnknownKey" in capsys.readouterr().out
    assert main(["receipt", "verify", "./run"]) == 0
    assert main(["receipt", "verify", "--offline", "--key", "trusted.pem", "run"]) == 0


def test_a_cluster_without_keys_names_what_would_do(
    pulled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl(pulled.parent, monkeypatch)
    assert main(["receipt", "verify", str(pulled)]) == 2
    assert "no ConfigMap halo-operator-receipt-keys in namespace halo-system" in capsys.readouterr().err


def test_the_other_verbs_do_without_cryptography() -> None:
    code = "import sys; sys.modules['cryptography'] = None; from halo_cli.__main__ import main; main(['receipt', '-h'])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT / "operator")}, capture_output=True
    )
    assert done.returncode == 0, done.stderr
