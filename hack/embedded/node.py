"""The cluster's one node: containerd, kubelet and kube-proxy on this machine, the GPUs it says it has, and its end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import containerd
from .api import Api, ApiError
from .binaries import PAUSE, installed
from .network import cni_configuration, packets_of_bridges_are_filtered, plugin_directory
from .pki import kubeconfig_path
from .processes import Process, Processes
from .settings import DNS_SERVICE_IP, NODE_IP, NODE_NAME, POD_CIDR, Home, Wish, write

NODE_PATH = f"/api/v1/nodes/{NODE_NAME}"
GPU = "nvidia.com/gpu"
GPU_PRODUCT = "nvidia.com/gpu.product"
# Innermost first, because each goes only if nobody else has anything in it.
MADE_BY_NODE = (
    "/var/log/containers",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet",
    "/run/containerd/s",
    "/run/containerd",
    "/run/halo",
)


def kubelet(home: Home, binaries: Path) -> Process:
    resolved = Path("/run/systemd/resolve/resolv.conf")
    configuration = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_IP,
        "port": home.port("kubelet"),
        "healthzPort": home.port("kubelet-health"),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{home.root}/pki/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{home.root}/pki/kubelet.crt",
        "tlsPrivateKeyFile": f"{home.root}/pki/kubelet.key",
        "containerRuntimeEndpoint": f"unix://{home.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "clusterDNS": [DNS_SERVICE_IP],
        "clusterDomain": "cluster.local",
        "resolvConf": str(resolved if resolved.exists() else "/etc/resolv.conf"),
        "podLogsDir": f"{home.root}/pod-logs",
        "maxPods": 250,
        "serializeImagePulls": False,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "eventRecordQPS": 0,
        # The machine is someone's desk: pods are evicted when it is really full, and images are never collected,
        # because they came from no registry that they could be pulled from again.
        "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
    }
    file = write(home.root / "kubelet.json", json.dumps(configuration, indent=1) + "\n")
    return Process(
        "kubelet",
        (
            str(binaries / "kubelet"),
            f"--config={file}",
            f"--kubeconfig={kubeconfig_path(home, 'kubelet')}",
            f"--root-dir={home.root}/kubelet",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={NODE_IP}",
        ),
        files=(file, kubeconfig_path(home, "kubelet")),
    )


def kube_proxy(home: Home, binaries: Path) -> Process:
    configuration = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": POD_CIDR,
        "hostnameOverride": NODE_NAME,
        "clientConnection": {"kubeconfig": str(kubeconfig_path(home, "kube-proxy"))},
        "healthzBindAddress": f"127.0.0.1:{home.port('kube-proxy-health')}",
        "metricsBindAddress": f"127.0.0.1:{home.port('kube-proxy-metrics')}",
        "nodePortAddresses": ["127.0.0.0/8", f"{NODE_IP}/32"],
        # Without CAP_SYS_RESOURCE the table's size may not be written.
        "conntrack": {"maxPerCore": 0},
        "iptables": {"minSyncPeriod": "0.1s", "masqueradeAll": not packets_of_bridges_are_filtered()},
    }
    file = write(home.root / "kube-proxy.json", json.dumps(configuration, indent=1) + "\n")
    return Process(
        "kube-proxy",
        (str(binaries / "kube-proxy"), f"--config={file}"),
        files=(file, kubeconfig_path(home, "kube-proxy")),
    )


def start_node(home: Home, wish: Wish, processes: Processes, binaries: Path) -> None:
    """Start what does not run yet and wait until pods can be scheduled on the node."""
    write(home.root / "cni" / "10-halo.conflist", cni_configuration(home))
    runtime = containerd.Containerd(home)
    processes.ensure(containerd.process(home, plugin_directory()))
    processes.wait("containerd", runtime.answers)
    runtime.ensure_pause_image(installed(PAUSE) / "pause")
    now = datetime.now(UTC).replace(microsecond=0)
    # A kubelet that has just started may take back what the last one left, so only its own word counts.
    since = now if processes.ensure(kubelet(home, binaries)) else None
    processes.ensure(kube_proxy(home, binaries))
    api = Api(home)
    processes.wait("kubelet", lambda: node_is_ready(api, since), what="Ready as a node")
    advertise_gpus(api, wish)


def advertise_gpus(api: Api, wish: Wish) -> None:
    """Say that the node has GPUs, so that runs are scheduled: the documented way for a resource without plugin."""
    node = api.get(NODE_PATH)
    if node["metadata"]["labels"].get(GPU_PRODUCT) != wish.gpu_product:
        api.merge(NODE_PATH, {"metadata": {"labels": {GPU_PRODUCT: wish.gpu_product}}})
    count = str(wish.gpus)
    if gpus_of(node) != wish.gpus:
        api.merge(f"{NODE_PATH}/status", {"status": {"capacity": {GPU: count}, "allocatable": {GPU: count}}})


def gpus_of(node: dict[str, Any]) -> int:
    status = node.get("status", {})
    found = [int(status.get(part, {}).get(GPU, "0")) for part in ("capacity", "allocatable")]
    return found[0] if found[0] == found[1] else -1


def node_is_ready(api: Api, since: datetime | None) -> bool:
    try:
        return is_ready(api.get(NODE_PATH), since)
    except (OSError, ApiError):
        return False


def is_ready(node: dict[str, Any], since: datetime | None = None) -> bool:
    """Whether the kubelet calls the node Ready, and has said so since then."""
    conditions = node.get("status", {}).get("conditions", ())
    ready = next((condition for condition in conditions if condition["type"] == "Ready"), None)
    if ready is None or ready["status"] != "True":
        return False
    return since is None or datetime.fromisoformat(ready["lastHeartbeatTime"]) >= since


def end_pods(home: Home, processes: Processes) -> None:
    """Have the kubelet end every pod, so that each takes its mounts, addresses and rules along."""
    if processes.pid("kubelet") is None or processes.pid("containerd") is None:
        return
    api, runtime = Api(home), containerd.Containerd(home)
    try:
        for namespace in api.get("/api/v1/namespaces")["items"]:
            path = f"/api/v1/namespaces/{namespace['metadata']['name']}/pods"
            api.request("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 1})
    except (OSError, ApiError):
        return
    deadline = time.monotonic() + 20
    while runtime.tasks() and time.monotonic() < deadline:
        time.sleep(0.1)
    # The last task ends a moment before the kubelet has unmounted the pod's volumes.
    while _mounts_below(home.root / "kubelet" / "pods") and time.monotonic() < deadline:
        time.sleep(0.05)


def clear_node(home: Home) -> None:
    """Whatever the kubelet could not end itself: containers, mounts, cgroups."""
    for shim, children in _shims(home).items():
        for pid in (*children, shim):
            _kill(pid)
    for mount in [*_mounts_below(home.root), *_mounts_below(home.run)]:
        # Lazily: a mount that someone's shell stands in goes when they leave.
        subprocess.run(["umount", "-l", mount], capture_output=True)
    for address in (home.run / "containerd").glob("io.containerd.runtime.v2.task/k8s.io/*/address"):
        Path(address.read_text().removeprefix("unix://")).unlink(missing_ok=True)
    for path in ("kubelet", "pod-logs", "cni-addresses"):
        shutil.rmtree(home.root / path, ignore_errors=True)
    shutil.rmtree(home.run, ignore_errors=True)
    _clear_machine_wide(home)


def _clear_machine_wide(home: Home) -> None:
    """What kubelet and containerd put at places that cannot be chosen; only what is ours or empty goes."""
    for link in Path("/var/log/containers").glob("*.log"):
        if link.is_symlink() and str(link.readlink()).startswith(str(home.root)):
            link.unlink()
    for name in ("kubelet_internal_checkpoint", "kubelet.sock"):
        (Path("/var/lib/kubelet/device-plugins") / name).unlink(missing_ok=True)
    cgroups = Path("/sys/fs/cgroup")
    # One hierarchy a controller with cgroup v1, a single one with v2.
    trees = [cgroups / "kubepods", *cgroups.glob("*/kubepods")]
    below = [directory for tree in trees for directory, _, _ in os.walk(tree, topdown=False)]
    for directory in (*below, *MADE_BY_NODE):
        with suppress(OSError):
            os.rmdir(directory)


def _shims(home: Home) -> dict[int, list[int]]:
    """The pid of each of our containerd's shims, with its containers' first processes."""
    address = str(home.containerd_socket).encode()
    parents: dict[int, list[int]] = {}
    ours: set[int] = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            command = (directory / "cmdline").read_bytes().split(b"\0")
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        pid = int(directory.name)
        parents.setdefault(parent, []).append(pid)
        if command[0].endswith(b"containerd-shim-runc-v2") and address in command:
            ours.add(pid)
    return {pid: parents.get(pid, []) for pid in ours}


def _mounts_below(directory: Path) -> list[str]:
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4].encode().decode("unicode_escape")
        if point == str(directory) or point.startswith(f"{directory}/"):
            points.append(point)
    return sorted(points, key=len, reverse=True)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
