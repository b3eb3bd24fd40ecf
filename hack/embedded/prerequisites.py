"""What a machine must have before a local cluster starts: a lack is cured, or said in one sentence with its cure."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from .binaries import KUBE
from .processes import Processes
from .settings import NODE_PORTS, PORT_OFFSETS, Home, Problem, cache_root, homes

CONTROL_PLANE_PACKAGES = {"openssl": "openssl"}
# Command: the Debian package that has it.
NODE_PACKAGES = {
    **CONTROL_PLANE_PACKAGES,
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "buildah": "buildah",
    "skopeo": "skopeo",
    "debootstrap": "debootstrap",
}
# GiB: free memory; free disk with the binaries cached; and without them
NEEDS = {True: (4.0, 5, 20), False: (1.5, 1, 12)}


def check(home: Home, processes: Processes, node: bool) -> None:
    """Everything that can be known before anything is started."""
    if platform.system() != "Linux":
        raise Problem("The local cluster needs Linux: elsewhere make one with kind and use --provider current.")
    if node and os.geteuid() != 0:
        raise Problem("The local cluster's node needs root: use sudo, or kind with --provider current, or --no-node.")
    packages(NODE_PACKAGES if node else CONTROL_PLANE_PACKAGES)
    if not processes.alive():
        _room(node)
    _ports(home, processes, node)
    if node:
        _no_other_node(home, processes)


def packages(wanted: dict[str, str]) -> None:
    """Install the Debian packages of commands that are missing."""
    missing = sorted({package for command, package in wanted.items() if not _there(command)})
    if not missing:
        return
    names = " ".join(missing)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Problem(f"Programs are missing: install these packages as root, as they are named on Debian: {names}.")
    print(f"installing Debian packages: {names} …", file=sys.stderr, flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *missing]):
        done = subprocess.run(["apt-get", *command], env=env, capture_output=True, text=True)
        if done.returncode and command[0] == "install":
            lines = done.stderr.strip().splitlines()
            raise Problem(f"apt-get could not install {names}: {lines[-1] if lines else 'it gave no reason'}")


def _there(command: str) -> bool:
    if command == "/usr/lib/cni/bridge":
        return Path(command).exists() or Path("/opt/cni/bin/bridge").exists()
    return shutil.which(command) is not None


def _room(node: bool) -> None:
    memory, disk_warm, disk_cold = NEEDS[node]
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 2**20
    if available < memory:
        raise Problem(
            f"The cluster needs {memory:g} GiB of free memory and there are {available:.1f}: end something large."
        )
    cache_root().mkdir(parents=True, exist_ok=True)
    disk = disk_warm if KUBE.directory.is_dir() else disk_cold
    free = shutil.disk_usage(cache_root()).free / 2**30
    if free < disk:
        raise Problem(f"{cache_root()} needs {disk} GiB of free disk and has {free:.1f}: free some, or set HALO_CACHE.")


def _ports(home: Home, processes: Processes, node: bool) -> None:
    """Of components that are about to start; those that run hold their own."""
    running = tuple(processes.alive())
    for service in PORT_OFFSETS:
        if (service in NODE_PORTS and not node) or service.startswith(running):
            continue
        port = home.port(service)
        if _busy(port):
            owner = f" by {found}" if (found := _owner(port)) else ""
            raise Problem(
                f"Port {port}, which {service} needs, is taken{owner}: stop that, or use other ports with --name."
            )


def _busy(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return True
    return False


def _owner(port: int) -> str:
    if shutil.which("ss") is None:
        return ""
    listed = subprocess.run(["ss", "-Hltnp", f"sport = :{port}"], capture_output=True, text=True).stdout
    return listed.partition("users:((")[2].partition(",fd=")[0].replace('"', "").replace(",pid=", ", process ")


def _no_other_node(home: Home, processes: Processes) -> None:
    """Two kubelets on one machine would take each other's cgroups and packet filter rules for their own."""
    for other in homes():
        wish = other.wish()
        if other.name != home.name and wish is not None and wish.node and Processes(other.root).alive():
            raise Problem(f"Cluster {other.name} has this machine's one node: take it down first, or use --no-node.")
    own = processes.pid("kubelet")
    for pid in _kubelets():
        if pid != own:
            raise Problem(
                f"Another kubelet (process {pid}) runs here: stop it, or use its cluster with --provider current."
            )


def _kubelets() -> Iterable[int]:
    here = os.stat("/proc/self/ns/net").st_ino
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            # One in another network namespace (a kind node, say) is in nobody's way.
            if (directory / "comm").read_text().strip() == "kubelet" and os.stat(directory / "ns/net").st_ino == here:
                yield int(directory.name)
        except OSError:
            continue
