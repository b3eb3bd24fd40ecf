"""Provider `current`: the cluster of the kubeconfig in force, which this tool checks and feeds but does not own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .binaries import KUBE, installed
from .images import full_name, source_of
from .settings import Problem

VERSION_AT_LEAST = (1, 32)
GPU, GPU_PRODUCT = "nvidia.com/gpu", "nvidia.com/gpu.product"


class CurrentProvider:
    """The cluster of $KUBECONFIG's (else ~/.kube/config's) current context."""

    def _kubectl(self, *arguments: str) -> str:
        found = shutil.which("kubectl") or str(installed(KUBE) / "kubectl")
        done = subprocess.run([found, "--request-timeout=10s", *arguments], capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise Problem(
                f"The cluster of {self.kubeconfig()} cannot be used ({lines[-1] if lines else 'no answer'}): "
                "set KUBECONFIG to a reachable one, or leave out --provider current."
            )
        return done.stdout

    def _context(self) -> str:
        return self._kubectl("config", "current-context").strip()

    def _version(self) -> str:
        return str(json.loads(self._kubectl("get", "--raw", "/version"))["gitVersion"])

    def _kind_name(self) -> str | None:
        context = self._context()
        return context.removeprefix("kind-") if context.startswith("kind-") else None

    def up(self, options: dict[str, Any]) -> str:
        version = self._version()
        if tuple(int(part) for part in version.lstrip("v").split(".")[:2]) < VERSION_AT_LEAST:
            wanted = ".".join(map(str, VERSION_AT_LEAST))
            raise Problem(f"Context {self._context()} is Kubernetes {version} and Halo needs {wanted}: upgrade it.")
        if self._kind_name() is not None:
            self._advertise_gpus(options.get("gpus") or 8, options.get("gpu_product") or "NVIDIA-H100-80GB-HBM3")
        return f"using context {self._context()}, Kubernetes {version}"

    def _advertise_gpus(self, gpus: int, product: str) -> None:
        """On kind only: a node that may have real GPUs is never told what it has."""
        workers = self._kubectl("get", "nodes", "-o", "name").split()
        patch = json.dumps({"status": {"capacity": {GPU: str(gpus)}, "allocatable": {GPU: str(gpus)}}})
        for node in workers:
            self._kubectl("patch", node, "--subresource=status", "--type=merge", f"--patch={patch}")
            self._kubectl("label", node, f"{GPU_PRODUCT}={product}", "--overwrite")

    def down(self, purge: bool) -> str:
        return f"context {self._context()} is left running: it was not started by this tool"

    def status(self) -> tuple[list[str], bool]:
        lines = [f"{'context':24} {self._context():10} Kubernetes {self._version()}"]
        well = True
        for node in json.loads(self._kubectl("get", "nodes", "-o", "json"))["items"]:
            conditions = node["status"]["conditions"]
            ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
            well &= ready
            capacity, product = node["status"]["capacity"], node["metadata"]["labels"].get(GPU_PRODUCT, "no product")
            room = f"{capacity.get(GPU, 0)} GPUs ({product}), {capacity['cpu']} CPUs, {capacity['memory']}"
            lines.append(f"{node['metadata']['name']:24} {'Ready' if ready else 'NotReady':10} {room}")
        return lines, well

    def kubeconfig(self) -> Path:
        listed = [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
        if len(listed) > 1:
            raise Problem("KUBECONFIG lists several files: set it to one.")
        return Path(listed[0]).absolute() if listed else Path("~/.kube/config").expanduser()

    def load_images(self, references: list[str], layout: Path | None) -> Iterator[str]:
        kind = self._kind_name()
        if kind is None:
            raise Problem(
                f"Images are loaded into kind clusters only and the context is {self._context()}: "
                f"push {' '.join(references)} to a registry that the cluster pulls from."
            )
        if shutil.which("kind") is None:
            raise Problem("The context is a kind cluster and `kind` is not on PATH: put it there.")
        for reference in references:
            yield _into_kind(
                kind, reference, f"oci:{layout}:{full_name(reference)}" if layout else source_of(reference)
            )


def _into_kind(cluster: str, reference: str, source: str) -> str:
    if source.startswith("docker-daemon:"):
        _run("kind", "load", "docker-image", reference, "--name", cluster)
    else:
        with tempfile.TemporaryDirectory() as directory:
            archive = f"{directory}/image.tar"
            _run("skopeo", "copy", "--quiet", source, f"docker-archive:{archive}:{full_name(reference)}")
            _run("kind", "load", "image-archive", archive, "--name", cluster)
    return f"{reference} loaded into kind cluster {cluster}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Problem(f"`{' '.join(command)}` failed: {done.stderr.strip()[-300:]}")
