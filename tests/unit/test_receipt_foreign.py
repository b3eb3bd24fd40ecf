"""Tools that are not ours verify a receipt, by the very commands of docs/verify.md, and find what is wrong with one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.unit.builders_receipt import contents, folder

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = dict(re.findall(r"^```\w+ ([\w-]+)\n(.*?)^```", (ROOT / "docs" / "verify.md").read_text(), re.M | re.S))


def run(name: str, where: Path, programs: Path = Path(sys.executable).parent) -> subprocess.CompletedProcess[str]:
    """Run a command of the page in an adapter's folder."""
    command = ["python", "-c"] if name == "securesystemslib" else ["sh", "-c"]
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"}
    program = [str(programs / command[0]) if command[0] == "python" else command[0], command[1], BLOCKS[name]]
    return subprocess.run(program, cwd=where, env=environment, capture_output=True, text=True)


def forged(where: Path) -> Path:
    """The folder with one byte of its receipt's payload changed."""
    text = (where / "receipt.json").read_text()
    at = text.index('"payload":"') + 41
    (where / "receipt.json").write_text(text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :])
    return where


def spoilt(where: Path) -> Path:
    """The folder with one byte of its weights changed."""
    data = bytearray(contents()["adapter_model.safetensors"])
    data[100] ^= 1
    (where / "adapter_model.safetensors").write_bytes(data)
    return where


@pytest.mark.parametrize("tool", ["openssl", "securesystemslib"])
def test_a_tool_that_is_not_ours_verifies_a_receipt(tool: str, tmp_path: Path) -> None:
    right = run(tool, folder(tmp_path / "right"))
    assert right.returncode == 0, right.stdout + right.stderr
    assert tool != "openssl" or right.stdout.splitlines()[0] == "Verified OK"
    assert run(tool, forged(folder(tmp_path / "forged"))).returncode != 0
    changed = run(tool, spoilt(folder(tmp_path / "spoilt")))
    assert changed.returncode != 0
    assert "adapter_model.safetensors" in changed.stdout + changed.stderr


@pytest.mark.slow
def test_a_clean_environment_with_that_tool_alone_verifies_a_receipt(tmp_path: Path) -> None:
    programs = tmp_path / "venv" / "bin"
    venv.create(tmp_path / "venv", with_pip=True)
    pip = [programs / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "securesystemslib[crypto]"], check=True)
    right = run("securesystemslib", folder(tmp_path / "right"), programs)
    assert right.returncode == 0, right.stderr
    assert "VerificationError" in run("securesystemslib", forged(folder(tmp_path / "forged")), programs).stderr
