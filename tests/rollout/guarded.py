"""A rollout pod's guard as a process, as its supervisor starts it, and who talks to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout_support import run_file

from halo_api.report import Report
from halo_api.rollouts import Policy, PolicyAnswer

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 900.0


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Guarded:
    """The guard's process over vLLM; `folder` has the volumes."""

    folder: Path
    process: subprocess.Popen[bytes]
    serve: int
    port: int

    @classmethod
    def start(
        cls,
        folder: Path,
        serving: str,
        python: str = sys.executable,
        modules: tuple[Path, ...] = (),
        environment: dict[str, str] | None = None,
        **plan: Any,
    ) -> Guarded:
        """Start the guard for the base at volumes/models/base."""
        serve, port = free_port(), free_port()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(run_file(serve, port, serving, **plan).canonical())
        paths = [str(path) for path in (*modules, ROOT / "operator", ROOT / "rollout_image")]
        words = [python, "-m", "halo_rollout", "serve", "--run-file", str(folder / "run.json")]
        words += ["--volumes", str(folder / "volumes"), "--report", str(folder / "report.json")]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                words,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | (environment or {}),
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                # So that all that comes of it can be found when it is gone.
                start_new_session=True,
            )
        return cls(folder, process, serve, port)

    def get(self, path: str) -> tuple[int, bytes]:
        """Return what the guard answers."""
        return self._ask(self.port, "GET", path)

    def ready(self) -> bool:
        """Whether it says that it can sample."""
        try:
            return self.get("/ready")[0] == 200
        except OSError:
            return False

    def wait(self, what: Any = None) -> None:
        """Wait until something holds, as long as the guard lives: that it is ready."""
        end = time.monotonic() + PATIENCE
        while not (what or self.ready)():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.05)

    def put(self, policy: Policy) -> tuple[int, PolicyAnswer]:
        """Announce a policy."""
        status, body = self._ask(self.port, "PUT", "/policy", policy.model_dump_json(by_alias=True))
        return status, PolicyAnswer.model_validate_json(body)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask vLLM itself."""
        status, answer = self._ask(self.serve, "POST", path, json.dumps(body))
        assert status == 200, answer
        found: dict[str, Any] = json.loads(answer)
        return found

    def metrics(self) -> str:
        """Return vLLM's metrics."""
        return self._ask(self.serve, "GET", "/metrics")[1].decode()

    def report(self) -> Report:
        """Return what the supervisor would push."""
        return Report.model_validate_json((self.folder / "report.json").read_bytes())

    def log(self) -> str:
        """Return the end of what it and vLLM wrote."""
        return (self.folder / "log").read_text(errors="replace")[-6000:]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Tell it to end; return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """Leave nothing behind, whatever failed. In a pod the container goes with its first process; here vLLM's engine would stay."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getsid(int(folder.name)) == self.process.pid:
                    os.kill(int(folder.name), signal.SIGKILL)
        self.process.wait()

    def _ask(self, port: int, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}",
            body and body.encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
