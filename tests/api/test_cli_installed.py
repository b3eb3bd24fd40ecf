"""kubectl halo as pip installs it, into an environment with nothing else: kubectl finds it, and it knows every reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.kube import ROOT

# It builds the wheel and fetches what it depends on, with pip's own settings.
pytestmark = [pytest.mark.api, pytest.mark.slow]


def test_pip_installs_a_plugin_that_kubectl_finds(tools: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    scripts = tmp_path / "venv" / "bin"
    subprocess.run([scripts / "pip", "install", "-q", "--disable-pip-version-check", str(ROOT)], check=True)
    environment = {**os.environ, "PATH": f"{scripts}:{tools}:/usr/bin:/bin", "PYTHONPATH": ""}

    def run(*command: str, stdin: str = "") -> str:
        done = subprocess.run(command, env=environment, input=stdin, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "explain-refusal" in run("kubectl", "halo", "--help")
    assert "baseModel: qwen3-8b" in run("kubectl", "halo", "import", "-", "--name", "x", stdin='{"base":"lora_trl","base_model":"Qwen3-8B"}')  # fmt: skip
    known = run(str(scripts / "python"), "-c", "from halo_cli.reasons import reasons; print(*reasons())")
    assert "BudgetTooSmall" in known
