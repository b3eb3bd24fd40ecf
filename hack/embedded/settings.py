"""Where a cluster lives on this machine and what it was asked to be: cache, directories, ports, addresses, GPUs."""

from __future__ import annotations

import json
import os
import re
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HACK = Path(__file__).resolve().parent.parent
DEFAULT_NAME = "halo"

NODE_NAME = "node-0"
BRIDGE = "halo0"
# The bridge's own address is the node's: pods and the host both reach everything there.
NODE_IP = "10.244.0.1"
POD_CIDR = "10.244.0.0/16"
NODE_CIDR = "10.244.0.0/24"
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"
DNS_SERVICE_IP = "10.96.0.10"

FIRST_PORT, PORTS_PER_CLUSTER, CLUSTERS = 16440, 20, 90
PORT_OFFSETS = {
    "etcd": 1,
    "etcd-peer": 2,
    "kube-apiserver": 3,
    "kube-controller-manager": 4,
    "kube-scheduler": 5,
    "etcd-metrics": 6,
    "kubelet": 10,
    "kubelet-health": 11,
    "kube-proxy-health": 12,
    "kube-proxy-metrics": 13,
    "coredns": 14,
    "coredns-health": 15,
    "coredns-ready": 16,
}
NODE_PORTS = frozenset(name for name, offset in PORT_OFFSETS.items() if offset >= 10)


class Problem(Exception):
    """What is wrong and what cures it, in one sentence for the person at the terminal."""


def cache_root() -> Path:
    if chosen := os.environ.get("HALO_CACHE"):
        return Path(chosen).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser().absolute() / "halo"


@dataclass(frozen=True)
class Wish:
    """What `up` makes of a cluster; kept beside it, so that a later `up` without options keeps it as it is."""

    node: bool = True
    gpus: int = 8
    gpu_product: str = "NVIDIA-H100-80GB-HBM3"
    audit: bool = False

    def changed(self, options: dict[str, Any]) -> Wish:
        return replace(self, **{name: value for name, value in options.items() if value is not None})


@dataclass(frozen=True)
class Home:
    """The directories and ports of the cluster of one name."""

    name: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?", self.name):
            raise Problem(
                f"--name {self.name!r} is no cluster name: use at most 20 lower-case letters, digits and dashes."
            )

    @property
    def root(self) -> Path:
        return cache_root() / "cluster" / self.name

    @property
    def run(self) -> Path:
        """Sockets and runtime state: short enough for a Unix socket, and gone after a reboot as it should be."""
        return Path("/run/halo") / self.name

    @property
    def logs(self) -> Path:
        return self.root / "log"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "admin.kubeconfig"

    @property
    def containerd_socket(self) -> Path:
        return self.run / "containerd.sock"

    def port(self, service: str) -> int:
        """A block of ports a name: the default cluster has the first, so that its addresses are known by heart."""
        block = 0 if self.name == DEFAULT_NAME else 1 + zlib.crc32(self.name.encode()) % (CLUSTERS - 1)
        return FIRST_PORT + block * PORTS_PER_CLUSTER + PORT_OFFSETS[service]

    @property
    def api_url(self) -> str:
        return f"https://127.0.0.1:{self.port('kube-apiserver')}"

    @property
    def wish_file(self) -> Path:
        return self.root / "wish.json"

    def wish(self) -> Wish | None:
        try:
            return Wish(**json.loads(self.wish_file.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def keep(self, wish: Wish) -> None:
        write(self.wish_file, json.dumps(asdict(wish), indent=1) + "\n")


def homes() -> list[Home]:
    found = sorted((cache_root() / "cluster").glob("*/wish.json"))
    return [Home(path.parent.name) for path in found]


def write(path: Path, text: str, mode: int = 0o644) -> Path:
    """Write a file whole or not at all, and leave one that is already right alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.read_text() == text:
        return path
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.touch(mode=mode)
    fresh.write_text(text)
    fresh.rename(path)
    return path
