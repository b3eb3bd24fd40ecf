"""Provider `local`: the embedded cluster, brought up, taken down and described as a whole."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from . import prerequisites
from .api import Api, ApiError
from .binaries import COREDNS, HELM_CLI, KUBE, PAUSE, installed, lock, tools
from .containerd import Containerd
from .control_plane import start_control_plane
from .dns import start_dns
from .health import CONTROL_PLANE, NODE, is_well
from .images import load_image, load_image_of_layout
from .network import plug, unplug
from .node import GPU_PRODUCT, NODE_PATH, clear_node, end_pods, gpus_of, is_ready, start_node
from .pki import ensure_pki
from .processes import Processes
from .settings import Home, Problem, Wish, cache_root


class LocalProvider:
    """One embedded cluster, by name."""

    def __init__(self, name: str):
        self.home = Home(name)
        self.processes = Processes(self.home.root)

    def _lock(self, what: str = "cluster") -> AbstractContextManager[None]:
        return lock(cache_root() / "cluster" / f".{self.home.name}.{what}.lock")

    def up(self, options: dict[str, Any]) -> str:
        began = time.monotonic()
        with self._lock():
            before = self.home.wish()
            wish = (before or Wish()).changed(options)
            if before and before.node and not wish.node:
                raise Problem(
                    f"Cluster {self.home.name} has a node: take it down first, or start one without beside it, "
                    "e.g. `hack/cluster up --no-node --name api`."
                )
            prerequisites.check(self.home, self.processes, wish.node)
            build(wish.node)
            self._start(wish)
        took = time.monotonic() - began
        return f"cluster {self.home.name} is up in {took:.1f} s; export KUBECONFIG={self.home.kubeconfig}"

    def _start(self, wish: Wish) -> None:
        home, binaries = self.home, installed(KUBE)
        if not (home.root / "etcd").exists():
            home.audit_log.unlink(missing_ok=True)
        ensure_pki(home)
        home.keep(wish)
        if wish.node:
            plug(home)
        start_control_plane(home, wish, self.processes, binaries)
        if wish.node:
            start_node(home, wish, self.processes, binaries)
            start_dns(home, self.processes)
        for name in parts(wish):
            self.processes.wait(name, partial(is_well, home, name), what="well")

    def down(self, purge: bool) -> str:
        began = time.monotonic()
        home, processes = self.home, self.processes
        if not home.root.exists():
            return f"cluster {home.name} does not exist"
        with self._lock("images"), self._lock():
            # First those that would make new pods for the ones that end, and what others have started here.
            guests = [name for name in processes.alive() if name not in (*CONTROL_PLANE, *NODE)]
            processes.stop(*guests, "kube-controller-manager", "kube-scheduler", grace=2)
            end_pods(home, processes)
            processes.stop("kubelet", "kube-proxy", "coredns", grace=5)
            if processes.pid("containerd") is not None:
                Containerd(home).forget_containers()
            clear_node(home)
            processes.stop("containerd")
            # Its state is thrown away, so there is nothing for it to finish.
            processes.stop("kube-apiserver", "etcd", grace=1)
            shutil.rmtree(home.run, ignore_errors=True)
            if (home.root / "kernel.json").exists():
                unplug(home)
            shutil.rmtree(home.root / "etcd", ignore_errors=True)
            home.wish_file.unlink(missing_ok=True)
            if purge:
                shutil.rmtree(home.root)
        return f"cluster {home.name} is down in {time.monotonic() - began:.1f} s"

    def status(self) -> tuple[list[str], bool]:
        wish = self.home.wish()
        if wish is None:
            return [f"cluster {self.home.name} is down"], False
        lines, well = [], True
        for name in parts(wish):
            pid = self.processes.pid(name)
            state = "dead" if pid is None else "running" if is_well(self.home, name) else "unhealthy"
            well &= state == "running"
            lines.append(f"{name:24} {state:10} {f'process {pid}' if pid else f'see {self.processes.log(name)}'}")
        if wish.node:
            line, ready = self._node(wish)
            lines.append(line)
            well &= ready
        return lines, well

    def _node(self, wish: Wish) -> tuple[str, bool]:
        try:
            node = Api(self.home).get(NODE_PATH)
        except (OSError, ApiError) as error:
            return f"{'node':24} {'unknown':10} {error}", False
        capacity, product = node["status"]["capacity"], node["metadata"]["labels"].get(GPU_PRODUCT, "no product")
        ready = is_ready(node) and gpus_of(node) == wish.gpus
        memory = int(capacity["memory"].removesuffix("Ki")) / 2**20
        room = f"{gpus_of(node)} GPUs ({product}), {capacity['cpu']} CPUs, {memory:.0f} GiB"
        return f"{node['metadata']['name']:24} {'Ready' if is_ready(node) else 'NotReady':10} {room}", ready

    def kubeconfig(self) -> Path:
        return self.home.kubeconfig

    def load_images(self, references: list[str], layout: Path | None) -> Iterator[str]:
        wish = self.home.wish()
        if wish is None or not wish.node or self.processes.pid("containerd") is None:
            raise Problem(f"Cluster {self.home.name} has no node running to load images into: `hack/cluster up` first.")
        with self._lock("images"):
            for reference in references:
                if layout:
                    yield load_image_of_layout(self.home, layout, reference)
                else:
                    yield load_image(self.home, reference)


def parts(wish: Wish) -> tuple[str, ...]:
    return (*CONTROL_PLANE, *NODE) if wish.node else CONTROL_PLANE


def build(node: bool) -> None:
    """Every binary that the cluster or its users need, where it is not built yet."""
    for program in (KUBE, HELM_CLI, *((PAUSE, COREDNS) if node else ())):
        installed(program)
    tools()
