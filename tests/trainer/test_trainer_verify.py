"""`verify`: whatever was done to a published folder is found and named, in a message that a kubelet can carry."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halo_api.adapter import AdapterFile
from halo_api.conditions import Reason
from halo_api.digests import bytes_digest, files_digest
from halo_api.report import AdapterConfig, Outcome, VerificationReport
from halo_api.run_file import RunFile
from halo_trainer import cli

URI = "pvc://artifacts/adapters/sha256-0"
CONFIG = {"base_model_name_or_path": "tiny", "revision": "abcdef0", "r": 4, "lora_alpha": 8}
FILES = {
    "adapter_config.json": json.dumps(CONFIG).encode(),
    "adapter_model.safetensors": bytes(range(256)) * 8,
    "tokenizer/vocab.txt": "a\nä\n".encode(),
}


def listed(found: dict[str, bytes]) -> list[AdapterFile]:
    return [AdapterFile(path=path, sha256=bytes_digest(data), size=len(data)) for path, data in found.items()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the published adapter."""
    return write(tmp_path / "artifacts" / "adapters" / "sha256-0", FILES)


def write(folder: Path, found: dict[str, bytes]) -> Path:
    for path, data in found.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def outcome_of(root: Path, found: dict[str, bytes] = FILES) -> Outcome:
    """Run the verb as the supervisor does, and read what the kubelet would be left with."""
    identity = {"kind": "Adapter", "namespace": "team", "name": "run", "uid": "uid-1", "attempt": 1}
    plan = {"uri": URI, "files": [file.to_json() for file in listed(found)]}
    run = RunFile.model_validate({"role": "verify", "run": identity, "verify": plan})
    (root / "run.json").write_text(run.canonical())
    paths = ["--run-file", str(root / "run.json"), "--volumes", str(root), "--report", str(root / "report.json")]
    code = cli.main(["verify", *paths])
    outcome = Outcome.model_validate(json.loads((root / "report.json").read_text())["outcome"])
    assert code == (0 if outcome.result == "Succeeded" else 1)
    return Outcome.model_validate_json(outcome.termination_message())


def told(root: Path, found: dict[str, bytes] = FILES) -> VerificationReport:
    outcome = outcome_of(root, found)
    assert outcome.verification, outcome.message
    return outcome.verification


def test_what_was_published_is_found_right(folder: Path, tmp_path: Path) -> None:
    # What a pull puts beside the files is no part of them.
    write(folder, {"receipt.json": b"{}", "public.pem": b""})
    (folder / "empty").mkdir()
    found = told(tmp_path)
    assert (found.digest, found.problems) == (files_digest(listed(FILES)), ())
    assert found.config == AdapterConfig(base="tiny", revision="abcdef0", rank=4, alpha=8)


@pytest.mark.parametrize("path", FILES)
def test_any_byte_of_any_file(path: str, folder: Path, tmp_path: Path) -> None:
    for at in range(0, len(FILES[path]), 97):
        data = bytearray(FILES[path])
        data[at] ^= 1
        (folder / path).write_bytes(data)
        (found,) = told(tmp_path).problems
        assert found.problem == "Changed"
        assert found.message.startswith(f"{path}: found sha256:")


def cut(folder: Path) -> None:
    os.truncate(folder / "adapter_model.safetensors", 7)


def grow(folder: Path) -> None:
    with (folder / "adapter_model.safetensors").open("ab") as file:
        file.write(b"more")


def remove(folder: Path) -> None:
    (folder / "tokenizer" / "vocab.txt").unlink()


def add(folder: Path) -> None:
    write(folder, {"tokenizer/more.bin": b"x"})


def link_a_folder(folder: Path) -> None:
    (folder / "code").symlink_to(folder.parent)


