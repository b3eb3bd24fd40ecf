"""The real operator as a process of its own, logged in as the chart's ServiceAccount, against the real API server."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.api.kube import OPERATOR_NAMESPACE, ROOT, Kubectl, eventually

TRAINER_IMAGE = "localhost/halo-trainer:dev"
ROLLOUT_IMAGE = "localhost/halo-rollout:dev"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def service_account_kubeconfig(admin: Kubectl, folder: Path, server: str = "") -> Path:
    """A kubeconfig with a real token of the operator's ServiceAccount; by way of another server if one is named."""
    config = yaml.safe_load(admin("config", "view", "--raw", "--minify", "--flatten", "-o", "yaml"))
    if server:
        config["clusters"] = [{"name": config["clusters"][0]["name"], "cluster": {"server": server}}]
    token = admin("-n", OPERATOR_NAMESPACE, "create", "token", "halo-operator", "--duration=24h")
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = folder / "operator.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    return path


class OperatorProcess:
    """One replica; `kill`, `stop`, `pause` and `resume` are the signals a machine would give it."""

    def __init__(self, admin: Kubectl, server: str = "", **environment: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="halo-operator-"))
        self.identity = f"operator-{uuid.uuid4().hex[:6]}"
        self.health_port = free_port()
        self.report_port = int(environment.get("HALO_REPORT_PORT", free_port()))
        self.log = self.folder / "log"
        self.environment = os.environ | {
            "KUBECONFIG": str(service_account_kubeconfig(admin, self.folder, server)),
            "PYTHONPATH": str(ROOT / "operator"),
            "HALO_NAMESPACE": OPERATOR_NAMESPACE,
            "HALO_POD_NAME": self.identity,
            "HALO_TRAINER_IMAGE": TRAINER_IMAGE,
            "HALO_TRAINER_IMAGE_PULL_POLICY": "Never",
            "HALO_ROLLOUT_IMAGE": ROLLOUT_IMAGE,
            "HALO_ROLLOUT_IMAGE_PULL_POLICY": "Never",
            "HALO_LOG_FORMAT": "text",
            "HALO_HEALTH_PORT": str(self.health_port),
            "HALO_REPORT_PORT": str(self.report_port),
            **environment,
        }
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "halo_operator"], env=self.environment, stdout=out, stderr=out, cwd=self.folder
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def said(self) -> str:
        return self.log.read_text()

    def wait_until_leading(self) -> OperatorProcess:
        eventually(
            lambda: f"leading as {self.identity}" in self.said(), f"{self.identity} leads: {self.said()[-2000:]}", 180
        )
        return self

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def replace(self) -> None:
        """Kill it; another pod, with a name of its own, comes in its place."""
        self.kill()
        self.identity = self.environment["HALO_POD_NAME"] = f"operator-{uuid.uuid4().hex[:6]}"
        self.start()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def ended(self, seconds: float = 60) -> int:
        return self._process.wait(seconds)


@contextmanager
def replica(admin: Kubectl, server: str = "", **environment: str) -> Iterator[OperatorProcess]:
    """One replica for as long as it is needed; one that is still there then ends in order when it is asked to."""
    process = OperatorProcess(admin, server, **environment)
    try:
        yield process
    except BaseException:
        process.kill()
        raise
    if process.is_alive():
        # One that was started a moment ago does not listen to signals yet.
        assert process.stop() in (0, -signal.SIGTERM), process.said()[-2000:]
    # What failed keeps its log.
    shutil.rmtree(process.folder)


def catalog(name: str) -> list[dict[str, Any]]:
    """A base model and a GPU class of the test's own: both kinds are cluster-wide."""
    return [
        {
            "apiVersion": "halo.training/v1alpha1",
            "kind": "BaseModel",
            "metadata": {"name": name},
            "spec": {
                "source": "pvc://halo-models/smollm2-135m-instruct",
                "revision": "sha256-0000000",
                "parametersB": 0.135,
                "contextLength": 2048,
                "dtype": "fp32",
                "offers": ["lora_trl"],
            },
        },
        {
            "apiVersion": "halo.training/v1alpha1",
            "kind": "GpuClass",
            "metadata": {"name": name},
            "spec": {"memoryGiB": 80, "perNode": 8, "perGpu": {"cpu": "100m", "memory": "1Gi"}},
        },
    ]


def dataset(base_model: str, name: str = "chat") -> dict[str, Any]:
    return {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "Dataset",
        "metadata": {"name": name},
        "spec": {"kind": "chat", "source": "pvc://halo-data/chat.jsonl", "baseModels": [base_model]},
    }


def training_job(base_model: str, name: str = "run", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "base": "lora_trl",
            "baseModel": base_model,
            "gpu": {"type": base_model, "count": 1},
            "steps": 20,
            "batch": 4,
            "saveSteps": 5,
            "lora": {"dataset": "chat"},
            **spec,
        },
    }