def pipe(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    os.mkfifo(folder / "adapter_model.safetensors")


def folder_instead(folder: Path) -> None:
    (folder / "tokenizer" / "vocab.txt").unlink()
    (folder / "tokenizer" / "vocab.txt").mkdir()


def loop(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()
    (folder / "adapter_config.json").symlink_to("adapter_config.json")


def unspeakable(folder: Path) -> None:
    with open(os.fsencode(folder) + b"/\xff.bin", "wb"):
        pass


@pytest.mark.parametrize(
    ("harm", "problem", "words"),
    [
        (cut, "Truncated", "adapter_model.safetensors: found 7 bytes of 2048; it was cut"),
        (grow, "Changed", "adapter_model.safetensors: found sha256:"),
        (remove, "Missing", "tokenizer/vocab.txt: not found; the Adapter has it with 5 bytes"),
        (add, "Extra", "tokenizer/more.bin: found, and the Adapter has no such file"),
        (link_a_folder, "Extra", "code: found, and"),
        (pipe, "Missing", "adapter_model.safetensors: not found"),
        (folder_instead, "Missing", "tokenizer/vocab.txt: not found"),
        (loop, "Missing", "adapter_config.json: not found"),
        (unspeakable, "Extra", "\\udcff.bin: found, and"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_was_done_is_named(
    harm: Callable[[Path], None], problem: str, words: str, folder: Path, tmp_path: Path
) -> None:
    harm(folder)
    (found,) = told(tmp_path).problems
    assert found.problem == problem
    assert found.message.startswith(words)


@pytest.mark.parametrize("instead", [None, "a file"])
def test_a_folder_that_is_not_there_is_one_problem(instead: str | None, tmp_path: Path) -> None:
    if instead:
        write(tmp_path / "artifacts" / "adapters", {"sha256-0": b""})
    (found,) = told(tmp_path).problems
    assert (found.problem, found.message) == ("Missing", f"{URI}: there is no such folder")


def test_what_can_not_be_read_is_not_called_wrong(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As root, which tests may run as, everything can be read.
    really = os.open

    def denied(path: str, *how: Any, **more: Any) -> int:
        if str(path) == f"{folder}/adapter_config.json":
            raise PermissionError(13, "Permission denied", path)
        return really(path, *how, **more)

    monkeypatch.setattr(os, "open", denied)
    outcome = outcome_of(tmp_path)
    assert (outcome.result, outcome.reason, outcome.verification) == ("Failed", Reason.PERMISSION_DENIED, None)
    assert f"{folder}/adapter_config.json is not open to user" in outcome.message


@pytest.mark.parametrize("letter", ["x", "ü", "\x01", "𝕏"])
def test_the_report_always_fits_into_a_termination_message(letter: str, tmp_path: Path) -> None:
    endless = letter * 5000
    config = {"base_model_name_or_path": endless, "revision": endless, "r": 10**40, "lora_alpha": 1e400}
    long = letter * (200 // len(os.fsencode(letter)))
    right = {"adapter_config.json": json.dumps(config).encode()}
    said = {f"{long}-{n}": b"x" for n in range(63)}
    write(tmp_path / "artifacts" / "adapters" / "sha256-0", {f"{name}-too": b"y" for name in said} | right)
    outcome = outcome_of(tmp_path, said | right)
    assert len(outcome.termination_message().encode()) <= 4096
    assert outcome.message == "1 of 64 files hashed, 126 problems"
    found = outcome.verification
    assert found
    assert len(found.problems) == 5
    assert (found.config.rank, found.config.alpha) == (None, None)
    assert found.config.base
    assert endless.startswith(found.config.base.removesuffix("…"))


@pytest.mark.parametrize(
    "text", [b"", b"\xff", b"[1]", b"[" * 100_000, b'{"r": "4", "lora_alpha": true, "revision": 7}']
)
def test_a_configuration_may_be_anything(text: bytes, tmp_path: Path) -> None:
    found = FILES | {"adapter_config.json": text}
    write(tmp_path / "artifacts" / "adapters" / "sha256-0", found)
    report = told(tmp_path, found)
    assert (report.problems, report.config) == ((), AdapterConfig())


def test_half_a_character_in_a_configuration_is_carried(tmp_path: Path) -> None:
    found = FILES | {"adapter_config.json": b'{"base_model_name_or_path": "\\ud800x"}'}
    write(tmp_path / "artifacts" / "adapters" / "sha256-0", found)
    assert told(tmp_path, found).config.base == "\\ud800x"
